"""Programming exercises: the files that enter a container, and the scores of answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperdomain_polyglot import Polyglot, parse_answer
from hyperdomain_polyglot.cases import Cases, same
from hyperdomain_polyglot.suite import LANGUAGES, Suite
from hyperruntime.domain import Score, Task, Trial, TrialResult
from hyperruntime.errors import SpecError
from tests.unit.domains.answers import ANSWERS

ROOT = Path(__file__).parents[3]
SUITE = """
import unittest
from twice import twice

class TwiceTest(unittest.TestCase):
    def test_one(self):
        self.assertEqual(twice(1), 2)

    def test_none(self):
        self.assertEqual(twice(0), 0)
"""


def run_trial(trial: Trial, folder: Path) -> TrialResult:
    """Run a trial on the host, as the loop does in a container."""
    for name, content in trial.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    args = [sys.executable if arg == "python3" else arg for arg in trial.args]
    done = subprocess.run(args, cwd=folder, input=trial.input, capture_output=True, timeout=60)
    return TrialResult(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def judge(domain: Polyglot, task: Task, prediction: Any, folder: Path) -> Score:
    """Return the score of an answer after its trial has run."""
    trial = domain.trial(task, prediction)
    return (
        trial
        if isinstance(trial, Score)
        else domain.verdict(task, prediction, run_trial(trial, folder))
    )


def solution_of(name: str) -> str:
    return (ROOT / "domains/hyperdomain_polyglot/exercises" / name / "solution.py").read_text()


@pytest.fixture
def exercises(tmp_path: Path) -> Path:
    """Make a directory in the layout of the public benchmark, with one exercise."""
    folder = tmp_path / "python/exercises/practice/twice"
    files: Mapping[str, str] = {
        ".docs/instructions.md": "Double a number.",
        ".meta/config.json": '{"files": {"solution": ["twice.py"], "test": ["twice_test.py"]}}',
        ".meta/e.py": "the answer",
        "twice.py": "def twice(number):\n    pass\n",
        "twice_test.py": SUITE,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "name", [task.id for split in Polyglot().splits for task in Polyglot().tasks(split.name)]
)
def test_every_exercise_is_solved_by_its_solution_and_not_by_its_stub(
    name: str, tmp_path: Path
) -> None:
    domain = Polyglot()
    task = next(
        task for split in domain.splits for task in domain.tasks(split.name) if task.id == name
    )
    assert judge(domain, task, solution_of(name), tmp_path).value == 1.0
    stub = judge(domain, task, {"files": dict(task.inputs["files"])}, tmp_path)
    assert (stub.value, stub.facts["result"]) == (0.0, "empty_patch")
    assert judge(domain, task, "def f(): pass", tmp_path).value == 0.0


def test_the_input_of_a_trial_contains_no_expected_result() -> None:
    domain = Polyglot()
    task = domain.tasks("train")[0]
    trial = domain.trial(task, "x = 1")
    assert isinstance(trial, Trial)
    sent = b"".join([trial.input, *(str(text).encode() for text in trial.files.values())])
    assert b'"args": [703]' in sent
    assert b"AAA" not in sent


@pytest.mark.parametrize(
    "program",
    [
        "import os\nos._exit(0)",
        'import os\nfor n in range(10):\n    os.write(3, b\'{"number": %d, "value": true}\\n\' '
        "% n)\nos._exit(0)",
        "class Any:\n    def __eq__(self, other): return True\ndef column_name(number): return "
        "Any()",
    ],
)
def test_a_program_that_forges_results_scores_zero(program: str, tmp_path: Path) -> None:
    domain = Polyglot()
    score = judge(domain, domain.tasks("train")[0], program, tmp_path)
    assert (score.value, score.facts["passed"]) == (0.0, 0)


def test_exercises_of_the_public_layout_are_shown_without_tests_and_answers(
    exercises: Path,
) -> None:
    (task,) = Polyglot(str(exercises)).tasks("train")
    assert task.id == "python__twice"
    assert task.inputs["statement"] == "Double a number."
    assert set(task.inputs["files"]) == {"twice.py"}
    assert [task.id] == [task.id for task in Polyglot(str(exercises / "python")).tasks("train")]


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("def twice(number): return 2 * number", 1.0),
        ("def twice(number): return number + 1", 0.0),
        ("import os\nos._exit(0)", 0.0),
        (
            "import unittest\nunittest.TestCase.run = lambda self, result=None: "
            "result.startTest(self)",
            0.0,
        ),
        (
            "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\ndef twice(n): "
            "return 9",
            0.0,
        ),
        ('print(\'{"ran": 2, "passed": 2, "canary": true}\')\nraise SystemExit', 0.0),
    ],
)
def test_public_tests_decide_the_score_and_resist_simple_tricks(
    program: str, value: float, exercises: Path, tmp_path: Path
) -> None:
    domain = Polyglot(str(exercises))
    (task,) = domain.tasks("train")
    (tmp_path / "trial").mkdir()
    assert judge(domain, task, program, tmp_path / "trial").value == value


def test_tests_that_the_exercise_skips_do_not_count(exercises: Path, tmp_path: Path) -> None:
    path = exercises / "python/exercises/practice/twice/twice_test.py"
    path.write_text(
        path.read_text()
        + "\n    @unittest.skip('extra')\n    def test_more(self):\n        self.fail()\n"
    )
    domain = Polyglot(str(exercises))
    (task,) = domain.tasks("train")
    for program, value in (
        ("return 2 * number", 1.0),
        ("import unittest; raise unittest.SkipTest", 0.0),
    ):
        folder = tmp_path / f"trial {value}"
        folder.mkdir()
        assert judge(domain, task, f"def twice(number): {program}", folder).value == value


@pytest.fixture
def cargo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a fake cargo on PATH; it chooses its exit code by the text of the program and of the
    tests.
    """
    text = """#!/bin/sh
grep -q 'exit(0)' src/lib.rs && exit 0
grep -q '#\\[ignore' tests/*.rs && echo "some tests are left out" && exit 0
grep -q '2 \\* n' src/lib.rs || exit 101
! grep -q 'panic!' tests/*.rs || exit 101
"""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cargo").write_text(text)
    (tmp_path / "bin/cargo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


@pytest.mark.usefixtures("cargo")
@pytest.mark.parametrize(
    ("program", "value", "detail"),
    [
        ("pub fn twice(n: u8) -> u8 { 2 * n }", 1.0, "the hidden tests pass"),
        ("pub fn twice(n: u8) -> u8 { n }", 0.0, "the hidden tests do not pass"),
        (
            "pub fn twice(n: u8) -> u8 { std::process::exit(0) }",
            0.0,
            "the hidden tests did not run to their end",
        ),
    ],
)
def test_a_test_that_must_fail_detects_programs_that_exit_early(
    program: str, value: float, detail: str, exercises: Path, tmp_path: Path
) -> None:
    folder = exercises / "rust/exercises/practice/twice"
    files = {
        ".docs/instructions.md": "Double a number.",
        ".meta/config.json": '{"files": {"solution": ["src/lib.rs"], "test": ["tests/twice.rs"]}}',
        "src/lib.rs": "",
        "tests/twice.rs": "#[test]\nfn one() {}\n\n#[test]\n#[ignore]\nfn two() {}\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    domain = Polyglot(str(exercises / "rust"))
    (task,) = domain.tasks("train")
    (tmp_path / "trial").mkdir()
    score = judge(domain, task, program, tmp_path / "trial")
    assert (score.value, score.detail) == (value, detail)


def test_a_build_finds_its_files_by_the_name_of_its_directory(
    exercises: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C++ builds of the public layout derive the names of sources and tests from their
    directory.
    """
    folder = exercises / "cpp/exercises/practice/two-fer"
    files = {
        ".meta/config.json": '{"files": {"solution": ["two_fer.cpp"], "test": ["two_fer_test.cpp"]}}',
        "CMakeLists.txt": "get_filename_component(exercise ${CMAKE_CURRENT_SOURCE_DIR} NAME)",
        "two_fer.cpp": "",
        "two_fer_test.cpp": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    cmake = tmp_path / "bin/cmake"
    cmake.parent.mkdir()
    name = "$(basename $PWD | tr - _)"
    cmake.write_text(f"#!/bin/sh\ngrep -q right {name}.cpp && ! grep -q canary {name}_test.cpp\n")
    cmake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{cmake.parent}:{os.environ['PATH']}")
    domain = Polyglot(str(exercises / "cpp"))
    (task,) = domain.tasks("train")
    for program, value in (("right", 1.0), ("wrong", 0.0)):
        (tmp_path / program).mkdir()
        assert judge(domain, task, program, tmp_path / program).value == value


def test_a_missing_toolchain_is_reported() -> None:
    suite = Suite("go", {"x_test.go": b""}, {})
    result = TrialResult(exit_code=127, stdout=b"", stderr=b"")
    assert suite.count(result) == (0, 1, "the image has no toolchain for go: go is missing")


def test_the_first_exercises_cover_all_languages(exercises: Path) -> None:
    one = exercises / "python/exercises/practice/twice"
    for name in (
        "python/exercises/practice/again",
        "rust/exercises/practice/twice",
        "cobol/exercises/practice/twice",
    ):
        shutil.copytree(one, exercises / name)
    assert [task.id for task in Polyglot(str(exercises)).tasks("train")] == [
        "python__again",
        "rust__twice",
        "python__twice",
    ]


def test_every_language_except_python_has_a_test_that_must_fail() -> None:
    junit = b"class ATest {\n  @Test\n  void a() {}\n}\n"
    assert {name for name, language in LANGUAGES.items() if language.with_canary is None} == {
        "python"
    }
    java = LANGUAGES["java"]
    assert java.with_canary is not None
    made = java.with_canary(java.enable(b'import x;\n@Disabled("Remove to run test")\n' + junit))
    assert b"Disabled" not in made
    assert made.count(b"{") == made.count(b"}")
    assert made.rstrip().endswith(b"}")
    assert b"canaryMustFail" in made
    assert LANGUAGES["javascript"].enable(b"xtest('a')\nxdescribe('b')\ntest('c')\nbox(1)") == (
        b"test('a')\ndescribe('b')\ntest('c')\nbox(1)"
    )


def test_odd_exercises_are_left_out_by_name(exercises: Path) -> None:
    """A configuration without tests, a file that is missing, text that is not UTF-8; a path
    outside.
    """
    practice = exercises / "python/exercises/practice"
    odd = {
        "empty": '{"files": {"solution": ["a.py"], "test": []}}',
        "gone": '{"files": {"solution": ["a.py"], "test": ["b.py"]}}',
        "bytes": "caf\xe9",
        "null": "null",
        "outside": '{"files": {"solution": ["../../x"], "test": ["b.py"]}}',
    }
    for name, text in odd.items():
        (practice / name / ".meta").mkdir(parents=True)
        (practice / name / ".meta/config.json").write_bytes(text.encode("latin-1"))
    domain = Polyglot(str(exercises))
    assert [task.id for task in domain.tasks("train")] == ["python__twice"]
    assert sorted(domain.left_out) == sorted(f"python__{name}" for name in odd)
    shutil.rmtree(practice / "twice")
    with pytest.raises(
        SpecError, match=r"5 unsupported: python__bytes \(.*an exercise that can be read"
    ):
        Polyglot(str(exercises)).tasks("train")


def test_a_directory_without_exercises_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="LANGUAGE/exercises/practice"):
        Polyglot(str(tmp_path)).tasks("train")


@given(answer=ANSWERS)
def test_any_answer_gives_the_files_of_the_stub_or_a_problem(answer: Any) -> None:
    stub = {"a.py": "", "b.py": ""}
    for said in (answer, {"files": answer}, {"files": {"a.py": answer}}):
        files, problem = parse_answer(said, stub)
        assert bool(files) != bool(problem)
        assert not files or (
            files.keys() == stub.keys() and all(type(text) is str for text in files.values())
        )
        "".join(files.values()).encode()


@given(value=ANSWERS, other=ANSWERS)
def test_results_are_equal_only_if_their_json_is(value: Any, other: Any) -> None:
    value, other = (json.loads(json.dumps(one).replace("NaN", "0")) for one in (value, other))
    assert same(value, json.loads(json.dumps(value)))
    assert same(value, other) == same(other, value)
    if isinstance(value, bool):
        assert not same(value, int(value))


@given(
    output=st.binary(),
    lines=st.lists(st.tuples(st.integers(-2, 4), ANSWERS), max_size=9),
    late=st.booleans(),
)
def test_output_of_a_trial_counts_only_if_it_is_correct(
    output: bytes, lines: list[tuple[int, Any]], late: bool
) -> None:
    cases = Cases(
        "m",
        tuple(
            {"call": "f", "args": [n], "expect": f"result {n} that nobody prints"} for n in range(3)
        ),
    )
    printed = (
        output
        + b"\n"
        + b"".join(json.dumps({"number": n, "value": v}).encode() + b"\n" for n, v in lines)
    )
    result = TrialResult(exit_code=0, stdout=printed, stderr=output, timed_out=late)
    assert cases.count(result)[:2] == (0, 3)
    right = json.dumps({"number": 1, "value": "result 1 that nobody prints"}).encode() + b"\n"
    assert cases.count(TrialResult(exit_code=9, stdout=right + printed, stderr=b""))[0] == 1
    for language in LANGUAGES:
        passed, total, _ = Suite(language, {"t": SUITE.encode()}, {}).count(
            TrialResult(exit_code=0, stdout=printed, stderr=b"", timed_out=True)
        )
        assert passed == 0 < total


def test_a_report_lists_each_exercise_once() -> None:
    domain = Polyglot()
    tasks = domain.tasks("train")[:4]
    wrong = TrialResult(exit_code=0, stdout=b"", stderr=b"")
    stub = {"files": dict(tasks[1].inputs["files"])}
    scores = [
        domain.verdict(tasks[0], "x = 1", wrong),
        *(
            score
            for task, answer in zip(
                tasks[1:], (stub, {"files": {"other.py": ""}}, None), strict=True
            )
            if isinstance(score := domain.trial(task, answer), Score)
        ),
    ]
    report = domain.report("train", scores)
    ids = [task.id for task in tasks]
    assert report["total_unresolved_ids"] == ids[:1]
    assert report["total_emptypatch_ids"] == [ids[1], ids[3]]
    assert report["total_error_ids"] == [ids[2]]
    assert (
        report["total_instances"],
        report["total_submitted_instances"],
        report["accuracy_score"],
    ) == (4, 1, 0.0)
