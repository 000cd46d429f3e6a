"""The program that runs tests in a judge's container, tested without a container."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import pytest

from hyperenvironment_swe.controls import failing, make_controls
from hyperenvironment_swe.judging import UNKNOWN_TEST, Findings, Trial, read_answer, read_findings
from hyperenvironment_swe.locate import is_cut
from hyperruntime.host.process import run_process
from tests import forgeries
from tests.params import first_quick

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


def judge(
    where: Path,
    ids: Sequence[str],
    runner: str = "pytest",
    settings: tuple[str, str] = (".ini", ""),
    *,
    per_process: int = 1,
    install: str = "",
    plugins: bool = False,
    plan: Callable[[Trial], Trial] = lambda trial: trial,
) -> Findings:
    """Judge a directory as a container's, but with the user of this process; return the findings."""
    suffix, content = settings
    files = {path: (where / path).read_text() for path in sorted({name.partition("::")[0] for name in ids})}
    trial = plan(
        Trial(
            install=install,
            ids=tuple(ids),
            cut=frozenset(filter(is_cut, ids)),
            controls=tuple(make_controls(ids, (), files, 4)),
            files={**files, f".settings{suffix}": content},
            common={"runner": runner, "settings": f".settings{suffix}", "own_plugins": False},
            python=sys.executable,
            per_process=per_process,
            timeout_s=60,
        )
    )
    runs = trial.runs()
    env = {"HOME": str(where / "home"), "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env["HYPOTHESIS_NO_PLUGINS"] = "1"  # trio's makes hypothesis warn, which is an error with some settings here
    asked = {"tree": str(where), "home": str(where / "home"), "gone": [], "env": env, **trial.question(runs)}
    source = resources.files("hyperenvironment_swe").joinpath("inside", "judge.py").read_text()
    question = json.dumps({**asked, "secret": "0123"}).encode()
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "" if plugins else "1"}
    done = run_process([sys.executable, "-I", "-S", "-c", source], input=question, cwd="/", env=environment)
    answer = read_answer(done.stdout, "0123")
    assert answer is not None, (done.stdout[-500:], done.stderr[-2000:])
    return read_findings(answer, runs)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a directory with a module and its tests."""
    (tmp_path / "thing.py").write_text("def double(n):\n    return n + n\n")
    (tmp_path / "test_case.py").write_text(CASES)
    return tmp_path


@pytest.mark.parametrize(
    ("suffix", "content"),
    first_quick(
        (
            ".toml",
            "[tool.pytest.ini_options]\naddopts = '--maxfail=1 -k \"not nothing\"'\nfilterwarnings = ['error']\n",
        ),
        (".ini", ""),
        (".ini", "[pytest]\naddopts = -x -p no:randomly --strict-markers\npython_functions = test_*\n"),
        (".cfg", "[tool:pytest]\naddopts = --exitfirst --doctest-modules\n"),
    ),
)
def test_the_settings_of_the_repository_apply_and_controls_fail_with_them(
    tree: Path, suffix: str, content: str
) -> None:
    """The run does not stop at the first failure, which is that of a control."""
    bad = ["test_case.py::test_teardown", "test_case.py::TestCase::test_subtests"]
    found = judge(tree, [*GOOD, *bad], settings=(suffix, content))
    assert found.passed == set(GOOD), found
    assert not found.unfailed
    assert "assert False" in found.problems["test_case.py::test_teardown"]


@pytest.mark.slow
def test_installed_plugins_of_pytest_are_loaded_and_do_no_harm(tree: Path) -> None:
    """Those of this environment, hypothesis and xdist among them, which take seconds in each process."""
    (tree / "test_plugin.py").write_text(
        "def test_loaded(pytestconfig):\n    assert pytestconfig.getoption('numprocesses') == 0\n"
    )
    assert judge(tree, ["test_plugin.py::test_loaded"], plugins=True).passed == {"test_plugin.py::test_loaded"}


PARAMETERS = """
import pytest

@pytest.mark.parametrize("word", ["a b", "a c", "d e"])
def test_word(word):
    assert word != "d e"
