"""Installed drivers of other packages: one that works and several that do not."""

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
from tests.doubles.packages import install_plugin
from tests.params import first_quick

pytestmark = pytest.mark.engine

WORKING = """
from hyperruntime.testing import FakeDriver

class ThrowAwayDriver(FakeDriver):
    name = "throwaway"
"""
# Broken drivers by fault: the module, and words of the reported reason.
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
    """A virtual environment that finds the library of the tests and has its own plugins."""

    prefix: Path

    def install(self, modules: Mapping[str, str]) -> None:
        """Install a package with one driver entry point for each module: the files that pip would
        write.

        Source: PyPA specifications, "Recording installed projects" and "Entry points
        specification".
        """
        (packages,) = self.prefix.glob("lib/python3*/site-packages")
        for name, module in modules.items():
            point = f"[hyperruntime.runtimes]\n{name} = hyperdriver_{name}:ThrowAwayDriver\n"
            install_plugin(packages, f"hyperdriver_{name}", point, module)

    @property
    def python(self) -> Path:
        """The path of its interpreter."""
        return self.prefix / "bin/python"

    def hyperrun(self, *args: str) -> tuple[int, str, str]:
        """Run the command line in the environment; return its exit code and both outputs."""
        # stevedore caches the entry points
        env = {**os.environ, "XDG_CACHE_HOME": str(self.prefix / "cache")}
        command = [str(self.python), "-m", "hyperruntime.cli", *args]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env=env, cwd=self.prefix
        )
        return done.returncode, done.stdout, done.stderr

    def runtimes(self) -> dict[str, dict[str, object]]:
        """Return the rows of `hyperrun runtimes`, by runtime name."""
        code, out, err = self.hyperrun("runtimes", "--json")
        assert code == 0, err
        return {view["runtime"]: view for view in json.loads(out)}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return one environment with all these packages and the library."""
    prefix = tmp_path_factory.mktemp("plugins") / "environment"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True, timeout=60
    )
    (packages,) = prefix.glob("lib/python3*/site-packages")
    ours = [
        sysconfig.get_path("purelib"),
        *(path for path in sys.path if path in site.getsitepackages()),
    ]
    # Python runs .pth lines that begin with `import`; addsitedir also reads .pth files, as of an
    # editable install.
    line = f"import site; list(map(site.addsitedir, {list(dict.fromkeys(ours))!r}))\n"
    (packages / "ours.pth").write_text(line)
    made = Environment(prefix)
    made.install({"throwaway": WORKING, **{name: module for name, (module, _) in BROKEN.items()}})
    return made


@pytest.mark.slow
def test_a_driver_of_another_package_is_found_and_used_by_its_name(
    environment: Environment,
) -> None:
    view = environment.runtimes()["throwaway"]
    assert (view["package"], view["usable"]) == ("hyperdriver-throwaway", True)
    command = ("sh", "-c", "echo from $((6 * 7))")
    code, out, err = environment.hyperrun(
        "--runtime", "throwaway", "exec", "--pids", "none", "--", *command
    )
    assert (code, out) == (0, "from 42\n"), err
    code, out, err = environment.hyperrun("selfcheck", "throwaway", "--only", "transfer.*")
    assert code == 0, out + err


@pytest.mark.slow
def test_plugins_come_after_the_shipped_drivers_in_the_order_of_auto(
    environment: Environment,
) -> None:
    names = list(environment.runtimes())
    ours = [name for name in AUTO_ORDER if name in names]
    assert names[: len(ours)] == ours
    assert {"throwaway", *BROKEN} <= set(names[len(ours) : -2])
    assert names[-2:] == ["bubblewrap", "charliecloud"]


def test_broken_drivers_are_reported_and_working_ones_still_run(environment: Environment) -> None:
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


@pytest.mark.parametrize("name", first_quick(*BROKEN))
def test_selecting_a_broken_driver_names_its_package_in_the_error(
    environment: Environment, name: str
) -> None:
    code, _, err = environment.hyperrun("--runtime", name, "exec", "--", "true")
    assert code == 3
    assert f"hyperdriver-{name}" in err
    assert BROKEN[name][1] in err
    assert len(err.strip().splitlines()) == 1
