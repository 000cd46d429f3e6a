"""The program that runs tests in a judge's container, tested without a container."""

from __future__ import annotations

import json
import os
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from hyperenvironment_swe.judging import Ended, Findings, read_report
from hyperruntime.host.process import run_process

SECRET, CONTROLS = "0123456789abcdef", ["test_c1", "test_c2", "test_c3", "test_c4"]
CASES = """
import unittest
import pytest
from thing import double

@pytest.fixture(params=[1, 2])
def number(request):
    return request.param

def test_double(number):
    assert double(number) == 2 * number

@pytest.fixture
def broken():
    yield
    assert False

def test_teardown(broken):
    pass

class TestCase(unittest.TestCase):
    def test_method(self):
        self.assertEqual(double(2), 4)

    def test_subtests(self):
        for n in (1, 2):
            with self.subTest(n=n):
                self.assertEqual(double(n), 3 * n if n == 2 else 2)
"""
GOOD = ["test_case.py::test_double[1]", "test_case.py::test_double[2]", "test_case.py::TestCase::test_method"]


def launch(where: Path, ids: list[str], runner: str = "pytest", settings: tuple[str, str] = (".ini", "")) -> Findings:
    """Run tests by id in a directory and return the findings."""
    asked = {
        "ids": ids, "secret": SECRET, "controls": CONTROLS, "runner": runner, "settings": settings, "own_plugins": False
    }  # fmt: skip
    source = resources.files("hyperenvironment_swe").joinpath("inside", "launch.py").read_text()
    shell = 'exec 9>report; exec "$@"'
    args = ["/bin/sh", "-c", shell, "launch", sys.executable, "-c", source, "9"]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}
    done = run_process(args, input=json.dumps(asked).encode(), cwd=where, env=env)
    ended = Ended(
        exit_code=done.exit_code,
        timed_out=False,
        output=(done.stdout + done.stderr).decode(),
        report=(where / "report").read_text(),
    )
    return read_report(ended, SECRET, ids, CONTROLS)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a directory with a module and its tests."""
    (tmp_path / "thing.py").write_text("def double(n):\n    return n + n\n")
    (tmp_path / "test_case.py").write_text(CASES)
    return tmp_path


@pytest.mark.parametrize(
    "settings",
    [
        ("", ".ini"),
        ("[pytest]\naddopts = -x -p no:randomly --strict-markers\npython_functions = test_*\n", ".ini"),
        (
            "[tool.pytest.ini_options]\naddopts = '--maxfail=1 -k \"not nothing\"'\nfilterwarnings = ['error']\n",
            ".toml",
        ),
        ("[tool:pytest]\naddopts = --exitfirst --doctest-modules\n", ".cfg"),
    ],
)
def test_the_settings_of_the_repository_apply_and_controls_fail_with_them(
    tree: Path, settings: tuple[str, str]
) -> None:
    """The run does not stop at the first failure, which is that of a control."""
    content, suffix = settings
    bad = ["test_case.py::test_teardown", "test_case.py::TestCase::test_subtests"]
    found = launch(tree, [*GOOD, *bad], settings=(suffix, content))
    assert found.passed == set(GOOD), found
    assert not found.forged
    assert "assert False" in found.problems["test_case.py::test_teardown"]


def test_unittest_runs_the_same_ids(tree: Path) -> None:
    """It works without pytest; an id that is not a method of a TestCase is reported."""
    ids = [
        "test_case.py::TestCase::test_method",
        "test_case.py::TestCase::test_subtests",
        "test_case.py::TestCase::gone",
    ]
    found = launch(tree, ids, runner="unittest")
    assert found.passed == {ids[0]}
    assert not found.forged
    assert "gone" in found.problems[ids[2]]


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_a_program_that_makes_all_tests_pass_is_detected(tree: Path, runner: str) -> None:
    """W22: a patch of the runner makes the controls pass too."""
    patch = "import unittest\nunittest.TestCase._callTestMethod = lambda self, method: None\n"
    if runner == "pytest":
        patch += "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
    with (tree / "thing.py").open("a") as file:
        file.write(patch)
    ids = ["test_case.py::TestCase::test_method"]
    found: Any = launch(tree, ids, runner=runner)
    assert found.forged
