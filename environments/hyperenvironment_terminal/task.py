"""A terminal task: how it is read from its directory, and what it needs of a run.

The formats are those of Harbor (Terminal-Bench 2) and endless-terminals.

Source: harborframework.com/docs/tasks for ``task.toml``, ``instruction.md``, ``environment/``,
``tests/test.sh`` and ``solution/solve.sh``. A directory of endless-terminals has
``environment/container.def`` and ``tests/test_final_state.py`` instead, and needs no ``task.toml``.

Source: harborframework.com/docs/tasks/network-policy: a phase without its own ``network_mode`` has
that of ``[environment]``; a task that says nothing has the internet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from hyperenvironment_terminal.compose import ROOT, Main, read_main, user_text
from hyperruntime.adapters.compose import Service
from hyperruntime.errors import SpecError
from hyperruntime.images.building.definition import read_definition
from hyperruntime.json_values import parse_toml
from hyperruntime.network.egress import Egress, Network
from hyperruntime.option_fields import ABOVE_ZERO, NOT_NEGATIVE
from hyperruntime.settings.reader import read
from hyperruntime.spec import ContainerSpec
from hyperruntime.storage.text_file import read_utf8
from hyperruntime.units import MIB, parse_size

SAME = "same"
FRESH = "fresh"
# Directories in a container.
TESTS = "/tests"
LOGS = "/logs"
SOLUTION = "/solution"
TOOLS = "/.hyperruntime-judge"
TEST_SCRIPT = "test.sh"
TEST_STATE = "test_final_state.py"
TEST_BEGINNING = "test_initial_state.py"
INSTRUCTION = "instruction.md"
SETTINGS = "task.toml"
_DEFINITION = "container.def"
_CONTAINERFILES = ("Dockerfile", "Containerfile")
_USER = "/home/user"  # endless-terminals starts its shell with `--pwd /home/user`
_MAKES_USER = re.compile(r"^(?!\s*#).*/home/user(?![\w.-])", re.MULTILINE)
_CANARY = re.compile(
    r"\s*(?:<!--(?:(?!-->).)*?canary.*?-->|#[^\n]*canary[^\n]*)", re.DOTALL | re.IGNORECASE
)
_FIRST_LINE = 4096
_ID = re.compile(r"[^A-Za-z0-9_.-]+")
_DOWNLOADS = re.compile(
    r"(?<![\w/.-])(apt-get|apt|apk|dnf|yum|curl|wget|uvx|uv|npm|npx|conda|pip3?(?= install)|git(?= clone)"
    r"|cargo(?= install)|go(?= install)|gem(?= install))(?=\s)"
)
_HERE = re.compile(r"localhost|127\.0\.0\.1|\[::1\]")
_LISTED = 5


def _user(value: object) -> str:
    try:
        return "" if value == "" else user_text(value)
    except SpecError as error:
        raise SpecError("user", value, error.allowed) from None


# whether a phase may use the internet, or which hosts; None: what the run says
Internet = bool | Egress | None


@attrs.frozen(kw_only=True)
class Task:
    """A terminal task.

    Attributes:
        id: name of its directory, or the name in its row.
        instruction: the user message for the agent.
        image: reference of a ready image, or "".
        recipe: the Containerfile or definition file of its image, in its build context; None if
            ``image`` is set.
        tests: directory of its tests: ``test.sh``, or ``test_final_state.py`` for pytest.
        solution: directory of the known solution with ``solve.sh``, or None.
        workdir: working directory of the agent and the tests; "" means the image's.
        agent_timeout_s: time limit of the agent, or None.
        verifier_timeout_s: timeout of the tests.
        limits: the limits that the task sets, by the name of the field of
            :class:`~hyperruntime.Limits`.
        gpus: number of GPUs.
        internet: whether the agent has access to the internet; None if the task does not say.
        tests_internet: the same for the tests.
        agent_user: user of the agent and of the known solution: ``root``, or a name or uid with an
            optional ``:group``; "" if the task does not say, which is root.
        tests_user: the same for the tests.
        env: environment variables of every command; ``${NAME}`` and ``${NAME:-default}`` take
            values from the host.
        verifier_env: more environment variables of the tests.
        solution_env: more environment variables of the known solution.
        verify: ``same``, ``fresh``, or "" if the task does not say.
        services: the services beside its container.
        host_names: the names by which they reach it.
    """

    id: str
    instruction: str
    image: str = ""
    recipe: Path | None = None
    tests: Path
    solution: Path | None = None
    workdir: str = ""
    agent_timeout_s: float | None = None
    verifier_timeout_s: float = 600.0
    limits: Mapping[str, Any] = attrs.field(factory=dict)
    gpus: int = 0
    internet: Internet = None
    tests_internet: Internet = None
    agent_user: str = ""
    tests_user: str = ""
    env: Mapping[str, str] = attrs.field(factory=dict)
    verifier_env: Mapping[str, str] = attrs.field(factory=dict)
    solution_env: Mapping[str, str] = attrs.field(factory=dict)
    verify: str = ""
    services: tuple[Service, ...] = ()
    host_names: tuple[str, ...] = ()

    @property
    def uses_pytest(self) -> bool:
        """Whether the tests are a pytest file, and not a script that writes a reward."""
        return not (self.tests / TEST_SCRIPT).is_file()


@attrs.frozen(kw_only=True)
class _Network:
    """The keys for a network; ``allow_internet`` is the old form of ``network_mode``."""

    network_mode: Literal["", "public", "no-network", "allowlist"] = ""
    allowed_hosts: tuple[str, ...] = ()
    allow_internet: bool | None = None


@attrs.frozen(kw_only=True)
class _Environment(_Network):
    """The table ``[environment]``."""

    docker_image: str = ""
    workdir: str = ""
    cpus: float | None = attrs.field(default=None, validator=NOT_NEGATIVE)
    memory_mb: float | None = attrs.field(default=None, validator=NOT_NEGATIVE)
    memory: str = ""
    storage_mb: float | None = attrs.field(default=None, validator=NOT_NEGATIVE)
    storage: str = ""
    gpus: float = attrs.field(default=0, validator=NOT_NEGATIVE)
    env: Mapping[str, str | float | bool] = attrs.field(factory=dict)
    mcp_servers: Any = None
    healthcheck: Any = None


@attrs.frozen(kw_only=True)
class _Stage(_Network):
    """The table ``[agent]``, ``[verifier]`` or ``[solution]``."""

    timeout_sec: float | None = attrs.field(default=None, validator=ABOVE_ZERO)
    user: Any = attrs.field(default="", converter=_user)
    env: Mapping[str, str | float | bool] = attrs.field(factory=dict)
    environment_mode: Any = None
    environment: Any = None


@attrs.frozen(kw_only=True)
class _Ours:
    """The table ``[metadata.hyperruntime]``."""

    verify: Literal["", "same", "fresh"] = ""


@attrs.frozen(kw_only=True)
class _Metadata:
    """The table ``[metadata]``."""

    hyperruntime: _Ours = _Ours()


@attrs.frozen(kw_only=True)
class _Settings:
    """What is read of ``task.toml``; it may have other keys."""

    environment: _Environment = _Environment()
    verifier: _Stage = _Stage()
    agent: _Stage = _Stage()
    solution: _Stage = _Stage()
    metadata: _Metadata = _Metadata()
    steps: Any = None


def is_task(folder: Path) -> bool:
    """Return whether a directory is a task directory."""
    return (folder / INSTRUCTION).is_file()


def task_id(name: str) -> str:
    """Return the id of a task with a name: other characters become ``-``."""
    return _ID.sub("-", name).strip("-.") or "task"


def read_task(folder: Path, *, name: str = "") -> Task:
    """Return the task of a directory.

    Args:
        folder: the task's directory.
        name: id of the task; "" means the name of the directory.

    Raises:
        SpecError: a file or setting is missing, invalid or not supported.
    """
    path = folder / SETTINGS
    settings = _settings(path)
    environment = settings.environment
    _refuse_what_is_not_done(settings, folder)
    main = read_main(folder / "environment")
    internet = _internet(path, environment, "environment", main.has_network)
    image, recipe = _source(folder, main, environment.docker_image)
    tests = folder / "tests"
    if not any((tests / file).is_file() for file in (TEST_SCRIPT, TEST_STATE)):
        raise SpecError(
            "task", str(folder), f"a directory with tests/{TEST_SCRIPT} or tests/{TEST_STATE}"
        )
    _check_script(tests / TEST_SCRIPT)
    return Task(
        id=task_id(name or folder.resolve().name),
        instruction=_instruction(folder / INSTRUCTION),
        image=image,
        recipe=recipe,
        tests=tests,
        solution=folder / "solution" if (folder / "solution" / "solve.sh").is_file() else None,
        workdir=environment.workdir or main.workdir or _workdir(recipe),
        agent_timeout_s=settings.agent.timeout_sec,
        verifier_timeout_s=settings.verifier.timeout_sec or 600.0,
        limits={**main.limits, **_limits(environment)},
        gpus=int(environment.gpus),
        internet=_internet(path, settings.agent, "agent", internet),
        tests_internet=_internet(path, settings.verifier, "verifier", internet),
        agent_user=settings.agent.user or main.user,
        tests_user=settings.verifier.user or main.user,
        env={**main.env, **_texts(environment.env)},
        verifier_env=_texts(settings.verifier.env),
        solution_env=_texts(settings.solution.env),
        verify=settings.metadata.hyperruntime.verify,
        services=main.services,
        host_names=main.host_names,
    )


def _texts(values: Mapping[str, str | float | bool]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _settings(path: Path) -> _Settings:
    if not path.is_file():
        return _Settings()
    try:
        table = parse_toml(read_utf8(path, "task", may_be_link=False))
    except SpecError:
        raise
    except ValueError as error:
        raise SpecError("task", str(path), f"a valid TOML file: {error}") from None
    return read(_Settings, table, path=f"{path}: ", strict=False)


def _refuse_what_is_not_done(settings: _Settings, folder: Path) -> None:
    if (folder / "steps").is_dir() or settings.steps:
        raise SpecError(
            "task", str(folder), "a task with one step; several steps are not supported"
        )
    path = folder / SETTINGS
    for name in ("mcp_servers", "healthcheck"):
        if given := getattr(settings.environment, name):
            raise SpecError(f"{path}: environment.{name}", given, "none; it is not supported")
    if settings.verifier.environment_mode == "separate" or settings.verifier.environment:
        raise SpecError(
            f"{path}: verifier.environment_mode",
            "separate",
            "no value; a separate image for tests is not supported",
        )


def _limits(table: _Environment) -> dict[str, float]:
    found = {
        "cpus": table.cpus,
        "memory_bytes": _bytes(table.memory_mb, table.memory),
        "disk_bytes": _bytes(table.storage_mb, table.storage),
    }
    return {name: value for name, value in found.items() if value is not None}


def _bytes(megabytes: float | None, text: str) -> int | None:
    """Return a size in bytes, from a number of MiB or from a text such as ``2G``."""
    if megabytes is not None:
        return int(megabytes * MIB)
    return parse_size(text) if text else None


def _internet(path: Path, table: _Network, name: str, default: Internet) -> Internet:
    """Return whether a table gives access to the internet, or to which hosts."""
    if table.network_mode == "allowlist" or (table.allowed_hosts and not table.network_mode):
        try:
            return Egress(allow=table.allowed_hosts)
        except SpecError as error:
            where = f"{path}: {name}.allowed_hosts"
            raise SpecError(where, error.value, error.allowed) from None
    if table.network_mode:
        return table.network_mode == "public"
    return default if table.allow_internet is None else table.allow_internet


def _source(folder: Path, main: Main, image: str) -> tuple[str, Path | None]:
    """Return the reference of a ready image, or the recipe of the task's own."""
    if image:
        return image, None
    if main.recipe is not None:
        return "", main.recipe
    own = any((folder / "environment" / name).is_file() for name in (_DEFINITION, *_CONTAINERFILES))
    return (main.image, None) if main.image and not own else ("", _recipe(folder))


