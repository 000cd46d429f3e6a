"""The cost of importing the package, and what its source text must not contain."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from configparser import ConfigParser
from functools import cache
from pathlib import Path

import attrs
import pytest
import yaml

from tests.release import extras

ROOT = Path(__file__).parents[2]
# The only files that may import a module with a fixed home; any other import breaks STYLE 4.2.
HOMES = {
    "subprocess": ("hyperruntime/host/process.py",),
    "stevedore": ("hyperruntime/registry.py",),
    "click": ("hyperruntime/cli/",),
    "podman": ("runtimes/hyperruntime_podman/",),
    "docker": ("runtimes/hyperruntime_docker/", "hyperruntime/images/older_builders.py"),
    "openai": (),
    "parsl": ("hyperruntime/cluster/launchers/parsl.py",),
    "ray": ("hyperruntime/cluster/launchers/ray.py",),
    "dotenv": ("hyperruntime/secrets/env_file.py",),
    "aiohttp": (
        "hyperruntime/cluster/",
        "hyperruntime/gateway/",
        "hyperruntime/ports/http_connection.py",
        "hyperruntime/report/live/",
        "hyperruntime/rollout/models/",
        "hyperruntime/serve/",
        "hyperruntime/testing/",
        "hyperruntime/wire/",
        "hyperruntime/trainers/",
        "trainers/hypertrainer_grpo/",
    ),
    "h11": ("hyperruntime/egress/",),
    "scipy": ("hyperruntime/report/study/significance.py",),
    "trackio": ("hyperruntime/loop/loggers/wandb_api.py",),
    "wandb": ("hyperruntime/loop/loggers/wandb_api.py",),
    "torch": ("containers/genesis/", "domains/", "trainers/hypertrainer_grpo/"),
    "hyperruntime_podman": ("runtimes/hyperruntime_podman/",),
    "minigrid": ("domains/hyperdomain_babyai/",),
    "minihack": ("domains/hyperdomain_nethack/",),
    "nle": ("domains/hyperdomain_nethack/",),
    "hyperdomain_babyai": ("domains/hyperdomain_babyai/",),
    "hyperdomain_math": ("domains/hyperdomain_math/",),
    "hyperdomain_nethack": ("domains/hyperdomain_nethack/",),
    "hyperdomain_original": ("domains/hyperdomain_original/",),
    "hyperdomain_polyglot": ("domains/hyperdomain_polyglot/",),
    "hyperdomain_table": ("domains/hyperdomain_original/", "domains/hyperdomain_table/"),
    "hyperdomain_worlds": (
        "domains/hyperdomain_babyai/",
        "domains/hyperdomain_nethack/",
        "domains/hyperdomain_worlds/",
    ),
    "hyperdomain_genesis": ("domains/hyperdomain_genesis/",),
    "hyperdomain_training": (
        "domains/hyperdomain_genesis/",
        "domains/hyperdomain_speedrun/",
        "domains/hyperdomain_training/",
    ),
    "genesis": ("containers/genesis/",),
    "robot": ("domains/hyperdomain_genesis/",),
    "rsl_rl": ("domains/hyperdomain_genesis/",),
    "hyperdomain_speedrun": ("domains/hyperdomain_speedrun/",),
    "hyperenvironment_swe": ("environments/hyperenvironment_swe/",),
    "inspect_ai": ("integrations/hyperruntime_inspect_ai/",),
    "minisweagent": ("integrations/hyperruntime_mini_swe_agent/",),
    "deepagents": ("integrations/hyperruntime_deepagents/",),
    "agents": ("integrations/hyperruntime_openai_agents/",),
    "smolagents": ("integrations/hyperruntime_smolagents/",),
    "mcp": ("integrations/hyperruntime_mcp/",),
    "mcp_types": ("integrations/hyperruntime_mcp/",),
    "starlette": ("integrations/hyperruntime_mcp/",),
    "uvicorn": ("integrations/hyperruntime_mcp/",),
    "swerex": ("integrations/hyperruntime_swe_rex/",),
    "pydantic": ("integrations/",),
}
# A module of one concept may grow past 400 lines: a part that is split off only for a limit is
# harder to find.
MODULE_LINES = 600
FUNCTION_LINES = 80
INTEGRATION_LINES = 600
HEAVY = (
    "podman",
    "docker",
    "openai",
    "torch",
    "parsl",
    "rich",
    "stevedore",
    "click",
    "requests",
    "aiohttp",
    "h11",
    "inspect_ai",
    "minisweagent",
    "deepagents",
    "agents",
    "smolagents",
    "mcp",
    "pytest",
    "swerex",
    "pydantic",
)


def run(*args: str | Path, cwd: Path) -> str:
    """Run a command without this process's import settings and return its stdout; fail if the
    command fails.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(arg) for arg in args], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{args}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_importing_loads_no_sdk_and_starts_no_thread_and_no_process(tmp_path: Path) -> None:
    script = """
import json, os, sys, threading
import hyperruntime
children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
modules = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps([modules, threading.active_count(), children]))
"""
    modules, threads, children = json.loads(run(sys.executable, "-I", "-c", script, cwd=tmp_path))
    assert set(modules) & set(HEAVY) == set()
    assert (threads, children) == (1, [])


