"""The program that runs tests in a judge's container, tested without a container."""

from __future__ import annotations

import ast
import json
import os
import random
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import attrs
import pytest

from hyperenvironment_swe.breaks import edited, failing_edits
from hyperenvironment_swe.controls import make_controls, make_variations
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
GOOD = [
    "test_case.py::test_double[1]",
    "test_case.py::test_double[2]",
    "test_case.py::TestCase::test_method",
]


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
    """Judge a directory as a container's, but with the user of this process; return the
    findings.
    """
    suffix, content = settings
    files = {
        path: (where / path).read_text()
        for path in sorted({name.partition("::")[0] for name in ids})
    }
    chance = random.SystemRandom()
    controls = make_controls(ids, (), files, 4, chance)
    trial = plan(
        Trial(
            install=install,
            ids=tuple(ids),
            cut=frozenset(filter(is_cut, ids)),
            controls=tuple(controls),
            variations=make_variations(ids, controls, files, chance),
            files={**files, f".settings{suffix}": content},
            common={"runner": runner, "settings": f".settings{suffix}", "own_plugins": False},
            python=sys.executable,
            per_process=per_process,
            timeout_s=60,
        )
    )
    runs = trial.runs()
    env = {"HOME": str(where / "home"), "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    # trio's makes hypothesis warn, which is an error with some settings here
    env["HYPOTHESIS_NO_PLUGINS"] = "1"
    asked = {
        "tree": str(where),
        "home": str(where / "home"),
        "gone": [],
        "env": env,
        **trial.question(runs),
    }
    source = resources.files("hyperenvironment_swe").joinpath("inside", "judge.py").read_text()
    question = json.dumps({**asked, "secret": "0123"}).encode()
    environment = {
        **os.environ,
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "" if plugins else "1",
    }
    done = run_process(
        [sys.executable, "-I", "-S", "-c", source], input=question, cwd="/", env=environment
    )
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
            "[tool.pytest.ini_options]\naddopts = '--maxfail=1 -k \"not "
            "nothing\"'\nfilterwarnings = ['error']\n",
        ),
        (".ini", ""),
        (
            ".ini",
            "[pytest]\naddopts = -x -p no:randomly --strict-markers\npython_functions = test_*\n",
        ),
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
    """Those of this environment, hypothesis and xdist among them, which take seconds in each
    process.
    """
    (tree / "test_plugin.py").write_text(
        "def test_loaded(pytestconfig):\n    assert pytestconfig.getoption('numprocesses') == 0\n"
    )
    assert judge(tree, ["test_plugin.py::test_loaded"], plugins=True).passed == {
        "test_plugin.py::test_loaded"
    }


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
    assert {name for name, why in found.problems.items() if why == UNKNOWN_TEST} == {
        ids[2],
        "test_words.py::test_gone",
    }


def test_a_plugin_of_the_tree_is_imported_by_each_process_itself(tree: Path) -> None:
    """Its import is code of the candidate, so none of it may run in the process from which the
    tests are forked.
    """
    (tree / "loud.py").write_text(
        "import os\nwith open('pids', 'a') as file:\n    print(os.getpid(), file=file)\n"
    )
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


@pytest.mark.parametrize(
    ("runner", "per_process"), [("pytest", 1), ("pytest", 50), ("unittest", 1), ("unittest", 50)]
)
def test_honest_code_passes_and_every_control_fails(
    shop: Path, runner: str, per_process: int
) -> None:
    (shop / "shop" / "price.py").write_text("def total(prices):\n    return sum(prices)\n")
    found = judge(shop, forgeries.WANTED[runner], per_process=per_process)
    assert found.passed == set(forgeries.WANTED[runner]), found
    assert not found.unfailed
    assert found.protections["own_processes"] == (per_process == 1)


@pytest.mark.parametrize("name", [name for name in forgeries.RECOGNIZES if "commit" not in name])
def test_code_under_test_cannot_tell_a_control_from_its_test(shop: Path, name: str) -> None:
    """W22: neither by the form of the file, nor by facts of a file that the agent saw."""
    with (shop / "shop" / "price.py").open("a") as file:
        file.write(forgeries.recognizes(name))
    found = judge(shop, forgeries.WANTED["unittest"], "unittest")
    assert not found.passed, found


def failing(text: str, test: str) -> str:
    """Return the file of a control."""
    return edited(text, failing_edits(text, test, random.Random(0)))


