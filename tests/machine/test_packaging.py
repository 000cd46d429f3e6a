"""The published wheel, installed away from the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
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
    modules = [f"hyperruntime.{name}" for name in ("cli.__main__", "cluster.node_job")]
    modules += [
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