def _check_script(script: Path) -> None:
    """Refuse a script whose first line ends as on Windows: Linux finds no such program."""
    if script.is_file():
        with script.open("rb") as file:
            first = file.readline(_FIRST_LINE)
        if first.startswith(b"#!") and first.endswith(b"\r\n"):
            raise SpecError(
                "task", str(script), "a script without CRLF line ends; convert it with `dos2unix`"
            )


def _recipe(folder: Path) -> Path:
    """Return the recipe of the image; a definition file is preferred, because every engine can
    build it.
    """
    for name in (_DEFINITION, *_CONTAINERFILES):
        if (folder / "environment" / name).is_file():
            return folder / "environment" / name
    raise SpecError(
        "task", str(folder), f"environment/Dockerfile, environment/{_DEFINITION} or a docker_image"
    )


def _instruction(path: Path) -> str:
    """Return the text without canary comments at its start, which mark files of a benchmark."""
    text = read_utf8(path, "task", may_be_link=False).replace("\r\n", "\n")
    while head := _CANARY.match(text):
        text = text[head.end() :]
    return text.strip()


def _workdir(recipe: Path | None) -> str:
    """Return the working directory of a definition file's task, or "": an image has one, a
    definition file has none. Where the image has no ``/home/user``, the shell of endless-terminals
    stays in ``/``.
    """
    if recipe is None or recipe.name != _DEFINITION:
        return ""
    return _USER if _MAKES_USER.search(read_definition(recipe)) else "/"


