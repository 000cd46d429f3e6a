"""The tables of HyperAgents: labels, splits and errors as there, and proofs that models grade."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hyperdomain_original import ImoGrading, ImoProof, PaperReview, SearchArena
from hyperruntime.errors import BudgetExceededError, GatewayError, SpecError
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.option_fields import host_requests
from hyperruntime.testing.model import ModelReply, ScriptedModel, says, scripted_model

SECRET = "the parity of n decides it"
RUBRIC = "one point for the lemma"


def write(path: Path, *rows: dict[str, str]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_splits(folder: Path, name: str, *rows: dict[str, str]) -> None:
    for split in ("train", "val", "test"):
        write(folder / f"{name}_filtered_100_{split}.csv", *rows)


def test_a_paper_is_shown_without_its_outcome_in_three_splits(tmp_path: Path) -> None:
    paper = {"paper_text": "We prove it.", "question_id": "7", "outcome": "accept", "year": "2020"}
    other = {"paper_text": "We try it.", "question_id": "8", "outcome": "reject", "year": "2021"}
    write_splits(tmp_path, "dataset", paper, other)
    domain = PaperReview(str(tmp_path))
    assert [(split.name, split.staged_samples) for split in domain.splits] == [
        ("train", 10),
        ("val", 10),
        ("test", 10),
    ]
    (task, _) = domain.tasks("test")
    assert set(task.inputs) == {"question", "paper_text"}
    scores = [domain.score(task, said) for said in ("Accept", "reject", "perhaps")]
    assert [(score.value, score.valid) for score in scores] == [
        (1.0, True),
        (0.0, True),
        (0.0, False),
    ]


def test_a_search_arena_has_two_labels(tmp_path: Path) -> None:
    row = {"question_id": "1", "messages_a": "[]", "messages_b": "[1]", "winner": "model_b"}
    write_splits(tmp_path, "dataset", row, {**row, "question_id": "2", "winner": "model_a"})
    domain = SearchArena(str(tmp_path))
    (task, _) = domain.tasks("train")
    assert "winner" not in task.inputs
    assert domain.score(task, "model_b").value == 1.0


def test_the_error_of_a_grade_is_measured_in_points(tmp_path: Path) -> None:
    row = {
        "Grading ID": "G1",
        "Problem": "Prove it.",
        "Solution": SECRET,
        "Grading guidelines": RUBRIC,
        "Response": "Clear.",
        "Points": "0",
        "Reward": "Incorrect",
    }
    write_splits(tmp_path, "gradingbench", row)
    domain = ImoGrading(str(tmp_path))
    (task,) = domain.tasks("val")
    assert set(task.inputs) == {
        "question",
        "problem",
        "solution",
        "grading_guidelines",
        "student_answer",
    }
    report = domain.report("val", [domain.score(task, "almost")])
    assert report["normalized_mean_absolute_error"] == pytest.approx(6 / 7)
    assert domain.report("val", [domain.score(task, "incorrect")])["overall_accuracy"] == 1.0


def test_missing_tables_are_named_with_the_page_that_says_how_to_get_them(tmp_path: Path) -> None:
    write(tmp_path / "dataset_filtered_100_train.csv", {"question_id": "1"})
    with pytest.raises(SpecError, match=r"100_val\.csv, dataset_filtered_100_test\.csv; see docs/"):
        PaperReview(str(tmp_path)).tasks("train")


def graded(request: Mapping[str, Any]) -> ModelReply:
    """Grade as the model's name says."""
    name = request["model"].removeprefix("sent-")
    return says("I read it." if name == "silent" else f"Good work.\n\n**GRADE: {name}**\n")


@pytest.fixture
def grader() -> Iterator[ScriptedModel]:
    with scripted_model(graded) as model:
        yield model


def proofs(folder: Path, url: str, models: list[str], budget: int = 99) -> ImoProof:
    """Return the domain with graders, in another directory than the table."""
    (folder / "tables").mkdir()
    row = {"Problem ID": "P1", "Problem": "Is n even?", "Solution": SECRET, "Short Answer": "yes"}
    write(folder / "tables/proofbench.csv", {**row, "Grading guidelines": RUBRIC})
    (folder / "graders.toml").write_text(f"""
[graders]
tables = "tables"
models = {json.dumps(models)}
[gateway]
retries = 0
[[gateway.upstreams]]
name = "lab"
url = "{url}"
[[gateway.models]]
name = "gpt-o4-mini-genai"
upstream = "lab"
send_as = "sent-almost"
[[gateway.models]]
name = "*"
upstream = "lab"
[gateway.budget]
requests = {budget}
""")
    return ImoProof(str(folder / "graders.toml"))


