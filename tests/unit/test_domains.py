"""The domains that come with the library: what they tell agents, what they keep, and what answers are worth."""

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

from hyperdomain_babyai import BabyAI
from hyperdomain_polyglot import Polyglot
from hyperdomain_polyglot.languages import LANGUAGES
from hyperdomain_polyglot.suite import Suite
from hyperdomain_table import Table
from hyperruntime.domain import Domain, Score, Task, Trial, TrialResult
from hyperruntime.errors import HyperRuntimeError, SpecError
from hyperruntime.loop.options import GenerateOptions
from hyperruntime.loop.run import resume_run, start_run
from hyperruntime.loop.start import load_domains
from hyperruntime.testing import FakeRuntime, make_agent_repository

ROOT = Path(__file__).parents[2]
HOSTILE: tuple[Any, ...] = (
    None,
    [],
    {},
    "x" * 5000,
    3,
    float("nan"),
    True,
    {"files": {"../x": "y"}},
    {"files": {1: 2}},
    "\ud800",
)
DEFINITION = """
name = "reviews"
inputs = ["text"]
label = "outcome"
ordered = ["bad", "fair", "good"]
[splits.train]
file = "rows.csv"
"""
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
    """Return the verdict of a domain on an answer that is run."""
    trial = domain.trial(task, prediction)
    return trial if isinstance(trial, Score) else domain.verdict(task, prediction, run_trial(trial, folder))


def solution_of(name: str) -> str:
    return (ROOT / "domains/hyperdomain_polyglot/exercises" / name / "solution.py").read_text()


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text('id,text,outcome,note\na/1,"one, two",good,g\n2,three,bad,b\n3,four,fair,f\n')
    (tmp_path / "reviews.toml").write_text(DEFINITION)
    return tmp_path / "reviews.toml"


@pytest.fixture
def exercises(tmp_path: Path) -> Path:
    """A directory in the layout of the public benchmark, with one exercise."""
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


def test_agents_see_the_columns_that_a_definition_names_and_no_other(reviews: Path) -> None:
    tasks = Table(str(reviews)).tasks("train")
    assert [(task.id, dict(task.inputs)) for task in tasks] == [
        ("a_1", {"text": "one, two"}), ("2", {"text": "three"}), ("3", {"text": "four"}),
    ]  # fmt: skip


def test_a_table_is_reported_as_readers_know_it(reviews: Path) -> None:
    domain = Table(str(reviews))
    one, two, three = domain.tasks("train")
    scores = [domain.score(one, " Good "), domain.score(two, "good"), domain.score(three, "no idea")]
    report = domain.report("train", scores)
    assert report["overall_accuracy"] == report["score"] == pytest.approx(1 / 3)
    assert report["normalized_mean_absolute_error"] == pytest.approx((0 + 1 + 1) / 3)
    assert report["accuracy_by_ground_truth"]["good"] == {"precision": 0.5, "recall": 1.0, "correct": 1, "total": 1}
    assert report["label_distribution"]["prediction"] == {"good": pytest.approx(2 / 3), "none": pytest.approx(1 / 3)}
    assert report["random_guess_accuracy"] == pytest.approx(1 / 3)
    assert (report["question_ids_passed"], report["question_ids_failed"]) == (["a_1"], ["2", "3"])


def test_what_later_agents_read_of_a_wrong_answer_does_not_tell_the_label(reviews: Path) -> None:
    domain = Table(str(reviews))
    task = domain.tasks("train")[1]
    assert domain.score(task, "good").detail == "wrong"
    assert "bad" not in domain.score(task, 17).detail


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("reviews.toml", DEFINITION.replace('"text"', '"text", "outcome"'), "without the label"),
        ("reviews.toml", DEFINITION.replace("inputs", "input"), "may say"),
        ("reviews.toml", DEFINITION.replace("rows.csv", "rows.xls"), "path of a .csv or .jsonl file"),
        ("reviews.toml", DEFINITION.replace("rows.csv", "none.csv"), "No such file"),
        ("reviews.toml", DEFINITION + 'staged_samples = "3"', "numbers for its first stage"),
        ("reviews.toml", DEFINITION + "staged_samples = -1", "numbers for its first stage"),
        ("reviews.toml", DEFINITION.replace("splits.train", "splits.dev"), r"\[splits.train\] among them"),
        ("reviews.toml", DEFINITION + '[splits.dev]\nfile = "rows.csv"', "a split train, val, test"),
        ("reviews.toml", "name = [", "readable .toml"),
        ("rows.csv", "id,text,outcome\n1,a,good\n1,b,bad\n", "each id once"),
        ("rows.csv", "id,text,outcome\n1,a,excellent\n", "one of bad, fair, good"),
        ("rows.csv", "id,text\n1,a\n", "there is none"),
    ],
)
def test_a_table_that_cannot_be_used_says_where_it_is_wrong(reviews: Path, name: str, text: str, problem: str) -> None:
    (reviews.parent / name).write_text(text)
    with pytest.raises(SpecError, match=problem):
        Table(str(reviews)).tasks("train")