def downloads(task: Task) -> tuple[str, ...]:
    """Return the programs in a task's ``test.sh`` that download something; lines that name this
    machine are skipped.
    """
    if task.uses_pytest:
        return ()
    text = (task.tests / TEST_SCRIPT).read_text(errors="replace")
    lines = [
        line
        for line in text.splitlines()
        if not line.lstrip().startswith("#") and not _HERE.search(line)
    ]
    return tuple(dict.fromkeys(found for line in lines for found in _DOWNLOADS.findall(line)))


def internet_reason(task: Task) -> str:
    """Return why a task needs the internet, or ""."""
    for wanted, whose in ((task.internet, ""), (task.tests_internet, " for its tests")):
        if isinstance(wanted, Egress):
            return f"its task.toml lists {', '.join(wanted.allow) or 'no host'}{whose}"
        if wanted:
            return f"its task.toml says so{whose}"
    if task.tests_internet is None and (programs := downloads(task)):
        return f"its {TEST_SCRIPT} runs {', '.join(programs)}"
    return ""


def describe(task: Task) -> str:
    """Return what a task needs, as a list for people: ``internet (...), 2 cpus, 4096 MiB memory``;
    "" for nothing.
    """
    limits = task.limits
    needed = [
        f"internet ({reason})" if (reason := internet_reason(task)) else "",
        f"{limits['cpus']:g} cpus" if "cpus" in limits else "",
        f"{limits['memory_bytes'] / MIB:g} MiB memory" if "memory_bytes" in limits else "",
        f"{limits['disk_bytes'] / MIB:g} MiB disk" if "disk_bytes" in limits else "",
        f"{task.gpus} GPUs" if task.gpus else "",
        "no internet" if task.internet is False else "",
        f"its agent as the user {task.agent_user}" if task.agent_user not in ("", ROOT) else "",
    ]
    return ", ".join(filter(None, needed))


