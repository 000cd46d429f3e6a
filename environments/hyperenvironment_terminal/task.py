"""A terminal task, and how it is read from its directory.

The formats are those of Harbor (Terminal-Bench 2) and endless-terminals.

Source: harborframework.com/docs/tasks for ``task.toml``, ``instruction.md``, ``environment/``,
``tests/test.sh`` and ``solution/solve.sh``. A directory of endless-terminals has
``environment/container.def`` and ``tests/test_final_state.py`` instead, and needs no ``task.toml``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import attrs

from hyperenvironment_terminal.compose import Main, read_main, user_text
from hyperruntime.errors import SpecError
from hyperruntime.images.definition_rewrite import read_definition
from hyperruntime.json_values import parse_toml
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
_USER = "/home/user"  # the working directory of endless-terminals tasks
_CANARY = re.compile(
    r"\s*(?:<!--(?:(?!-->).)*?canary.*?-->|#[^\n]*canary[^\n]*)", re.DOTALL | re.IGNORECASE
)
_FIRST_LINE = 4096
_ID = re.compile(r"[^A-Za-z0-9_.-]+")


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
    internet: bool | None = None
    tests_internet: bool | None = None
    agent_user: str = ""
    tests_user: str = ""
    env: Mapping[str, str] = attrs.field(factory=dict)
    verifier_env: Mapping[str, str] = attrs.field(factory=dict)
    solution_env: Mapping[str, str] = attrs.field(factory=dict)
    verify: str = ""

    @property
    def uses_pytest(self) -> bool:
        """Whether the tests are a pytest file, and not a script that writes a reward."""
        return not (self.tests / TEST_SCRIPT).is_file()


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
    settings = _settings(folder / SETTINGS)
    reader = _Reader(folder / SETTINGS)
    environment = reader.table(settings, "environment")
    verifier = reader.table(settings, "verifier")
    agent = reader.table(settings, "agent")
    metadata = reader.table(settings, "metadata")
    _refuse_what_is_not_done(reader, settings, folder)
    main = read_main(folder / "environment")
    internet = _internet(reader, environment, "environment", main.has_network)
    image, recipe = _source(folder, main, reader.text(environment, "docker_image"))
    ours = reader.table(metadata, "hyperruntime")
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
        workdir=reader.text(environment, "workdir") or main.workdir or _workdir(recipe),
        agent_timeout_s=reader.seconds(agent, "timeout_sec", None),
        verifier_timeout_s=reader.seconds(verifier, "timeout_sec", 600.0) or 600.0,
        limits={**main.limits, **_limits(reader, environment)},
        gpus=int(reader.number(environment, "gpus") or 0),
        internet=_internet(reader, agent, "agent", internet),
        tests_internet=_internet(reader, verifier, "verifier", internet),
        agent_user=reader.user(agent, "agent") or main.user,
        tests_user=reader.user(verifier, "verifier") or main.user,
        env={**main.env, **reader.texts(environment, "env")},
        verifier_env=reader.texts(verifier, "env"),
        solution_env=reader.texts(reader.table(settings, "solution"), "env"),
        verify=reader.choice(ours, "verify", ("", SAME, FRESH)),
    )


@attrs.frozen
class _Reader:
    """Reads values from tables; errors name the file and the key."""

    path: Path

    def refuse(self, key: str, value: object, allowed: str) -> NoReturn:
        raise SpecError(f"{self.path}: {key}", value, allowed)

    def table(self, table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = table.get(key, {})
        return value if isinstance(value, dict) else self.refuse(key, value, "a table")

    def text(self, table: Mapping[str, Any], key: str) -> str:
        value = table.get(key) or ""
        return value if isinstance(value, str) else self.refuse(key, value, "text")

    def choice(self, table: Mapping[str, Any], key: str, allowed: tuple[str, ...]) -> str:
        value = self.text(table, key)
        return (
            value
            if value in allowed
            else self.refuse(key, value, " or ".join(filter(None, allowed)))
        )

    def number(self, table: Mapping[str, Any], key: str) -> float | None:
        value = table.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        good = value is None or (is_number and 0 <= value <= sys.float_info.max)
        return value if good else self.refuse(key, value, "a number, not below 0")

    def seconds(self, table: Mapping[str, Any], key: str, default: float | None) -> float | None:
        value = self.number(table, key)
        return (
            default
            if value is None
            else value or self.refuse(key, value, "a number of seconds above 0")
        )

    def user(self, table: Mapping[str, Any], name: str) -> str:
        value = table.get("user")
        try:
            return "" if value in (None, "") else user_text(value)
        except SpecError as error:
            self.refuse(f"{name}.user", value, error.allowed)

    def texts(self, table: Mapping[str, Any], key: str) -> dict[str, str]:
        values = self.table(table, key)
        if not all(isinstance(value, str | int | float) for value in values.values()):
            self.refuse(key, values, "a table whose values are text or numbers")
        return {name: str(value) for name, value in values.items()}


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return parse_toml(read_utf8(path, "task", may_be_link=False))
    except SpecError:
        raise
    except ValueError as error:
        raise SpecError("task", str(path), f"a valid TOML file: {error}") from None


def _refuse_what_is_not_done(reader: _Reader, settings: Mapping[str, Any], folder: Path) -> None:
    environment = reader.table(settings, "environment")
    verifier = reader.table(settings, "verifier")
    if (folder / "steps").is_dir() or settings.get("steps"):
        raise SpecError(
            "task", str(folder), "a task with one step; several steps are not supported"
        )
    if environment.get("mcp_servers"):
        reader.refuse(
            "environment.mcp_servers",
            environment["mcp_servers"],
            "none; MCP servers are not supported",
        )
    if environment.get("healthcheck"):
        reader.refuse(
            "environment.healthcheck",
            environment["healthcheck"],
            "no healthcheck; it is not supported",
        )
    if verifier.get("environment_mode") == "separate" or verifier.get("environment"):
        reader.refuse(
            "verifier.environment_mode",
            "separate",
            "no value; a separate image for tests is not supported",
        )


def _limits(reader: _Reader, table: Mapping[str, Any]) -> dict[str, float]:
    found = {
        "cpus": reader.number(table, "cpus"),
        "memory_bytes": _bytes(reader, table, "memory"),
        "disk_bytes": _bytes(reader, table, "storage"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _bytes(reader: _Reader, table: Mapping[str, Any], key: str) -> int | None:
    """Return a size in bytes, from the number ``KEY_mb`` (MiB) or from the text ``KEY`` such as
    ``2G``.
    """
    if (megabytes := reader.number(table, f"{key}_mb")) is not None:
        return int(megabytes * MIB)
    text = reader.text(table, key)
    return parse_size(text) if text else None


def _internet(
    reader: _Reader, table: Mapping[str, Any], name: str, default: bool | None
) -> bool | None:
    """Return whether a table gives access to the internet; ``allow_internet`` is the old form of
    ``network_mode``.
    """
    mode = reader.choice(table, "network_mode", ("", "public", "no-network", "allowlist"))
    if mode == "allowlist" or table.get("allowed_hosts"):
        reader.refuse(
            f"{name}.network_mode",
            "allowlist",
            "public or no-network; allowlists are not supported",
        )
    if mode:
        return mode == "public"
    allowed = table.get("allow_internet")
    if not isinstance(allowed, bool | None):
        reader.refuse(f"{name}.allow_internet", allowed, "true or false")
    return default if allowed is None else allowed


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
    definition file has none.
    """
    if recipe is None or recipe.name != _DEFINITION:
        return ""
    return _USER if _USER in read_definition(recipe) else "/"
