"""Type checkers refuse wrong uses of the public names, and accept right ones: the package says that
it has types.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime import gateway

ROOT = Path(__file__).parents[2]
WRONG = {
    "a name that does not exist": "hr.NoSuchThing",
    "an error that is not a public name": "try:\n    hr.open_runtime()\nexcept hr.ExecTimeoutError: pass",
    "a name of a package that does not exist": "gateway.NoSuchThing",
    "an import of a name that does not exist": "from hyperruntime import NoSuchThing as Absent",
    "an attribute that does not exist": "runtime.no_such_method()",
    "an image in place of a spec": "runtime.container('base')",
    "an image in place of a spec, async": "runtime.acontainer('base')",
    "a field that does not exist": "hr.ContainerSpec(image='base', memory=1)",
    "an image that is a number": "hr.ContainerSpec(image=1)",
    "a network that does not exist": "hr.ContainerSpec(image='base', network='lan')",
    "GPUs as a number": "hr.ContainerSpec(image='base', gpus=2)",
    "mounts as texts": "hr.ContainerSpec(image='base', mounts=['/data:/data'])",
    "an environment of numbers": "hr.ContainerSpec(image='base', env={'N': 1})",
    "the source of a mount as a number": "hr.Mount(source=1, target='/data')",
    "a limit as a text": "hr.Limits(memory_bytes='1g')",
    "a command of numbers": "container.exec([1, 2])",
    "a text from bytes": "text: str = container.exec(['true']).stdout",
    "tools as one text": "hr.ToolPolicy(tools='bash')",
    "roots as a number": "hr.ToolPolicy(file_roots=1)",
    "a domain as a number": "GenerateOptions(domains=1)",
    "lines of a job as a text": "hr.ClusterConfig(setup='module load apptainer')",
    "upstreams as texts": "hr.GatewayConfig(upstreams=['a'], models=[])",
    "a verb that no sandbox has": "sandbox.exce(['true'])",
    "a pool that is a number": "hr.PoolManager(lambda config: 3, profiles)",
    "a container where an event loop runs": "async_only: hr.Sandbox = container",
    "models as texts": "hr.GatewayConfig(upstreams=[], models=['a'])",
    "a misspelled member of an environment": (
        "class Slow(EnvironmentBase):\n"
        "    @override\n"
        "    def time_limits_s(self, item: Item) -> float | None: return 60.0"
    ),
    "a misspelled member of a domain": (
        "class Clean(DomainBase):\n"
        "    @override\n"
        "    def picture_pgn(self, task: Task, prediction: object) -> bytes | None: return None"
    ),
    "a member of an environment with another type": (
        "class Few(EnvironmentBase):\n    slots_per_container = 'two'"
    ),
    "a member of a domain with another type": (
        "class Busy(DomainBase):\n    parallel_tasks = 'yes'"
    ),
    "the use of a member that environments do not have": "environment.time_limits_s",
    "the use of a member that domains do not have": "domain.tasks_in_parallel",
}
RIGHT = """
try:
    spec = hr.ContainerSpec(image="base", gpus=["0"], mounts=[hr.Mount(source=Path("/data"), target="/data")])
    data: bytes = runtime.container(spec, labels={"a": "b"}).exec(["true"]).stdout
except hr.HyperRuntimeError:
    pass
hr.ToolPolicy(tools=["bash"], file_roots=("/data",))
hr.ToolPolicy(tools=None)
hr.PoolManager(lambda config: hr.SlotPool(runtime, config), profiles)
blocking: hr.BlockingSandbox = container
pools: list[type[hr.Pool]] = [hr.SlotPool, hr.ClusterPool]
leases: list[type[hr.Sandbox]] = [hr.Lease]
hr.GatewayConfig(upstreams=[], models=())
hr.ClusterConfig(setup=("module load apptainer",))
GenerateOptions(domains="table")
GenerateOptions(domains=["table", "polyglot"])
class Shared(EnvironmentBase):
    slots_per_container = 8
    @override
    def time_limit_s(self, item: Item) -> float | None: return 60.0
class Parallel(DomainBase):
    parallel_tasks = True
"""
HEAD = """
from pathlib import Path

import hyperruntime as hr
from hyperruntime import gateway
from hyperruntime.domain import DomainBase, Task
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.rollout.environment import EnvironmentBase, Item
from typing_extensions import override


def use(
    runtime: hr.Runtime,
    container: hr.Container,
    sandbox: hr.Sandbox,
    profiles: hr.Profiles,
    environment: EnvironmentBase,
    domain: DomainBase,
) -> None:
"""


def indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.strip().splitlines())


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[str]]]:
    """The errors of each type checker in one file of all uses, by use."""
    uses = {"right": RIGHT, **WRONG}
    text, use_of = HEAD, {}
    for name, code in uses.items():
        first = text.count("\n")
        text += indented(code)
        use_of.update(dict.fromkeys(range(first + 1, text.count("\n") + 1), name))
    path = tmp_path_factory.mktemp("uses") / "uses.py"
    path.write_text(text)
    found = {}
    for checker, lines in {"mypy": run_mypy(path), "pyright": run_pyright(path)}.items():
        found[checker] = {
            name: [said for line, said in lines if use_of.get(line, "head") == name]
            for name in uses
        }
        assert not [said for line, said in lines if line not in use_of]
    return found


def run_mypy(path: Path) -> list[tuple[int, str]]:
    args = [
        "-m",
        "mypy",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--output",
        "json",
        "--cache-dir",
        str(path.parent / "cache"),
        str(path),
    ]
    done = subprocess.run([sys.executable, *args], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 1, done.stderr.decode()
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {os.path.realpath(one["file"]) for one in found} == {str(path)}
    return [(one["line"], one["message"]) for one in found if one["severity"] == "error"]


def run_pyright(path: Path) -> list[tuple[int, str]]:
    """Run pyright, with the Node.js of its package: it downloads nothing."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    args = ["-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(path)]
    done = subprocess.run(
        [sys.executable, *args], cwd=path.parent, env=env, capture_output=True, check=False
    )
    assert done.returncode == 1, done.stderr.decode()
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (one["range"]["start"]["line"] + 1, one["message"])
        for one in found
        if one["severity"] == "error"
    ]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_refuses_every_wrong_use_and_no_right_one(
    errors: dict[str, dict[str, list[str]]], checker: str
) -> None:
    assert errors[checker]["right"] == []
    assert [name for name in WRONG if not errors[checker][name]] == []


def test_public_names_are_known_to_dir_and_others_raise() -> None:
    assert dir(hr) == sorted(hr.__all__)
    for package in (hr, gateway):
        assert set(package.__all__) <= set(dir(package))
        with pytest.raises(AttributeError, match="has no attribute 'NoSuchThing'"):
            getattr(package, "NoSuchThing")  # noqa: B009 - a type checker refuses the other form