def check_network(tasks: Iterable[Task], base: ContainerSpec) -> None:
    """Check that a run has a network if its tasks need the internet, with the hosts that they name.

    Args:
        tasks: the tasks of the run.
        base: the run's container spec.

    Raises:
        SpecError: it has none; the message names tasks, and why they need it.
    """
    found = [
        f"{task.id} ({reason})"
        for task in tasks
        if (reason := internet_reason(task)) and not _has(task, base)
    ]
    if found:
        shown = ", ".join(found[:_LISTED]) + (
            f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        )
        allowed = (
            f"a list (--allow NAME), bridge or host, because {len(found)} tasks need the internet: "
            f"{shown}; or use --option internet=base"
        )
        given = base.network.allow if isinstance(base.network, Egress) else base.network
        raise SpecError("network", given, f"{allowed} to run them without")


def _has(task: Task, base: ContainerSpec) -> bool:
    """Return whether a run has what a task needs: a list must have all hosts that the task
    names.
    """
    wanted = (task.internet, task.tests_internet)
    lists = [one for one in wanted if isinstance(one, Egress)]
    if isinstance(base.network, Egress):
        return all(map(base.network.covers, lists))
    # a network of the engine does not reach what this machine reaches: a task cannot choose that
    return base.network != "none" and not any(one.special for one in lists)


def networks(task: Task, base: ContainerSpec) -> tuple[Network | Egress, Network | Egress]:
    """Return the networks of a task's agent and of its tests.

    Args:
        task: the task.
        base: the run's container spec; a phase that may use the internet has its network, or the
            part of it that the task lists.
    """
    agent, tests = (_part(wanted, base) for wanted in (task.internet, task.tests_internet))
    return agent, tests


def _part(wanted: Internet, base: ContainerSpec) -> Network | Egress:
    if wanted is False or base.network == "none":
        return "none"
    if not isinstance(wanted, Egress):
        return base.network
    if not isinstance(base.network, Egress):
        return "none" if wanted.special else wanted
    return attrs.evolve(base.network, allow=wanted.allow) if base.network.covers(wanted) else "none"