@pytest.mark.parametrize("module", ["hyperruntime", "hyperruntime.cli.app"])
def test_importing_loads_nothing_that_only_an_extra_brings(module: str, tmp_path: Path) -> None:
    # so that an import that tolerates a missing module would load something
    for name in extras.foreign():
        (tmp_path / f"{name}.py").touch()
    script = (
        f"import json, sys; sys.path.insert(0, sys.argv[1]); import {module}; "
        "print(json.dumps(list(sys.modules)))"
    )
    loaded = json.loads(run(sys.executable, "-I", "-c", script, tmp_path, cwd=tmp_path))
    assert module in loaded
    assert set(loaded) & extras.foreign() == set()


def test_the_stage_of_extras_has_every_extra() -> None:
    config = ConfigParser(delimiters="=")
    config.read(ROOT / "setup.cfg")
    assert set(extras.MODULES) == set(config["options.extras_require"])


@cache
def modules() -> list[Path]:
    """Return our modules with the agent templates, but without the repositories that agents must
    repair.
    """
    folders = ("hyperruntime", "runtimes", "domains", "environments", "trainers", "integrations")
    found = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "tasks" not in path.parts
    ]
    assert found
    return sorted(found)


def is_template(path: Path) -> bool:
    """Return whether a module runs in containers without hyperruntime, as an agent's or a judge's
    does.
    """
    agents = ROOT / "hyperruntime" / "agents"
    return (agents in path.parents and path.parent != agents) or path.parent.name == "inside"


def test_no_module_and_no_function_exceeds_its_length_limit() -> None:
    too_long = []
    for path in modules():
        lines = path.read_text().count("\n")
        if lines > MODULE_LINES:
            too_long.append(f"{path.relative_to(ROOT)}: {lines} lines")
        too_long += read(path).long_functions
    assert too_long == []


def test_no_statement_assigns_unrelated_values() -> None:
    ours = [path for path in modules() if not is_template(path) and "exercises" not in path.parts]
    found = [where for path in ours for where in read(path).unrelated]
    assert found == []


@pytest.mark.filterwarnings("default:.* lines. is it two integrations")
def test_an_integration_that_grows_long_is_named_in_a_warning() -> None:
    folders = [path for path in (ROOT / "integrations").iterdir() if path.is_dir()]
    sizes = {
        path.name: sum(len(file.read_text().splitlines()) for file in path.rglob("*.py"))
        for path in folders
    }
    assert sizes
    for name, size in sizes.items():
        if size > INTEGRATION_LINES:
            warnings.warn(f"{name} has {size} lines: is it two integrations?", stacklevel=1)


def test_continuous_integration_runs_the_tests_of_each_integration() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/integrations.yml").read_text())
    tested = sorted(path.parent.name for path in ROOT.glob("tests/integrations/*/requirements.txt"))
    assert workflow["jobs"]["frameworks"]["strategy"]["matrix"]["name"] == tested


def test_what_integrations_share_imports_no_framework() -> None:
    """What one framework alone needs is in its integration."""
    shared = sorted((ROOT / "hyperruntime/adapters").rglob("*.py"))
    known = {"hyperruntime", "attrs", *sys.stdlib_module_names}
    assert len(shared) > 3
    assert {path.name: found for path in shared if (found := read(path).imports - known)} == {}


def statements(block: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements of a module, without a look into expressions."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(block, field, ()):
            yield inner
            yield from statements(inner)


@attrs.frozen
class Read:
    """The top-level names that a module imports, its long functions, and the statements that assign
    unrelated values.
    """

    imports: set[str]
    long_functions: list[str]
    unrelated: list[str]


@cache
def read(path: Path) -> Read:
    imports: set[str] = set()
    long = []
    unrelated = []
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imports |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports.add(node.module.partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines")
        elif isinstance(node, ast.Assign) and assigns_unrelated(node):
            unrelated.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return Read(imports, long, unrelated)


def assigns_unrelated(node: ast.Assign) -> bool:
    """Return whether a statement assigns several values to several names, and none of the values
    reads one of the names, as those of a swap do.
    """
    (target, *others), value = node.targets, node.value
    if others or not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return False
    every = (*target.elts, *value.elts)
    if len(target.elts) != len(value.elts) or any(isinstance(one, ast.Starred) for one in every):
        return False
    written = {ast.unparse(one) for one in target.elts}
    return written.isdisjoint(
        ast.unparse(one) for one in ast.walk(value) if isinstance(one, ast.expr)
    )


@pytest.mark.parametrize("name", sorted(HOMES))
def test_a_module_with_a_fixed_home_is_imported_only_there(name: str) -> None:
    strangers = [
        str(path.relative_to(ROOT))
        for path in modules()
        if not is_template(path)
        and name in read(path).imports
        and not str(path.relative_to(ROOT)).startswith(HOMES[name])
    ]
    assert strangers == []
