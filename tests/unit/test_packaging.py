"""The published wheel, installed away from the checkout, and the cost of importing it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import sysconfig
import warnings
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from functools import cache
from importlib.metadata import version
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import attrs
import pytest
import yaml

from tests.release import extras

ROOT = Path(__file__).parents[2]
SOURCES = (
    "hyperruntime",
    "runtimes",
    "domains",
    "environments",
    "trainers",
    "integrations",
    "containers",
    "setup.cfg",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)
GROUPS = tuple(
    f"hyperruntime.{kind}"
    for kind in ("runtimes", "domains", "executors", "trainers", "environments", "agents")
)
# The only files that may import a module with a fixed home; any other import breaks STYLE 4.2.
HOMES = {
    "subprocess": ("hyperruntime/host/process.py",),
    "stevedore": ("hyperruntime/registry.py",),
    "click": ("hyperruntime/cli/",),
    "podman": ("runtimes/hyperruntime_podman/",),
    "docker": ("runtimes/hyperruntime_docker/", "hyperruntime/images/copied_files.py"),
    "openai": (),
    "tenacity": ("hyperruntime/concurrency/retry.py",),
    "parsl": ("hyperruntime/cluster/pilots.py",),
    "dotenv": ("hyperruntime/gateway/config/",),
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
    "torch": ("domains/", "trainers/hypertrainer_grpo/"),
    "hyperruntime_podman": ("runtimes/hyperruntime_podman/",),
    "minigrid": ("domains/hyperdomain_babyai/",),
    "hyperdomain_babyai": ("domains/hyperdomain_babyai/",),
    "hyperdomain_circle_packing": ("domains/hyperdomain_circle_packing/",),
    "hyperdomain_polyglot": ("domains/hyperdomain_polyglot/",),
    "hyperdomain_table": ("domains/hyperdomain_table/",),
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

LOAD_ENTRY_POINTS = """
import importlib.metadata, json, sys
found = []
for group in json.loads(sys.argv[1]):
    for entry in importlib.metadata.entry_points(group=group):
        entry.load()
        found.append([group, entry.name, entry.dist.name, sys.modules[entry.module].__file__])
print(json.dumps(found))
"""

FIND_MODULES = """
import importlib.util, json, sys
print(json.dumps([importlib.util.find_spec(name).origin for name in json.loads(sys.argv[1])]))
"""

FIND_DATA = """
import importlib.resources, json, sys
def files(package):
    root = importlib.resources.files(package)
    stack, found = [("", root)], []
    while stack:
        name, here = stack.pop()
        for entry in here.iterdir():
            path = f"{name}{entry.name}"
            stack.append((path + "/", entry)) if entry.is_dir() else found.append(path)
    return sorted(path for path in found if "__pycache__" not in path)
print(json.dumps({name: files(name) for name in json.loads(sys.argv[1])}))
"""


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


@attrs.frozen(kw_only=True)
class Installed:
    """A virtual environment with the wheel, without access to the checkout.

    Attributes:
        wheel: the wheel.
        prefix: the environment's root.
        elsewhere: a directory that is not the checkout.
    """

    wheel: Path
    prefix: Path
    elsewhere: Path

    @property
    def names(self) -> list[str]:
        """Return the names of the files in the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.namelist()

    def python(self, script: str, *args: str) -> Any:
        """Run a script in the environment and return the JSON that it prints."""
        return json.loads(
            run(self.prefix / "bin/python", "-I", "-c", script, *args, cwd=self.elsewhere)
        )


def build_wheel(work: Path) -> Path:
    """Build the wheel from a copy, so that a stale build/ in the checkout cannot hide a missing
    file.
    """
    source, wheels = work / "source", work / "wheels"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            copytree(
                ROOT / name, source / name, ignore=ignore_patterns("__pycache__", "*.egg-info")
            )
        else:
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    if not needs_newer_setuptools():
        pip.append("--no-build-isolation")
    run(*pip, "--wheel-dir", wheels, source, cwd=work)
    (wheel,) = wheels.glob("*.whl")
    return wheel


