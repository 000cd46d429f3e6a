"""T2: there is one way to run commands in containers, and one module that starts processes of the
host.

The tests search the syntax trees of all shipped modules, so they find a second way as soon as it is
written.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = (
    "hyperruntime",
    "runtimes",
    "domains",
    "environments",
    "trainers",
    "integrations",
    "containers",
)
# Files that are copied into containers and run there are not part of the host's program.
INSIDE = (
    "hyperruntime/agents/",
    "hyperruntime/loop/evaluation/harness.py",
    "domains/hyperdomain_polyglot/exercises/",
    "domains/hyperdomain_polyglot/runner.py",
    "environments/hyperenvironment_swe/inside/",
    "environments/hyperenvironment_terminal/tasks/",
)
STARTS_PROCESSES = ("hyperruntime/host/process.py",)
NAMES_THE_PYTHON_PROGRAM = (
    "hyperruntime/host/python.py",
    "hyperruntime/cli/machine/doctor.py",  # prints it
    "hyperruntime/cli/versions.py",  # prints it
    "hyperruntime/testing/fake.py",  # commands of a fake container, whose python3 it is
)
# simulates an owner that ends in every possible way
FORKS_ITSELF = ("hyperruntime/testing/conformance/owner.py",)
# a program that starts another in its place
BECOMES_ANOTHER = ("runtimes/hyperruntime_apptainer/read_only_host.py",)
RUNS_COMMANDS = "hyperruntime/exec/execution.py"
MAKES_EXECUTIONS = (
    "hyperruntime/container.py",
    "hyperruntime/exec/user_sessions.py",
    "hyperruntime/exec/persistent/shell.py",
    "hyperruntime/exec/spawn/process.py",  # one exec in a thread; a terminal is such a process too
)
DRIVERS = "runtimes/"
# for the cache, which agents cannot reach
RUNS_GIT_ON_THE_HOST = ("hyperruntime/rollout/origins.py",)
ABOVE = (
    "hyperruntime/adapters/",
    "hyperruntime/pool/",
    "hyperruntime/rollout/",
    "environments/",
    "trainers/",
    "integrations/",
)

PROCESS_MODULES = {"subprocess", "multiprocessing", "pty", "pexpect", "sh", "plumbum"}
PIPES = (
    "multiprocessing.connection",
    "multiprocessing.connection.Connection",
    "multiprocessing.connection.Pipe",
)
PROCESS_CALLS = {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "vfork"}
PROCESS_CALLS |= {
    f"{verb}{ending}"
    for verb in ("exec", "spawn")
    for ending in ("l", "le", "lp", "lpe", "v", "ve")
}
PROCESS_CALLS |= {"execvp", "execvpe", "spawnvp", "spawnvpe"}
PROCESS_NAMES = {
    "create_subprocess_exec",
    "create_subprocess_shell",
    "subprocess_exec",
    "subprocess_shell",
}
PROCESS_NAMES |= {"ProcessPoolExecutor", "Popen"}
ENGINE_EXECS = {"exec_run", "exec_create", "exec_start", "exec_inspect"}
ENGINE_MODULES = {"docker", "podman"}
HOST_MODULES = {"hyperruntime.host.process"}
# in threading: the only hook that runs before threads are joined
STANDARD_LIBRARY = {"_register_atexit"}


@attrs.frozen
class Facts:
    """What a module does, without its syntax tree: many trees slow down the collector."""

    starts_processes: list[str]
    names_python: bool
    runs_commands: list[str]
    reaches_below: list[str]


@pytest.fixture(scope="module")
def shipped() -> dict[str, Facts]:
    """Return facts about each shipped module that runs on the host, by path."""
    paths = [path for name in SHIPPED for path in sorted((ROOT / name).rglob("*.py"))]
    named = {str(path.relative_to(ROOT)): path for path in paths}
    return {
        name: facts(ast.parse(path.read_text()))
        for name, path in named.items()
        if not name.startswith(INSIDE)
    }


def facts(tree: ast.Module) -> Facts:
    return Facts(
        starts_processes(tree),
        names_the_python_program(tree),
        runs_commands(tree),
        reaches_below(tree),
    )


@lru_cache(maxsize=1)
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Return the nodes that the checks look at; to walk over all takes longer than anything else
    here.
    """
    kinds = (ast.Import, ast.ImportFrom, ast.Attribute)
    return tuple(node for node in ast.walk(tree) if isinstance(node, kinds))


@lru_cache(maxsize=1)
def imports(tree: ast.Module) -> set[str]:
    """Return the full names of all modules, and of their members, that a module imports
    anywhere.
    """
    found: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def starts_processes(tree: ast.Module) -> list[str]:
    """Return the expressions and imports in a module that could start a process of the host."""
    names = imports(tree).difference(PIPES)  # which start no process
    found = sorted(name for name in names if name.partition(".")[0] in PROCESS_MODULES)
    for node in nodes(tree):
        of_os = (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("os", "posix")
        )
        if isinstance(node, ast.Attribute) and of_os and node.attr in PROCESS_CALLS:
            found.append(f"os.{node.attr}")
        if isinstance(node, ast.Attribute) and node.attr in PROCESS_NAMES:
            found.append(node.attr)
        if isinstance(node, ast.ImportFrom) and node.module in (
            "os",
            "posix",
            "asyncio",
            "concurrent.futures",
        ):
            found += [
                alias.name for alias in node.names if alias.name in PROCESS_CALLS | PROCESS_NAMES
            ]
    return found