def test_several_graders_give_the_middle_grade_and_their_agreement(
    tmp_path: Path, grader: ScriptedModel
) -> None:
    domain = proofs(tmp_path, grader.url, ["correct", "gpt-o4-mini-genai", "partial", "silent"])
    (task,) = domain.tasks("train")
    assert SECRET not in str(task)
    assert RUBRIC not in str(task)
    score = domain.score(task, "Yes.\nGRADE: correct")
    assert (score.value, score.valid) == (6 / 7, True)
    assert score.detail == "almost, 6 of 7 points (1 of 3 graders agree)"
    report = domain.report("train", [score, domain.score(task, ["no text"])])
    assert report["points_percentage"] == pytest.approx(3 / 7)
    assert report["grader_agreement"] == pytest.approx(1 / 3)
    assert report["label_distribution"] == {"prediction": {"almost": 0.5, "none": 0.5}}
    asked = {request["model"] for request in grader.requests}
    assert asked == {"correct", "sent-almost", "partial", "silent"}
    (text, *_) = (request["messages"][0]["content"] for request in grader.requests)
    assert SECRET in text
    assert RUBRIC in text


@pytest.mark.parametrize("answer", [None, "", " \n", "x" * 60_001, "\ud800", {"proof": "x"}, 3])
def test_what_is_no_proof_is_not_sent_to_graders(
    tmp_path: Path, grader: ScriptedModel, answer: object
) -> None:
    domain = proofs(tmp_path, grader.url, ["correct"])
    (task,) = domain.tasks("train")
    score = domain.score(task, answer)
    assert (score.value, score.valid, grader.requests) == (0.0, False, [])


def test_a_proof_cannot_end_its_own_part_of_the_request(
    tmp_path: Path, grader: ScriptedModel
) -> None:
    domain = proofs(tmp_path, grader.url, ["incorrect"])
    (task,) = domain.tasks("train")
    for _ in range(2):
        domain.score(task, "the proof")
    texts = [request["messages"][0]["content"].splitlines() for request in grader.requests]
    marks = [text[text.index("the proof") - 1] for text in texts]
    assert marks[0] != marks[1], "a proof that knew the mark could write it"


def test_a_proof_after_which_no_grader_names_a_grade_gets_the_lowest(
    tmp_path: Path, grader: ScriptedModel
) -> None:
    domain = proofs(tmp_path, grader.url, ["silent"], budget=3)
    (task,) = domain.tasks("train")
    score = domain.score(task, "the proof")
    assert (score.value, score.valid, score.facts["grade"]) == (0.0, True, "incorrect")
    assert score.detail == "incorrect, 0 of 7 points (no grader ended its answer with a grade)"
    assert domain.report("train", [score])["grader_agreement"] is None
    with pytest.raises(BudgetExceededError):
        domain.score(task, "the proof")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"choices": [3]}', b'{"choices": [{"message": 1}]}']
)
def test_a_server_that_answers_with_something_else_cannot_be_asked(
    tmp_path: Path, body: bytes
) -> None:
    with scripted_model(lambda request: ModelReply(body=body)) as model:
        domain = proofs(tmp_path, model.url, ["correct"])
        (task,) = domain.tasks("train")
        with pytest.raises(GatewayError, match="the grader correct cannot be asked"):
            domain.score(task, "the proof")


def test_the_budget_of_the_graders_holds_for_proofs_that_are_graded_at_once(
    tmp_path: Path, grader: ScriptedModel
) -> None:
    domain = proofs(tmp_path, grader.url, ["correct"], budget=3)
    (task,) = domain.tasks("train")
    together = threading.Barrier(6)

    def grade(_: int) -> float | None:
        together.wait()
        try:
            return domain.score(task, "the proof").value
        except BudgetExceededError:
            return None

    with ThreadPoolExecutor(6) as pool:
        scores = list(pool.map(grade, range(6)))
    assert (scores.count(1.0), scores.count(None), len(grader.requests)) == (3, 3, 3)


def test_only_the_user_names_the_file_of_the_graders(
    tmp_path: Path, grader: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs(tmp_path, grader.url, ["correct"])
    home = tmp_path / "domains/imo"
    home.mkdir(parents=True)
    for folder in (home, tmp_path / "tables"):
        for name in ("graders.toml", "tables/proofbench.csv"):
            (folder / Path(name).name).write_text((tmp_path / name).read_text())
    monkeypatch.chdir(tmp_path)
    with scripted_model(lambda request: says("GRADE: partial")) as mine:
        monkeypatch.setenv("OPENAI_API_KEY", "my-key")
        monkeypatch.setenv("OPENAI_BASE_URL", mine.url)
        for domain in (ImoProof(), ImoProof("tables")):
            (task,) = domain.tasks("train")
            assert domain.score(task, "the proof").facts["grades"] == {"1: o4-mini": "partial"}
    assert grader.requests == [], "a file that nobody named chose the server"
    named = GenerateOptions(domains=("imo_proof:graders.toml",))
    assert host_requests(named) == ("--domains imo_proof:graders.toml",)


def test_proofs_without_a_model_server_make_no_tasks(
    tmp_path: Path, grader: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs(tmp_path, grader.url, ["correct"])
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(GatewayError, match="graded by a model, but no model server"):
        ImoProof(str(tmp_path / "tables")).tasks("train")
