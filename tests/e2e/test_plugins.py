"""Drivers of other packages: one that works and some that do not, installed by pip beside the library."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest

from hyperruntime.registry import AUTO_ORDER

pytestmark = pytest.mark.engine

WORKING = """
from hyperruntime.testing import FakeDriver

class ThrowAwayDriver(FakeDriver):
    name = "throwaway"
"""
# What is wrong with a package's driver: its module, and a word of what is said of it.
BROKEN = {
    "imports": ("import a_package_that_nobody_has", "a_package_that_nobody_has"),
    "classless": ("ThrowAwayDriver = 3", "not callable"),
    "unmade": (
        "class ThrowAwayDriver:\n    def __init__(self):\n        raise OSError('no such socket')",
        "no such socket",
    ),
    "unprobed": (f"{WORKING}\n    def probe(self):\n        return 1 / 0", "division by zero"),
    "empty": ("class ThrowAwayDriver:\n    name = 'empty'", "no attribute"),
    "exits": ("raise SystemExit('configure me first')", "configure me first"),
}


@attrs.frozen
class Environment:
    """A virtual environment that finds the library where the tests do, and has plugins of its own."""

    prefix: Path

    def install(self, modules: Mapping[str, str]) -> None:
        """Make a package of each module, with one driver named as its entry point, and install them."""
        sources = [make_package(self.prefix / "sources" / name, name, module) for name, module in modules.items()]
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-deps"]
        done = subprocess.run([*pip, *sources], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.prefix / "bin/python"

    def hyperrun(self, *args: str) -> tuple[int, str, str]:
        """Run the command line there; return its exit code and both outputs."""
        env = {**os.environ, "XDG_CACHE_HOME": str(self.prefix / "cache")}  # stevedore keeps what it found
        command = [str(self.python), "-m", "hyperruntime.cli", *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, cwd=self.prefix)
        return done.returncode, done.stdout, done.stderr

    def runtimes(self) -> dict[str, dict[str, object]]:
        """Return what `hyperrun runtimes` says, by name."""
        code, out, err = self.hyperrun("runtimes", "--json")
        assert code == 0, err
        return {view["runtime"]: view for view in json.loads(out)}


def make_package(folder: Path, name: str, module: str) -> str:
    """Write what pip installs as ``hyperdriver-NAME``."""
    folder.mkdir(parents=True)
    (folder / f"hyperdriver_{name}.py").write_text(module)
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "hyperdriver-{name}"\nversion = "1"\n'
        f'[tool.setuptools]\npy-modules = ["hyperdriver_{name}"]\n'
        f'[project.entry-points."hyperruntime.runtimes"]\n{name} = "hyperdriver_{name}:ThrowAwayDriver"\n'
    )
    return str(folder)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """One environment with all of them, beside the library."""
    prefix = tmp_path_factory.mktemp("plugins") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True, timeout=60)
    (packages,) = prefix.glob("lib/python3*/site-packages")
    ours = [sysconfig.get_path("purelib"), *(path for path in sys.path if path in site.getsitepackages())]
    # A line that begins with `import` is run; addsitedir reads .pth files there too, such as an editable install's.
    line = f"import site; list(map(site.addsitedir, {list(dict.fromkeys(ours))!r}))\n"
    (packages / "ours.pth").write_text(line)
    made = Environment(prefix)
    made.install({"throwaway": WORKING, **{name: module for name, (module, _) in BROKEN.items()}})
    return made


def test_a_driver_of_another_package_is_found_and_used_by_its_name(environment: Environment) -> None:
    view = environment.runtimes()["throwaway"]
    assert (view["package"], view["usable"]) == ("hyperdriver-throwaway", True)
    command = ("sh", "-c", "echo from $((6 * 7))")
    code, out, err = environment.hyperrun("--runtime", "throwaway", "exec", "--pids", "none", "--", *command)
    assert (code, out) == (0, "from 42\n"), err
    code, out, err = environment.hyperrun("selfcheck", "throwaway", "--only", "transfer.*")
    assert code == 0, out + err


def test_plugins_come_last_in_the_order_of_auto(environment: Environment) -> None:
    names = list(environment.runtimes())
    ours = [name for name in AUTO_ORDER if name in names]
    assert names[: len(ours)] == ours
    assert {"throwaway", *BROKEN} <= set(names[len(ours) : -1])
    assert names[-1] == "bubblewrap"


def test_broken_drivers_are_reported_and_all_else_works(environment: Environment) -> None:
    views = environment.runtimes()
    code, out, _ = environment.hyperrun("runtimes")
    assert code == 0
    for name, (_, words) in BROKEN.items():
        assert views[name]["usable"] is False
        assert words in str(views[name]["why_not"])
        assert f"hyperdriver-{name}" in str(views[name]["why_not"])
        assert words in out
    assert views["podman"]["usable"] is True
    code, out, err = environment.hyperrun("--runtime", "podman", "exec", "--", "echo", "fine")
    assert (code, out) == (0, "fine\n"), err


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_driver_that_is_asked_for_is_blamed_by_its_package(environment: Environment, name: str) -> None:
    code, _, err = environment.hyperrun("--runtime", name, "exec", "--", "true")
    assert code == 3
    assert f"hyperdriver-{name}" in err
    assert BROKEN[name][1] in err
    assert len(err.strip().splitlines()) == 1