"""


def test_an_id_that_is_cut_means_all_tests_that_begin_so(tree: Path) -> None:
    """One that means no test is unknown, whatever the other tests of the function do."""
    (tree / "test_words.py").write_text(PARAMETERS)
    ids = [f"test_words.py::test_word[{start}" for start in ("a", "d", "x")]
    found = judge(tree, [*ids, "test_words.py::test_gone"])
    assert found.passed == {ids[0]}
    assert not found.unfailed
    assert {name for name, why in found.problems.items() if why == UNKNOWN_TEST} == {ids[2], "test_words.py::test_gone"}


def test_a_plugin_of_the_tree_is_imported_by_each_process_itself(tree: Path) -> None:
    """Its import is code of the candidate, so none of it may run in the process from which the tests are forked."""
    (tree / "loud.py").write_text("import os\nwith open('pids', 'a') as file:\n    print(os.getpid(), file=file)\n")
    found = judge(tree, GOOD, settings=(".ini", "[pytest]\naddopts = -p loud\n"))
    assert found.passed == set(GOOD)
    pids = (tree / "pids").read_text().split()
    assert len(pids) == len(set(pids)) == 2 * len(GOOD)


def test_unittest_runs_the_same_ids(tree: Path) -> None:
    """It works without pytest; an id that is not a method of a TestCase is reported."""
    ids = [
        "test_case.py::TestCase::test_method",
        "test_case.py::TestCase::test_subtests",
        "test_case.py::TestCase::gone",
    ]
    found = judge(tree, ids, runner="unittest")
    assert found.passed == {ids[0]}
    assert not found.unfailed
    assert "gone" in found.problems[ids[2]]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return the repository that programs attack."""
    for name, text in forgeries.FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("runner", "name"),
    [pytest.param("pytest", name, marks=pytest.mark.slow) for name in forgeries.PYTEST]
    + first_quick(*(("unittest", name) for name in forgeries.UNITTEST), quick=6),
)
def test_code_under_test_cannot_forge_a_reward(shop: Path, runner: str, name: str) -> None:
    """W22: either the forged tests do not pass, or a control passes too."""
    program = (forgeries.PYTEST if runner == "pytest" else forgeries.UNITTEST)[name]
    with (shop / "shop" / "price.py").open("a") as file:
        file.write(program)
    found = judge(shop, forgeries.WANTED[runner])
    assert found.passed != set(forgeries.WANTED[runner]), found
    assert found.protections["controls"] or not found.passed


@pytest.mark.parametrize(("runner", "per_process"), [("pytest", 1), ("pytest", 50), ("unittest", 1), ("unittest", 50)])
def test_honest_code_passes_and_every_control_fails(shop: Path, runner: str, per_process: int) -> None:
    (shop / "shop" / "price.py").write_text("def total(prices):\n    return sum(prices)\n")
    found = judge(shop, forgeries.WANTED[runner], per_process=per_process)
    assert found.passed == set(forgeries.WANTED[runner]), found
    assert not found.unfailed
    assert found.protections["own_processes"] == (per_process == 1)


def test_a_control_breaks_an_assertion_that_runs_whenever_the_test_passes() -> None:
    """An assertion that may not run leaves the whole test to fail at its end; decorators and other lines stay."""
    sure = "# kept\n@mark\ndef test_a():\n    assert f() == [1, 'b']\n\ndef test_b():\n    assert 1\n"
    assert failing(sure, "t.py::test_a[x]", random.Random(0)) == sure.replace("[1, 'b']", "[2, 'b']")
    early = "class A:\n    def test_a(self):\n        if g():\n            return\n        assert f() == 1\n"
    assert "finally:\n            raise AssertionError" in failing(early, "t.py::A::test_a", random.Random(0))
    for text in ("print 'old'\n", "def test_b(): pass\n"):
        assert failing(text, "t.py::test_a", random.Random(0)).startswith(text)
        assert failing(text, "t.py::test_a", random.Random(0)).endswith('raise AssertionError("a control")\n')


def test_code_that_knows_the_text_of_a_test_can_still_forge_it(shop: Path) -> None:
    """SECURITY.md lists this: a control is another text, which code under test can compare with the one it knows."""
    with (shop / "shop" / "price.py").open("a") as file:
        file.write(forgeries.KNOWS_THE_TEXT)
    found = judge(shop, forgeries.WANTED["unittest"], "unittest")
    assert found.passed == set(forgeries.WANTED["unittest"])