def test_json_lines_are_a_table_too(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": [1, {"x": 2}], "label": 7}\n\n{"q": "b", "label": "8"}\n')
    domain = Table(str(tmp_path / "rows.jsonl"))
    first, second = domain.tasks("train")
    assert (first.id, first.inputs, second.id) == ("row-1", {"q": [1, {"x": 2}]}, "row-2")
    assert (domain.score(first, 7).value, domain.score(second, 8.5).valid) == (1.0, False)


@pytest.mark.parametrize("name", [task.id for split in Polyglot().splits for task in Polyglot().tasks(split.name)])
def test_every_exercise_is_solved_by_its_solution_and_not_by_its_stub(name: str, tmp_path: Path) -> None:
    domain = Polyglot()
    task = next(task for split in domain.splits for task in domain.tasks(split.name) if task.id == name)
    assert judge(domain, task, solution_of(name), tmp_path).value == 1.0
    stub = judge(domain, task, {"files": dict(task.inputs["files"])}, tmp_path)
    assert (stub.value, stub.facts["result"]) == (0.0, "empty_patch")
    assert judge(domain, task, "def f(): pass", tmp_path).value == 0.0


def test_what_an_exercise_sends_into_a_container_holds_no_result() -> None:
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
        'import os\nfor n in range(10):\n    os.write(3, b\'{"number": %d, "value": true}\\n\' % n)\nos._exit(0)',
        "class Any:\n    def __eq__(self, other): return True\ndef column_name(number): return Any()",
    ],
)
def test_a_program_that_forges_results_scores_nothing(program: str, tmp_path: Path) -> None:
    domain = Polyglot()
    score = judge(domain, domain.tasks("train")[0], program, tmp_path)
    assert (score.value, score.facts["passed"]) == (0.0, 0)


def test_exercises_of_the_public_layout_are_told_without_tests_and_answers(exercises: Path) -> None:
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
        ("import unittest\nunittest.TestCase.run = lambda self, result=None: result.startTest(self)", 0.0),
        ("import unittest\nunittest.TestCase.assertEqual = lambda *_: None\ndef twice(n): return 9", 0.0),
        ('print(\'{"ran": 2, "passed": 2, "canary": true}\')\nraise SystemExit', 0.0),
    ],
)
def test_public_tests_decide_and_are_not_fooled_easily(
    program: str, value: float, exercises: Path, tmp_path: Path
) -> None:
    domain = Polyglot(str(exercises))
    (task,) = domain.tasks("train")
    (tmp_path / "trial").mkdir()
    assert judge(domain, task, program, tmp_path / "trial").value == value


def test_tests_that_an_exercise_leaves_out_itself_do_not_count(exercises: Path, tmp_path: Path) -> None:
    path = exercises / "python/exercises/practice/twice/twice_test.py"
    path.write_text(path.read_text() + "\n    @unittest.skip('extra')\n    def test_more(self):\n        self.fail()\n")
    domain = Polyglot(str(exercises))
    (task,) = domain.tasks("train")
    for program, value in (("return 2 * number", 1.0), ("import unittest; raise unittest.SkipTest", 0.0)):
        folder = tmp_path / f"trial {value}"
        folder.mkdir()
        assert judge(domain, task, f"def twice(number): {program}", folder).value == value


@pytest.fixture
def cargo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a stand-in for Rust's tool on the path: one file, whose exit code is the first thing that ends it."""
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
        ("pub fn twice(n: u8) -> u8 { std::process::exit(0) }", 0.0, "the hidden tests did not run to their end"),
    ],
)
def test_where_there_is_only_an_exit_code_a_test_that_must_fail_shows_who_ends_early(
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


def test_a_language_without_its_toolchain_says_so() -> None:
    suite = Suite("go", {"x_test.go": b""}, {})
    result = TrialResult(exit_code=127, stdout=b"", stderr=b"")
    assert suite.count(result) == (0, 1, "the image has no toolchain for go: go is missing")


def test_the_first_exercises_are_of_all_languages(exercises: Path) -> None:
    one = exercises / "python/exercises/practice/twice"
    for name in ("python/exercises/practice/again", "rust/exercises/practice/twice", "cobol/exercises/practice/twice"):
        shutil.copytree(one, exercises / name)
    assert [task.id for task in Polyglot(str(exercises)).tasks("train")] == [
        "python__again",
        "rust__twice",
        "python__twice",
    ]


def test_every_language_has_a_test_that_must_fail() -> None:
    junit = b"class ATest {\n  @Test\n  void a() {}\n}\n"
    assert {name for name, language in LANGUAGES.items() if language.with_canary is None} == {"python"}
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


def test_a_directory_without_exercises_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="LANGUAGE/exercises/practice"):
        Polyglot(str(tmp_path)).tasks("train")


@pytest.mark.parametrize("domain", [Table(), Polyglot()], ids=["table", "polyglot"])
@pytest.mark.parametrize("prediction", HOSTILE, ids=lambda value: ascii(value)[:20])
def test_no_answer_raises_and_none_that_is_malformed_is_valid(domain: Domain, prediction: Any) -> None:
    task = domain.tasks("train")[0]
    found = domain.trial(task, prediction) if isinstance(domain, Polyglot) else domain.score(task, prediction)
    if isinstance(found, Score):
        assert (found.value, found.valid) == (0.0, False)
        assert domain.report("train", [found])["score"] == 0.0
    else:
        assert type(prediction) is str


