"""The contract of an agent repository: the commands and classes that the loop may use, and what the
agent needs.

``hyperrun.toml`` states the contract; a repository without this file follows the default contract::

    contract = "default"                    # or "hyperagents": see hyperruntime.loop.hyperagents

    [commands]
    meta_agent = ["python3", "run_meta_agent.py"]
    task_agent = "task_agent:TaskAgent"
    select_parent = ["python3", "select_parent.py"]    # for --edit-select-parent

    [load]
    check = ["task_agent:TaskAgent", "meta_agent:MetaAgent"]

    [agent]
    image = "agent"     # a recipe or an image reference, used if the domains need only the base
    image models = true       # the agent asks language models; a run without models does not start.
    Default: whether the
                        # repository has the HyperAgents layout and its client of models,
                        agent/llm.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.agents import agent_folder
from hyperruntime.errors import AgentError, SpecError
from hyperruntime.json_values import parse_toml
from hyperruntime.option_fields import OneOf
from hyperruntime.settings.image_names import is_image_name
from hyperruntime.settings.reader import read
from hyperruntime.storage.run_files import read_run_file
from hyperruntime.units import MIB

CONTRACT_FILE = "hyperrun.toml"
HARNESS = "/workspace/harness"
AGENT_ARCHIVE = "/tmp/agent_archive"  # noqa: S108 - inside a container
DEFAULT, HYPERAGENTS = KINDS = ("default", "hyperagents")
MARKS = ("domains/harness.py", "run_meta_agent.py", "task_agent.py")
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_META = ("python3", "run_meta_agent.py")
_TASK = "task_agent:TaskAgent"
_META_CLASS = "meta_agent:MetaAgent"


@attrs.frozen(kw_only=True)
class Contract:
    """The commands of an agent repository.

    Attributes:
        kind: the kind of contract, one of ``KINDS``.
        meta_agent: argv of the program that edits the repository; options of the contract are
            appended.
        task_agent: ``module:Class`` of the class that answers tasks.
        load: each ``module:Class`` that must be importable after an edit.
        select_parent: argv of the program that names the next parent; empty if the agent has none.
        repo: directory of the agent's files in a container.
        out: directory of its outputs in a container.
        evals: directory in a container that shows earlier generations.
        frozen: directory in a container with the unchanged meta agent of the baseline
            ``no_selfimprove``.
    """

    kind: str = DEFAULT
    meta_agent: tuple[str, ...] = _META
    task_agent: str = _TASK
    load: tuple[str, ...] = (_TASK, _META_CLASS)
    select_parent: tuple[str, ...] = ()
    repo: str = "/workspace/repo"
    out: str = "/workspace/out"
    evals: str = "/workspace/evals"
    frozen: str = "/workspace/frozen"


def _words(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not (isinstance(value, tuple) and value and all(value)):
        raise SpecError(attribute.name, value, "a list of non-empty texts")


def _class(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401
    for name in (value,) if isinstance(value, str) else value or ():
        if not isinstance(name, str) or not _CLASS.fullmatch(name):
            raise SpecError(attribute.name, name, "a class, as module:Class")


def _image(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    # a path would be of the host
    if value is not None and not (isinstance(value, str) and is_image_name(value)):
        raise SpecError(attribute.name, value, "a recipe or an image reference")


@attrs.frozen(kw_only=True)
class AgentNeeds:
    """The requirements of an agent.

    Attributes:
        image: a recipe or an image reference; None: the image of the domains is enough.
        models: whether the agent asks language models; None: the repository does not say it.
    """

    image: str | None = attrs.field(default=None, validator=_image)
    models: bool | None = None


@attrs.frozen(kw_only=True)
class _Commands:
    """The table ``[commands]`` of the file."""

    meta_agent: tuple[str, ...] = attrs.field(default=_META, validator=_words)
    task_agent: str = attrs.field(default=_TASK, validator=_class)
    select_parent: tuple[str, ...] | None = attrs.field(default=None, validator=_words)


@attrs.frozen(kw_only=True)
class _Load:
    """The table ``[load]`` of the file."""

    check: tuple[str, ...] | None = attrs.field(default=None, validator=(_words, _class))


@attrs.frozen(kw_only=True)
class _File:
    """What is read of the file here; it has other tables too."""

    contract: str | None = attrs.field(default=None, validator=OneOf(KINDS))
    commands: _Commands | None = None
    load: _Load = _Load()
    agent: AgentNeeds = AgentNeeds()


def read_contract_file(folder: Path) -> bytes | None:
    """Return the ``hyperrun.toml`` of an agent, which anybody may have made; None if there is none.

    Args:
        folder: directory of the agent.

    Raises:
        AgentError: it is not a regular file, is too large, or cannot be read.
    """
    path = folder / CONTRACT_FILE
    try:
        return read_run_file(path, below=folder, most_bytes=MIB)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AgentError(
            f"{str(path)!r} cannot be read: {error.strerror}; correct or remove it"
        ) from error


def parse_contract(data: bytes | None) -> Contract:
    """Return the contract that a ``hyperrun.toml`` states; the default contract if ``data`` is None
    (no file).

    Raises:
        AgentError: the file is not valid TOML, or a value is invalid.
    """
    if data is None:
        return Contract()
    given = _parse(data)
    commands = given.commands or _Commands()
    meta = commands.meta_agent
    task = commands.task_agent
    default = (task, _META_CLASS) if meta == _META else (task,)
    return Contract(
        kind=given.contract or DEFAULT,
        meta_agent=meta,
        task_agent=task,
        load=given.load.check or default,
        select_parent=commands.select_parent or (),
    )


def detect_contract(agent: str | None) -> str:
    """Return the kind of contract of an agent repository, from its ``hyperrun.toml`` or else from
    its files.

    Raises:
        AgentError: ``hyperrun.toml`` cannot be read or is invalid.
    """
    if agent is None or not os.path.isdir(agent):
        return DEFAULT
    by_files = (
        HYPERAGENTS if all(os.path.isfile(os.path.join(agent, mark)) for mark in MARKS) else DEFAULT
    )
    if (data := read_contract_file(Path(agent))) is None:
        return by_files
    given = _parse(data)
    return given.contract or (by_files if given.commands is None else DEFAULT)


def repository_contract(run_id: str) -> Contract:
    """Return the contract of a repository that has the HyperAgents layout."""
    return Contract(
        kind=HYPERAGENTS,
        repo="/hyperagents",
        out="/tmp/agent_output",  # noqa: S108 - inside a container
        evals=f"/tmp/generate_{run_id}",  # noqa: S108 - inside a container
        frozen="/DONOTTOUCH_hyperagents",
    )


def agent_needs(agent: str) -> AgentNeeds:
    """Return the requirements of an agent, given as a template name or a repository's directory.

    Raises:
        AgentError: its ``hyperrun.toml`` cannot be read or is invalid.
    """
    data = read_contract_file(agent_folder(agent))
    return AgentNeeds() if data is None else parse_needs(data)


def parse_needs(data: bytes) -> AgentNeeds:
    """Return the requirements that a ``hyperrun.toml`` states.

    Raises:
        AgentError: the file is not valid TOML, or a value is invalid.
    """
    return _parse(data).agent


def _parse(data: bytes) -> _File:
    try:
        return read(_File, parse_toml(data.decode()), path=f"{CONTRACT_FILE}: ", strict=False)
    except SpecError as error:
        raise AgentError(str(error)) from error
    except ValueError as error:
        raise AgentError(
            f"{CONTRACT_FILE} of the agent repository is not valid TOML: {error}"
        ) from error
