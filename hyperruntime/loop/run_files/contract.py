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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.agents import agent_folder
from hyperruntime.errors import AgentError, unknown_name
from hyperruntime.json_values import parse_toml
from hyperruntime.spec import is_image_name
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


@attrs.frozen(kw_only=True)
class AgentNeeds:
    """The requirements of an agent.

    Attributes:
        image: a recipe or an image reference; None: the image of the domains is enough.
        models: whether the agent asks language models; None: the repository does not say it.
    """

    image: str | None = None
    models: bool | None = None


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
    value = _parse(data)
    commands = _table(value, "commands")
    load = _table(value, "load")
    meta = _strings(commands.get("meta_agent", list(_META)), "commands.meta_agent")
    task = commands.get("task_agent", _TASK)
    default = [task, _META_CLASS] if meta == _META else [task]
    checks = _strings(load.get("check", default), "load.check")
    for name in (task, *checks):
        if not isinstance(name, str) or not _CLASS.fullmatch(name):
            raise AgentError(
                f"{CONTRACT_FILE}: class {name!r} is not allowed: write it as module:Class"
            )
    kind = value.get("contract", DEFAULT)
    if kind not in KINDS:
        raise AgentError(f"{CONTRACT_FILE}: {unknown_name('contract', str(kind), KINDS)}")
    select = (
        _strings(commands["select_parent"], "commands.select_parent")
        if "select_parent" in commands
        else ()
    )
    return Contract(kind=kind, meta_agent=meta, task_agent=task, load=checks, select_parent=select)


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
    value = _parse(data)
    said = parse_contract(data).kind
    return said if "contract" in value or "commands" in value else by_files


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
    table = _table(_parse(data), "agent")
    image = table.get("image")
    models = table.get("models")
    # a path would be of the host
    if image is not None and not (isinstance(image, str) and is_image_name(image)):
        raise AgentError(
            f"{CONTRACT_FILE}: agent.image={image!r} is not allowed: a recipe or an image reference"
        )
    if models is not None and not isinstance(models, bool):
        raise AgentError(f"{CONTRACT_FILE}: agent.models={models!r} is not allowed: true or false")
    return AgentNeeds(image=image, models=models)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        return parse_toml(data.decode())
    except ValueError as error:
        raise AgentError(
            f"{CONTRACT_FILE} of the agent repository is not valid TOML: {error}"
        ) from error


def _table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = value.get(name, {})
    if not isinstance(table, dict):
        raise AgentError(f"{CONTRACT_FILE}: {name}={table!r} must be a table [{name}]")
    return table


def _strings(value: object, name: str) -> tuple[str, ...]:
    items: Sequence[object] = value if isinstance(value, list) else ()
    if not items or not all(isinstance(item, str) and item for item in items):
        raise AgentError(
            f"{CONTRACT_FILE}: {name}={value!r} is not allowed: a list of non-empty strings"
        )
    return tuple(str(item) for item in items)
