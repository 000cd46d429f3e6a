"""T2: there is one way to run commands in containers, and one module that starts processes of the
host.

The tests search the syntax trees of all shipped modules, so they find a second way as soon as it is
written.
"""

from __future__ import annotations

import ast
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
)
# simulates an owner that ends in every possible way
FORKS_ITSELF = ("hyperruntime/testing/conformance/owner.py",)
# programs of their own, which start others or become them
BECOMES_ANOTHER = (
    "runtimes/hyperruntime_apptainer/read_only_host.py",
    "runtimes/hyperruntime_charliecloud/enter.py",
    "hyperruntime/layers/holder.py",
    "hyperruntime/cluster/node_job.py",
)
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
HOST_MODULE = "hyperruntime.host.process."
OTHERS = ("os", "posix", "asyncio", "concurrent.futures")
# in threading: the only hook that runs before threads are joined
STANDARD_LIBRARY = {"_register_atexit"}


@attrs.frozen
class Facts:
    """What a module names, without its syntax tree: many trees slow down the collector.

    Attributes:
        imports: the full names of all modules, and of their members, that it imports anywhere.
        attributes: each attribute that it uses, with the name before it, or "".
    """

    imports: frozenset[str]
    attributes: frozenset[tuple[str, str]]

    @property
    def starts_processes(self) -> set[str]:
        """What could start a process of the host."""
        names = self.imports.difference(PIPES)  # which start no process
        members = {name.rpartition(".")[::2] for name in names}
        return (
            {name for name in names if name.partition(".")[0] in PROCESS_MODULES}
            | {f"os.{one}" for owner, one in self.attributes | members
               if owner in ("os", "posix") and one in PROCESS_CALLS}
            | {one for _, one in self.attributes if one in PROCESS_NAMES}
            | {one for owner, one in members if owner in OTHERS and one in PROCESS_NAMES}
        )  # fmt: skip

    @property
    def names_python(self) -> bool:
        """Whether it uses ``sys.executable``."""
        return "sys.executable" in self.imports or any(
            one == "executable" for _, one in self.attributes
        )

    @property
    def runs_commands(self) -> set[str]:
        """What could run a command without :class:`Container`."""
        found = {name for name in self.imports if name == "hyperruntime.exec.execution.Execution"}
        return found | {one for _, one in self.attributes if one in ENGINE_EXECS}

    @property
    def reaches_below(self) -> set[str]:
        """What a module above the runtime uses from below it: engines, processes, private names of
        others.
        """
        found = {name for name in self.imports if is_below(name)}
        return found | {
            one
            for owner, one in self.attributes
            if is_private(one) and owner not in ("self", "cls") and one not in STANDARD_LIBRARY
        }


def is_below(name: str) -> bool:
    """Return whether an imported name is of an engine, of processes, or private."""
    first, *_ = parts = name.split(".")
    of_engine = first in ENGINE_MODULES or first.startswith(
        ("hyperruntime_podman", "hyperruntime_docker")
    )
    private = first.startswith("hyper") and any(map(is_private, parts))
    return of_engine or private or f"{name}.".startswith(HOST_MODULE)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.fixture(scope="module")
def shipped() -> dict[str, Facts]:
    """Return facts about each shipped module that runs on the host, by path."""
    paths = [path for name in SHIPPED for path in sorted((ROOT / name).rglob("*.py"))]
    named = {str(path.relative_to(ROOT)): path for path in paths}
    return {
        name: facts(path.read_text()) for name, path in named.items() if not name.startswith(INSIDE)
    }


def facts(source: str) -> Facts:
    imports: set[str] = set()
    attributes: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            attributes.add((owner, node.attr))
        elif isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return Facts(frozenset(imports), frozenset(attributes))


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
    assert facts(source).names_python


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
    assert shipped[STARTS_PROCESSES[0]].starts_processes
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
    assert facts(source).starts_processes


@pytest.mark.parametrize(
    "source",
    [
        "from hyperruntime.exec.execution import Execution",
        "container.exec_run(['true'])",
        "api.exec_create(1, [])",
    ],
)
def test_a_second_way_to_run_commands_is_found(source: str) -> None:
    assert facts(source).runs_commands


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
    assert facts(source).reaches_below


def test_a_modules_own_private_names_are_allowed() -> None:
    source = (
        "import os\nclass A:\n    def f(self):\n        self._x = os.getpid()\n        return "
        "self._x\n"
    )
    assert not facts(source).starts_processes
    assert not facts(source).reaches_below
