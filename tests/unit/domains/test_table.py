"""Tables of questions with labels: the inputs of agents, reports, and definitions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperdomain_table import Table
from hyperruntime.domain import Split
from hyperruntime.errors import SpecError
from hyperruntime.git.command import git
from hyperruntime.loop.generation.default_adapter import DefaultContract
from hyperruntime.loop.run.plan import load_domains, plan_resume, plan_run
from hyperruntime.loop.run.run import resume_run, start_run
from hyperruntime.loop.run_files.options import GenerateOptions
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository
from tests.unit.domains.answers import ANSWERS

DEFINITION = """
name = "reviews"
inputs = ["text"]
label = "outcome"
ordered = ["bad", "fair", "good"]
[splits.train]
file = "rows.csv"
"""


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text(
        'id,text,outcome,note\na/1,"one, two",good,g\n2,three,bad,b\n3,four,fair,f\n'
    )
    (tmp_path / "reviews.toml").write_text(DEFINITION)
    return tmp_path / "reviews.toml"


def test_agents_see_only_the_columns_that_the_definition_names(reviews: Path) -> None:
    tasks = Table(str(reviews)).tasks("train")
    assert [(task.id, dict(task.inputs)) for task in tasks] == [
        ("a_1", {"text": "one, two"}), ("2", {"text": "three"}), ("3", {"text": "four"}),
    ]  # fmt: skip


def test_a_report_has_the_fields_that_other_tools_read(reviews: Path) -> None:
    domain = Table(str(reviews))
    one, two, three = domain.tasks("train")
    scores = [
        domain.score(one, " Good "),
        domain.score(two, "good"),
        domain.score(three, "no idea"),
    ]
    report = domain.report("train", scores)
    assert report["overall_accuracy"] == report["score"] == pytest.approx(1 / 3)
    assert report["normalized_mean_absolute_error"] == pytest.approx((0 + 1 + 1) / 3)
    assert report["accuracy_by_ground_truth"]["good"] == {
        "precision": 0.5,
        "recall": 1.0,
        "correct": 1,
        "total": 1,
    }
    assert report["label_distribution"]["prediction"] == {
        "good": pytest.approx(2 / 3),
        "none": pytest.approx(1 / 3),
    }
    assert report["random_guess_accuracy"] == pytest.approx(1 / 3)
    assert (report["question_ids_passed"], report["question_ids_failed"]) == (["a_1"], ["2", "3"])


def test_the_detail_of_a_wrong_answer_does_not_contain_the_label(reviews: Path) -> None:
    domain = Table(str(reviews))
    task = domain.tasks("train")[1]
    assert domain.score(task, "good").detail == "wrong"
    assert "bad" not in domain.score(task, 17).detail


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "reviews.toml",
            DEFINITION.replace('"text"', '"text", "outcome"'),
            "columns without outcome",
        ),
        ("reviews.toml", DEFINITION.replace("inputs", "input"), "did you mean 'inputs'"),
        (
            "reviews.toml",
            DEFINITION.replace("rows.csv", "rows.xls"),
            "path of a .csv or .jsonl file",
        ),
        ("reviews.toml", DEFINITION.replace("rows.csv", "none.csv"), "No such file"),
        ("reviews.toml", DEFINITION + 'staged_samples = "3"', "staged_samples='3'.*a whole number"),
        ("reviews.toml", DEFINITION + "staged_samples = -1", "a whole number, 0 or more"),
        (
            "reviews.toml",
            DEFINITION.replace("splits.train", "splits.val"),
            r"\[splits.train\] among them",
        ),
        (
            "reviews.toml",
            DEFINITION + '[splits.dev]\nfile = "rows.csv"',
            "splits.dev=.*known: test, train, val",
        ),
        ("reviews.toml", "name = [", "readable .toml"),
        ("rows.csv", "id,text,outcome\n1,a,excellent\n", "one of bad, fair, good"),
        ("rows.csv", "id,text\n1,a\n", "there is none"),
        ("rows.csv", "id,text,outcome\n", "at least one row"),
        ("rows.csv", "id,text,outcome\n,a,good\n", "1 to 120 characters"),
        ("rows.csv", "id,text,outcome\n" + "1" * 121 + ",a,good\n", "1 to 120 characters"),
        ("rows.csv", "id,text,outcome\n1,a,good,more\n", "as many fields as the first line"),
        ("reviews.toml", 'id = "outcome"' + DEFINITION, "agents see ids"),
        ("reviews.toml", "task_timeout_s = nan\n" + DEFINITION, "a number above 0"),
        ("reviews.toml", "image = 3\n" + DEFINITION, ": image=3 is not allowed: text"),
    ],
)
def test_an_invalid_table_is_rejected_with_the_reason(
    reviews: Path, name: str, text: str, problem: str
) -> None:
    (reviews.parent / name).write_text(text)
    with pytest.raises(SpecError, match=problem):
        Table(str(reviews)).tasks("train")


def test_odd_rows_of_csv_are_left_out_by_name(reviews: Path) -> None:
    """Every kind of odd row; the rows around them keep their ids."""
    lines = [
        b"id,text,outcome", b"1,a,good", b"2,b,excellent", b"3,c", b"4,d,bad,more", b",e,bad", b"6,caf\xe9,good",
        b'7,"f"g,good', b"1,again,bad", b"8,h,", b"9,i,fair",
    ]  # fmt: skip
    (reviews.parent / "rows.csv").write_bytes(b"\n".join(lines) + b"\n")
    domain = Table(str(reviews))
    assert [task.id for task in domain.tasks("train")] == ["1", "9"]
    names = (
        "row 2, id 2",
        "row 3, id 3",
        "row 4, id 4",
        "row 5",
        "row 6",
        "row 7",
        "row 8, id 1",
        "row 9, id 8",
    )
    assert tuple(domain.left_out) == names
    for name, why in zip(names, ("one of bad", "there is none", "as many fields", "1 to 120", "UTF-8", "lines 8 to 8"),
                         strict=False):  # fmt: skip
        assert why in domain.left_out[name]
    assert "each id once" in domain.left_out["row 8, id 1"]


def test_odd_lines_of_json_are_left_out_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [b'{"q": 1, "label": "a"}', b"{", b"3", b'{"q": null, "label": "a"}', b'{"q": "\xe9"}', b"",
             b'{"q": 2, "label": ["a"]}', b'{"q": 3, "label": "b"}']  # fmt: skip
    path.write_bytes(b"\n".join(lines))
    domain = Table(str(path))
    assert [(task.id, task.inputs["q"]) for task in domain.tasks("train")] == [
        ("row-1", 1),
        ("row-7", 3),
    ]
    assert sorted(domain.left_out) == ["line 2", "line 3", "line 5", "row 4", "row 6"]


def test_a_table_with_odd_rows_only_is_an_error_with_the_first_reason(reviews: Path) -> None:
    (reviews.parent / "rows.csv").write_text("id,text,outcome\n1,a,excellent\n2,b,\n")
    with pytest.raises(
        SpecError, match=r"2 unsupported: row 1, id 1 \(label='excellent'.*one of bad, fair, good"
    ):
        Table(str(reviews)).tasks("train")
    (reviews.parent / "rows.csv").write_text('id,text,outcome\n1,"a,good\n2,b,bad\n')
    with pytest.raises(SpecError, match="lines 2 to 3"):
        Table(str(reviews)).tasks("train")


def test_rows_of_several_splits_are_named_with_their_split(reviews: Path) -> None:
    reviews.write_text(DEFINITION + '[splits.val]\nfile = "val.csv"\n')
    (reviews.parent / "val.csv").write_text("id,text,outcome\n1,a,good\n1,b,good\n")
    domain = Table(str(reviews))
    assert list(domain.left_out) == ["val, row 2, id 1"]


def test_a_jsonl_file_is_a_table_too(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        '{"q": [1, {"x": 2}], "label": 7}\n\n{"q": "b", "label": "8"}\n'
    )
    domain = Table(str(tmp_path / "rows.jsonl"))
    first, second = domain.tasks("train")
    assert (first.id, first.inputs, second.id) == ("row-1", {"q": [1, {"x": 2}]}, "row-2")
    assert (domain.score(first, 7).value, domain.score(second, 8.5).valid) == (1.0, False)


def test_an_argument_selects_the_table_and_its_name(reviews: Path) -> None:
    first, second = load_domains(["table", f"table:{reviews}"], DefaultContract())
    assert (first.name, second.name) == ("tickets", "reviews")
    with pytest.raises(SpecError, match="unique names"):
        load_domains([f"table:{reviews}", f"table:{reviews}"], DefaultContract())
    with pytest.raises(SpecError, match="'circle_packing' takes no argument"):
        load_domains(["circle_packing:8"], DefaultContract())


ANSWERS_LOW = """
class TaskAgent:
    def __init__(self, model=None, chat_history_file=None):
        pass

    def forward(self, inputs):
        return "low", []
