"""Drivers of other packages: one that works and some that do not, installed by pip beside the library."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from hyperruntime.registry import AUTO_ORDER

pytestmark = pytest.mark.engine

Install = Callable[[str, str], None]

WORKING = """
from hyperruntime.testing import FakeDriver

class ThrowAwayDriver(FakeDriver):
    name = "throwaway"
"""


@attrs.frozen
class Environment:
    """A virtual environment that finds the library where the tests do, and has plugins of its own."""

    prefix: Path

    def install(self, name: str, module: str) -> None:
        """Make a package with one driver, named as its entry point, and install it."""
        source = self.prefix / "sources" / name
        source.mkdir(parents=True)
        (source / f"hyperdriver_{name}.py").write_text(module)
        (source / "pyproject.toml").write_text(
            f'[project]\nname = "hyperdriver-{name}"\nversion = "1"\n'
            f'[tool.setuptools]\npy-modules = ["hyperdriver_{name}"]\n'
            f'[project.entry-points."hyperruntime.runtimes"]\n{name} = "hyperdriver_{name}:ThrowAwayDriver"\n'
        )
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-deps"]
        done = subprocess.run([*pip, str(source)], capture_output=True, text=True, timeout=200)
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


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """A fresh one."""
    prefix = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True, timeout=60)
    (packages,) = prefix.glob("lib/python3*/site-packages")
    ours = [sysconfig.get_path("purelib"), *(path for path in sys.path if path in site.getsitepackages())]
    # A line that begins with `import` is run; addsitedir reads .pth files there too, such as an editable install's.
    (packages / "ours.pth").write_text(f"import site; list(map(site.addsitedir, {list(dict.fromkeys(ours))!r}))\n")
    return Environment(prefix)


def test_a_driver_of_another_package_is_found_and_used_by_its_name(environment: Environment) -> None:
    environment.install("throwaway", WORKING)
    view = environment.runtimes()["throwaway"]
    assert (view["package"], view["usable"]) == ("hyperdriver-throwaway", True)
    code, out, err = environment.hyperrun(
        "--runtime", "throwaway", "exec", "--pids", "none", "--", "sh", "-c", "echo from $((6 * 7))"
    )
    assert (code, out) == (0, "from 42\n"), err
    code, out, err = environment.hyperrun("selfcheck", "throwaway", "--only", "exec.*")
    assert code == 0, out + err


def test_plugins_come_last_in_the_order_of_auto(environment: Environment) -> None:
    environment.install("aaa", WORKING.replace("throwaway", "aaa"))
    names = list(environment.runtimes())
    ours = [name for name in AUTO_ORDER if name in names]
    assert names[: len(ours)] == ours
    assert "aaa" in names[len(ours) :]


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("import a_package_that_nobody_has", "a_package_that_nobody_has"),
        ("ThrowAwayDriver = 3", "not callable"),
        ("class ThrowAwayDriver:\n    def __init__(self):\n        raise OSError('no such socket')", "no such socket"),
        (f"{WORKING}\n    def probe(self):\n        return 1 / 0", "division by zero"),
        ("class ThrowAwayDriver:\n    name = 'broken'", "no attribute"),
        ("raise SystemExit('configure me first')", "configure me first"),
    ],
    ids=["import", "no-class", "constructor", "probe", "empty", "exits"],
)
def test_a_broken_driver_is_reported_and_all_else_works(environment: Environment, module: str, words: str) -> None:
    environment.install("broken", module)
    views = environment.runtimes()
    assert views["broken"]["usable"] is False
    assert words in str(views["broken"]["why_not"])
    assert "hyperdriver-broken" in f"{views['broken']['why_not']} {views['broken']['next_step']}"
    assert views["podman"]["usable"] is True
    code, out, _ = environment.hyperrun("runtimes")
    assert code == 0
    assert words in out
    code, out, err = environment.hyperrun("--runtime", "broken", "exec", "--", "true")
    assert code == 3
    assert "hyperdriver-broken" in err
    assert len(err.strip().splitlines()) == 1
    code, out, err = environment.hyperrun("--runtime", "podman", "exec", "--", "echo", "fine")
    assert (code, out) == (0, "fine\n"), err