def names_the_python_program(tree: ast.Module) -> bool:
    """Return whether a module uses ``sys.executable``."""
    named = any(
        isinstance(node, ast.Attribute) and node.attr == "executable" for node in nodes(tree)
    )
    return named or "sys.executable" in imports(tree)


def runs_commands(tree: ast.Module) -> list[str]:
    """Return the expressions and imports in a module that could run a command without
    :class:`Container`.
    """
    found = [name for name in imports(tree) if name == "hyperruntime.exec.execution.Execution"]
    found += [
        node.attr
        for node in nodes(tree)
        if isinstance(node, ast.Attribute) and node.attr in ENGINE_EXECS
    ]
    return found


def reaches_below(tree: ast.Module) -> list[str]:
    """Return what a module above the runtime uses from below it: engines, processes, private names
    of others.
    """
    found = []
    for name in sorted(imports(tree)):
        parts = name.split(".")
        engine = parts[0] in ENGINE_MODULES or parts[0].startswith(
            ("hyperruntime_podman", "hyperruntime_docker")
        )
        private = parts[0].startswith("hyper") and any(_is_private(part) for part in parts)
        if (
            engine
            or private
            or any(name == module or name.startswith(f"{module}.") for module in HOST_MODULES)
        ):
            found.append(name)
    for node in nodes(tree):
        own = (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        )
        if (
            isinstance(node, ast.Attribute)
            and _is_private(node.attr)
            and not own
            and node.attr not in STANDARD_LIBRARY
        ):
            found.append(node.attr)
    return found


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_only_one_module_starts_processes_of_the_host(shipped: dict[str, Facts]) -> None:
    guilty = {
        name: found
        for name, module in shipped.items()
        if name not in STARTS_PROCESSES + FORKS_ITSELF + BECOMES_ANOTHER
        and (found := module.starts_processes)
    }
    assert guilty == {}


def test_all_python_processes_of_the_host_are_started_by_one_function(
    shipped: dict[str, Facts],
) -> None:
    """With ``python -m`` alone, modules in the current directory would be imported."""
    named = {name for name, module in shipped.items() if module.names_python}
    assert named == set(NAMES_THE_PYTHON_PROGRAM)


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nf([sys.executable])",
        "from sys import executable",
        "import sys as s\nf(s.executable)",
    ],
)
def test_a_module_that_names_the_python_program_is_found(source: str) -> None:
    assert names_the_python_program(ast.parse(source))


def test_only_containers_run_commands(shipped: dict[str, Facts]) -> None:
    guilty = {
        name: found
        for name, module in shipped.items()
        if name not in MAKES_EXECUTIONS
        and not name.startswith(DRIVERS)
        and (found := module.runs_commands)
    }
    assert guilty == {}


def test_modules_above_the_runtime_use_no_engine_no_process_and_no_private_name(
    shipped: dict[str, Facts],
) -> None:
    guilty = {
        name: found
        for name, module in shipped.items()
        if name.startswith(ABOVE) and (found := module.reaches_below)
    }
    for name in RUNS_GIT_ON_THE_HOST:
        assert all(found.startswith("hyperruntime.host.process") for found in guilty.pop(name))
    assert guilty == {}


def test_all_shipped_modules_are_checked(shipped: dict[str, Facts]) -> None:
    names = set(shipped)
    assert {
        RUNS_COMMANDS,
        *STARTS_PROCESSES,
        *FORKS_ITSELF,
        *BECOMES_ANOTHER,
        MAKES_EXECUTIONS[0],
    } <= names
    assert all(any(name.startswith(top) for name in names) for top in ABOVE[:3])
    assert shipped[STARTS_PROCESSES[0]].starts_processes != []
    assert any(shipped[name].runs_commands for name in MAKES_EXECUTIONS if name in shipped)


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess",
        "def f():\n    from subprocess import run",
        "import os\nos.system('true')",
        "import os\nos.execvp('true', ['true'])",
        "from os import fork",
        "import asyncio\nasyncio.create_subprocess_exec('true')",
        "from asyncio import create_subprocess_shell",
        "loop.subprocess_exec(None, 'true')",
        "from multiprocessing import Process",
        "from concurrent.futures import ProcessPoolExecutor",
        "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
        "import pty",
    ],
)
def test_a_second_way_to_start_processes_is_found(source: str) -> None:
    assert starts_processes(ast.parse(source)) != []


@pytest.mark.parametrize(
    "source",
    [
        "from hyperruntime.exec.execution import Execution",
        "container.exec_run(['true'])",
        "api.exec_create(1, [])",
    ],
)
def test_a_second_way_to_run_commands_is_found(source: str) -> None:
    assert runs_commands(ast.parse(source)) != []


@pytest.mark.parametrize(
    "source",
    [
        "import docker",
        "from hyperruntime_podman.driver import PodmanDriver",
        "from hyperruntime.host.process import run_process",
        "from hyperruntime import process\nimport hyperruntime.host.process",
        "from hyperruntime.container import _make_exchange",
        "def f(pool):\n    return pool._containers",
    ],
)
def test_uses_of_engines_processes_and_private_names_are_found(source: str) -> None:
    assert reaches_below(ast.parse(source)) != []


def test_a_modules_own_private_names_are_allowed() -> None:
    source = (
        "import os\nclass A:\n    def f(self):\n        self._x = os.getpid()\n        return "
        "self._x\n"
    )
    assert starts_processes(ast.parse(source)) == []
    assert reaches_below(ast.parse(source)) == []