"""


def agent_that_answers_low(path: Path) -> Path:
    agent = make_agent_repository(path)
    (agent / "task_agent.py").write_text(ANSWERS_LOW)
    git(["-C", str(agent), "commit", "--all", "--quiet", "--message", "answers reviews"])
    return agent


def test_a_run_finds_its_table_after_a_change_of_directory(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_that_answers_low(tmp_path / "agent")
    monkeypatch.chdir(reviews.parent)
    options = GenerateOptions(
        domains="table:reviews.toml",
        agent=str(agent),
        max_generation=0,
        run_id="r",
        output_dir_parent=str(tmp_path),
    )
    summary = start_run(FakeRuntime(), plan_run(options))
    monkeypatch.chdir("/")
    resumed = resume_run(FakeRuntime(), plan_resume(summary.run_dir, max_generation=1))
    assert [record.failure for record in resumed.generations] == [None, None]
    assert (Path(summary.run_dir) / "gen_1/reviews_eval/report.json").is_file()


@pytest.mark.parametrize("unsupported", ["skip", "fail"])
def test_a_run_names_the_rows_that_it_leaves_out_or_refuses_them(
    reviews: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, unsupported: str
) -> None:
    with (reviews.parent / "rows.csv").open("a") as file:
        file.write("9,odd,excellent\n")
    agent = agent_that_answers_low(tmp_path / "agent")
    options = GenerateOptions(
        domains=f"table:{reviews}", agent=str(agent), max_generation=0, run_id="r", output_dir_parent=str(tmp_path),
        unsupported=unsupported,
    )  # fmt: skip
    if unsupported == "fail":
        with pytest.raises(SpecError, match=r"without odd rows; 1 unsupported: row 4, id 9"):
            plan_run(options)
        return
    summary = start_run(FakeRuntime(), plan_run(options))
    assert "row 4, id 9" in caplog.text
    with pytest.raises(SpecError, match="without odd rows"):
        plan_resume(summary.run_dir, max_generation=1, changes={"unsupported": "fail"})


LABELS = st.sampled_from(("low", "mid", "high"))
ROWS = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0")), LABELS), min_size=1
)


@given(rows=ROWS, lines=st.booleans())
def test_agents_get_the_exact_text_of_the_file_without_its_label(
    rows: list[tuple[str, str]], lines: bool
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"rows.{'jsonl' if lines else 'csv'}"
        with path.open("w", encoding="utf-8", newline="") as file:
            if lines:
                file.writelines(
                    json.dumps({"text": text, "label": label}) + "\n" for text, label in rows
                )
            else:
                csv.writer(file).writerows([("text", "label"), *rows])
        domain = Table(str(path))
        tasks = domain.tasks("train")
        assert [task.inputs for task in tasks] == [{"text": text} for text, _ in rows]
        scores = [domain.score(task, label) for task, (_, label) in zip(tasks, rows, strict=True)]
        assert domain.report("train", scores)["overall_accuracy"] == 1.0


@given(answers=st.lists(ANSWERS | LABELS | st.none(), min_size=12, max_size=12))
def test_a_report_is_consistent_for_any_answers(answers: list[Any]) -> None:
    domain = Table()
    scores = [
        domain.score(task, answer)
        for task, answer in zip(domain.tasks("train"), answers, strict=True)
    ]
    report = domain.report("train", scores)
    json.dumps(report, allow_nan=False)
    assert (
        len(report["question_ids_passed"])
        == report["total_correct"]
        == sum(score.value for score in scores)
    )
    assert (
        len(report["question_ids_passed"]) + len(report["question_ids_failed"])
        == report["total"]
        == 12
    )
    assert (
        report["overall_accuracy"] == report["score"] == pytest.approx(report["total_correct"] / 12)
    )
    assert 0 <= report["normalized_mean_absolute_error"] <= 1 - report["score"] + 1e-9
    for part in report["label_distribution"].values():
        assert sum(part.values()) == pytest.approx(1)
    of_labels = report["accuracy_by_ground_truth"].values()
    assert sum(label["correct"] for label in of_labels) == report["total_correct"]
    assert sum(label["total"] for label in of_labels) == 12
    assert all(0 <= label[key] <= 1 for label in of_labels for key in ("precision", "recall"))


def test_the_stage_of_a_split_comes_from_the_definition(reviews: Path) -> None:
    reviews.write_text(
        DEFINITION + "staged_samples = 2\nstaged_threshold = 0.5\nstaged_inclusive = true\n"
    )
    (split,) = Table(str(reviews)).splits
    assert split == Split(
        name="train", staged_samples=2, staged_threshold=0.5, staged_inclusive=True
    )


def test_splits_are_evaluated_in_a_fixed_order(reviews: Path) -> None:
    reviews.write_text(DEFINITION.replace("train", "test") + '[splits.train]\nfile = "rows.csv"\n')
    assert [split.name for split in Table(str(reviews)).splits] == ["train", "test"]