@pytest.mark.parametrize(
    ("assertion", "control"),
    [
        ("assert f() == 'a'  # kept", r"assert f\(\) == '[b-z]'  # kept"),
        ('assert f() == ["é", -0x1]', r'assert f\(\) == \["é", -0x[02-9]\]'),
        ("assert f() == {}", r"assert f\(\) == \{0: 0\}"),
        ("assert (f()) == (g())", r"assert \(f\(\)\) != \(g\(\)\)"),
        ("assert f() not in g()", r"assert f\(\) in g\(\)"),
        ("assert not f()", r"assert f\(\)"),
        ("assert (f() or g())", r"assert \(not \(f\(\) or g\(\)\)\)"),
        ("self.assertEqual(f(), b'\\n1')", r"self.assertEqual\(f\(\), b'\\n[02-9]'\)"),
        ("self.assertTrue( f() )", r"self.assertFalse\( f\(\) \)"),
        ("with raises(KeyError): f()", r"with raises\((Type|Value|Index|Attribute)Error\): f\(\)"),
    ],
)
def test_a_control_changes_a_literal_or_an_operator_and_nothing_around_it(
    assertion: str, control: str
) -> None:
    before, after = (
        "# kept\r\n@mark( 1 )\r\ndef test_a( ):\r\n\tx = 'é' ;",
        "\r\n\ndef test_b():\n    assert 1\n",
    )
    made = failing(f"{before}\r\n\t{assertion}{after}", "t.py::test_a[x]")
    assert re.fullmatch(f"{re.escape(before)}\r\n\t{control}{re.escape(after)}", made), made


def test_a_test_without_an_assertion_that_surely_runs_fails_at_its_end() -> None:
    """It fails wherever it returns, too; a file that cannot be read, or a test that it does not
    hold, at its end.
    """
    early = (
        "class A:\n    def test_a(self):\n        if g():\n            return 1\n        assert "
        "f() == 1\n"
    )
    made = early.replace("return 1", "assert False").replace(
        "== 1\n", "== 1\n        assert False\n"
    )
    assert failing(early, "t.py::A::test_a") == made
    for text in ("print 'old'\n", "def test_b(): pass\n", "def test_a():\n    yield 1\n"):
        assert failing(text, "t.py::test_a") == f"{text}\n\nassert False\n"


def test_the_process_of_a_control_runs_as_many_tests_as_that_of_its_test() -> None:
    ids = tuple(f"t.py::test_{name}" for name in "abc")
    controls = tuple(make_controls(ids, (), {"t.py": ""}, 3, random.Random(0)))
    runs = Trial(ids=ids, controls=controls, common={}, per_process=2).runs()
    assert sorted(group for group, _ in runs) == sorted([*[ids[:2]] * 3, *[ids[2:]] * 2])
    assert all(control.id in group for group, control in runs if control)


def test_other_tests_of_a_file_vary_between_their_text_and_that_of_their_control() -> None:
    """The test that runs keeps its meaning; so does a test that another one calls, or that another
    file has.
    """
    text = "def test_a():\n    assert f() == 1\n\ndef test_b():\n    assert f() == 2\n\n"
    text += (
        "def test_c():\n    assert f() == 3\n\ndef test_d():\n    assert f() == 4\n    test_c()\n"
    )
    files = {"t.py": text, "u.py": "from t import *\n"}
    ids = ["t.py::test_a", "t.py::test_b", "u.py::test_d"]
    controls = make_controls(ids[1:2], (), files, 1, random.Random(0))
    variations = make_variations(ids, controls, files, random.Random(0))
    source = resources.files("hyperenvironment_swe").joinpath("inside", "judge.py")
    module = runpy.run_path(str(source))
    one = module["Judge"].__new__(module["Judge"])
    varies = {path: attrs.asdict(found, recurse=False) for path, found in variations.items()}
    one.asked = {"tests": {"files": files, "variations": varies}}
    texts = [one.varied("t.py", {"ids": ids[:1], "changed": {}}) for _ in range(200)]
    meanings = [ast.unparse(ast.parse(text)).split("\n\n") for text in texts]
    a, b, c, d = ({functions[at] for functions in meanings} for at in range(4))
    control = ast.unparse(ast.parse(edited(text, controls[0].edits))).split("\n\n")[1]
    assert b == {ast.unparse(ast.parse(text)).split("\n\n")[1], control}
    assert [len(one) for one in (a, c, d)] == [1, 1, 1]
    assert len({len(text) for text in texts}) > 1


def test_code_that_knows_the_meaning_of_a_test_can_still_forge_it(shop: Path) -> None:
    """SECURITY.md lists this: a control means something else, which code can see that knows the
    test.
    """
    with (shop / "shop" / "price.py").open("a") as file:
        file.write(forgeries.KNOWS_THE_MEANING)
    found = judge(shop, forgeries.WANTED["unittest"], "unittest")
    assert found.passed == set(forgeries.WANTED["unittest"])