def needs_newer_setuptools() -> bool:
    """Return whether pip must fetch a setuptools for the build (from 70.1 on, it builds without
    `wheel`).
    """
    try:
        return tuple(int(part) for part in version("setuptools").split(".")[:2]) < (70, 1)
    except LookupError:
        return True


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheel and install it; its dependencies come from the environment that runs the
    tests.
    """
    work = tmp_path_factory.mktemp("packaging")
    wheel, prefix, elsewhere = build_wheel(work), work / "a venv's place", work / "elsewhere"
    elsewhere.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", prefix, cwd=work)
    into = ("--python", prefix / "bin/python")
    run(
        sys.executable,
        "-m",
        "pip",
        *into,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=work,
    )
    (packages,) = prefix.glob("lib/python3*/site-packages")
    # Directories in a .pth file are searched last; .pth files in them, such as an editable
    # install's, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(wheel=wheel, prefix=prefix, elsewhere=elsewhere)


def declared_entry_points() -> Iterator[tuple[str, str]]:
    config = ConfigParser(delimiters="=")
    config.read(ROOT / "setup.cfg")
    for group in GROUPS:
        for line in config["options.entry_points"][group].strip().splitlines():
            yield group, line.partition("=")[0].strip()


def test_every_entry_point_loads_from_the_wheel(installed: Installed) -> None:
    found = installed.python(LOAD_ENTRY_POINTS, json.dumps(GROUPS))
    ours = {
        (group, name): file
        for group, name, distribution, file in found
        if distribution == "hyperruntime"
    }
    assert set(ours) == set(declared_entry_points())
    assert {file for file in ours.values() if not file.startswith(str(installed.prefix))} == set()


@pytest.mark.parametrize("program", ["hyperrun", "hyperruntime"])
def test_the_command_works_from_the_wheel(installed: Installed, program: str) -> None:
    assert "generate" in run(installed.prefix / "bin" / program, "--help", cwd=installed.elsewhere)


def test_the_modules_that_are_run_by_name_come_from_the_wheel(installed: Installed) -> None:
    modules = [
        f"hyperruntime.{name}"
        for name in ("cli.__main__", "cluster.with_parent", "cluster.with_children")
    ]
    modules += [
        "hyperruntime_apptainer.cleanup",
        "hyperruntime_docker.cleanup",
        "hyperruntime_docker.reclaim",
    ]
    found = installed.python(FIND_MODULES, json.dumps(modules))
    assert [
        name
        for name, file in zip(modules, found, strict=True)
        if not file.startswith(str(installed.prefix))
    ] == []


def test_every_module_of_the_checkout_is_in_the_wheel(installed: Installed) -> None:
    here = {
        str(path.relative_to(base))
        for base in (
            ROOT,
            *(
                ROOT / name
                for name in ("runtimes", "domains", "environments", "trainers", "integrations")
            ),
        )
        for path in base.glob("hyper*/**/*.py")
    }
    assert here - set(installed.names) == set()


def test_the_wheel_contains_every_image_recipe(installed: Installed) -> None:
    found = installed.python(FIND_DATA, '["hyperruntime_images"]')["hyperruntime_images"]
    here = {
        str(path.relative_to(ROOT / "containers"))
        for path in ROOT.glob("containers/*/*")
        if path.is_file()
    }
    assert "base/Containerfile" in found
    assert {path for path in here if "__pycache__" not in path} - set(found) == set()


def test_the_wheel_contains_all_agent_templates_and_scripts(installed: Installed) -> None:
    found = installed.python(FIND_DATA, '["hyperruntime"]')["hyperruntime"]
    here = {
        str(path.relative_to(ROOT / "hyperruntime"))
        for pattern in ("agents/*/**/*", "**/*.sh")
        for path in ROOT.joinpath("hyperruntime").glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert any(name.endswith("task_agent.py") for name in here)
    assert here - set(found) == set()


def test_the_wheel_contains_all_files_that_domains_and_environments_read(
    installed: Installed,
) -> None:
    folders = {
        "domains/hyperdomain_polyglot": "exercises",
        "domains/hyperdomain_table": "sample",
        "environments/hyperenvironment_swe": "tasks",
    }
    found = installed.python(FIND_DATA, json.dumps([Path(place).name for place in folders]))
    for place, folder in folders.items():
        root, package = ROOT / place, Path(place).name
        here = {
            str(path.relative_to(root)) for path in (root / folder).rglob("*") if path.is_file()
        }
        assert here
        assert {path for path in here if "__pycache__" not in path} - set(found[package]) == set()


def test_every_package_has_a_py_typed_marker(installed: Installed) -> None:
    packages = {name.partition("/")[0] for name in installed.names if name.endswith(".py")} - {
        "hyperruntime_images"
    }
    assert {name for name in packages if f"{name}/py.typed" not in installed.names} == set()


def test_the_wheel_installs_only_our_own_top_level_names(installed: Installed) -> None:
    top_level = {name.partition("/")[0] for name in installed.names}
    assert {name for name in top_level if not name.startswith("hyper")} == set()


def test_the_wheel_contains_the_license(installed: Installed) -> None:
    assert any(name.endswith("/LICENSE") and ".dist-info/" in name for name in installed.names)


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
        text = path.read_text()
        lines = text.count("\n")
        if lines > MODULE_LINES:
            too_long.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    too_long.append(
                        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines"
                    )
    assert too_long == []


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
    assert {path.name: found for path in shared if (found := imported_names(path) - known)} == {}


@cache
def imported_names(path: Path) -> set[str]:
    """Return the top-level names that a module imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("name", sorted(HOMES))
def test_a_module_with_a_fixed_home_is_imported_only_there(name: str) -> None:
    strangers = [
        str(path.relative_to(ROOT))
        for path in modules()
        if not is_template(path)
        and name in imported_names(path)
        and not str(path.relative_to(ROOT)).startswith(HOMES[name])
    ]
    assert strangers == []