def test_an_episode_is_told_in_words_and_ends_with_its_mission() -> None:
    domain = BabyAI()
    episode = domain.dialogue(domain.tasks("train")[0])
    first = episode.begin()
    assert first["mission"] == "go to a green ball"
    assert "You see a green ball 2 steps forward and 1 step to the right." in first["observation"].splitlines()
    second = episode.reply("go forward")
    assert second is not None
    assert "You see a green ball 1 step forward and 1 step to the right." in second["observation"].splitlines()
    assert episode.reply({"hack": 1})["note"] != ""  # type: ignore[index]
    assert episode.reply("Go  Forward") is not None
    assert episode.reply("turn right") is None
    score = domain.score(domain.tasks("train")[0], episode.outcome(None))
    episode.close()
    assert (score.value, score.valid, score.facts["failed_actions"]) == (1.0, True, 1)
    assert domain.report("train", [score])["environments"]["GoToLocal-v0"]["progression_percentage"] == 100.0


def test_an_episode_ends_for_an_agent_that_goes_nowhere() -> None:
    domain = BabyAI("GoToLocal-v0")
    episode = domain.dialogue(domain.tasks("val")[0])
    turns = 1
    while episode.reply("turn left") is not None:
        turns += 1
    assert turns <= 64
    assert domain.score(domain.tasks("val")[0], episode.outcome("it stopped")).value == 0.0
    episode.close()


def test_worlds_print_nothing_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    domain = BabyAI("GoToSeqS5R2-v0")
    domain.dialogue(domain.tasks("train")[0]).close()
    assert capsys.readouterr().out == ""


def test_a_domain_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    monkeypatch.setattr("hyperdomain_babyai.find_spec", lambda name: None)
    with pytest.raises(HyperRuntimeError, match=r"hyperruntime\[babyai\]"):
        BabyAI().tasks("train")


def example_package(folder: Path) -> dict[str, str]:
    """Install the domain of docs/writing-a-domain.md in a folder; return the environment that finds it there."""
    text = (ROOT / "docs/writing-a-domain.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 40, "the text promises forty lines"
    (folder / "reversal.py").write_text(code)
    info = folder / "reversal-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reversal\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hyperruntime.domains]\nreversal = reversal:Reversal\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_the_domain_of_the_documentation_is_one(tmp_path: Path) -> None:
    env = example_package(tmp_path)
    command = [sys.executable, "-c", "from hyperruntime.cli import main; main()", "domains", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    rows = {row["domain"]: row for row in json.loads(done.stdout)}
    assert rows["reversal"]["problem"] == ""
    assert rows["reversal"]["splits"] == {"train": 4, "val": 2}
    assert rows["table"]["splits"] == {"train": 12, "val": 6}


def test_a_level_that_the_worlds_do_not_have_is_named_before_a_run() -> None:
    with pytest.raises(SpecError, match="did you mean 'GoToLocal-v0'"):
        BabyAI("OpenDoor-v0+GoToLocl-v0").tasks("train")


@pytest.mark.parametrize(
    "domain", ["babyai:Nowhere-v0", "table:{}/none.csv", "polyglot:{}/nothing", "table:{}/empty.csv"]
)
def test_a_domain_that_cannot_be_used_leaves_no_run_behind(domain: str, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("id,text,label\n")
    agent = make_agent_repository(tmp_path / "agent")
    options = GenerateOptions(
        domains=domain.format(tmp_path), agent=str(agent), output_dir_parent=str(tmp_path / "out")
    )
    runtime = FakeRuntime()
    with pytest.raises(HyperRuntimeError):
        start_run(runtime, options)
    assert not (tmp_path / "out").exists()
    assert runtime.started == 0


def test_an_argument_goes_to_the_domain_and_its_own_name_counts(reviews: Path) -> None:
    first, second = load_domains(["table", f"table:{reviews}"])
    assert (first.name, second.name) == ("tickets", "reviews")
    with pytest.raises(SpecError, match="each once"):
        load_domains([f"table:{reviews}", f"table:{reviews}"])
    with pytest.raises(SpecError, match="'circle_packing' takes no argument"):
        load_domains(["circle_packing:8"])


def test_a_run_finds_its_table_again_from_another_directory(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent_repository(tmp_path / "agent")
    monkeypatch.chdir(reviews.parent)
    options = GenerateOptions(
        domains="table:reviews.toml", agent=str(agent), max_generation=0, run_id="r", output_dir_parent=str(tmp_path)
    )
    summary = start_run(FakeRuntime(), options)
    monkeypatch.chdir("/")
    resumed = resume_run(FakeRuntime(), summary.run_dir, max_generation=1)
    assert [record.failure for record in resumed.generations] == [None, None]
    assert (Path(summary.run_dir) / "gen_1/reviews_eval/report.json").is_file()
