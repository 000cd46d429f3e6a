"""The table of domains of HyperAgents repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperruntime.errors import DomainNotFoundError, SpecError
from hyperruntime.loop.evaluation.evaluator import selected_split
from hyperruntime.loop.hyperagents.domains import DOMAINS, repository_domain


def test_every_domain_of_hyperagents_is_in_the_table() -> None:
    assert list(DOMAINS) == [
        "search_arena", "paper_review", "balrog_babyai", "balrog_babaisai", "balrog_minihack", "balrog_nle",
        "genesis_go2walking", "genesis_go2walkback", "genesis_go2hop", "polyglot", "imo_grading", "imo_proof",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fraction"),
    [
        ("paper_review", 0.1),
        ("imo_proof", 1 / 6),
        ("balrog_minihack", 0.2),
        ("genesis_go2hop", 0.5),
        ("polyglot", 1 / 6),
    ],
)
def test_a_first_stage_counts_by_its_fraction_of_the_tasks(name: str, fraction: float) -> None:
    assert DOMAINS[name].fraction == pytest.approx(fraction)


def test_file_names_follow_the_split() -> None:
    review, grading, walking = (
        DOMAINS["paper_review"],
        DOMAINS["imo_grading"],
        DOMAINS["genesis_go2walking"],
    )
    assert review.dataset("val") == "paper_review/dataset_filtered_100_val.csv"
    assert grading.dataset("test") == "imo/gradingbench_filtered_100_test.csv"
    assert walking.dataset("train") == ""
    assert [review.evaluation(split.name) for split in review.splits] == [
        "paper_review_eval", "paper_review_eval_val", "paper_review_eval_test",
    ]  # fmt: skip
    assert review.initial_outputs("train") == "initial_paper_review_filtered_100_train_0"
    assert walking.initial_outputs("train") == "initial_genesis_go2walking_0"
    assert (selected_split(review), selected_split(walking)) == ("val", "train")


def test_only_polyglot_passes_with_a_score_equal_to_its_threshold() -> None:
    assert DOMAINS["polyglot"].first_stage.is_passed(0.4)
    assert not DOMAINS["polyglot"].first_stage.is_passed(0.39)
    assert not DOMAINS["paper_review"].first_stage.is_passed(0.0)
    assert DOMAINS["paper_review"].first_stage.is_passed(0.01)


@pytest.mark.parametrize(
    ("name", "report", "score"),
    [
        ("paper_review", '{"overall_accuracy": 0.25}', 0.25),
        ("paper_review", '{"overall_accuracy": NaN}', None),
        ("paper_review", '{"overall_accuracy": true}', None),
        ("paper_review", '{"overall_accuracy": 1', None),
        ("paper_review", "[]", None),
        ("balrog_nle", '{"average_progress": 40.0, "environments": {"nle": {}}}', 0.4),
        ("balrog_nle", '{"average_progress": 40.0, "environments": {}}', None),
        ("polyglot", '{"accuracy_score": null}', None),
    ],
)
def test_a_score_is_read_from_the_key_of_the_domain(
    tmp_path: Path, name: str, report: str, score: float | None
) -> None:
    (tmp_path / "report.json").write_text(report)
    assert DOMAINS[name].read_score(tmp_path) == score


def test_other_domains_are_unknown_and_polyglot_is_refused() -> None:
    with pytest.raises(DomainNotFoundError):
        repository_domain("circle_packing")
    with pytest.raises(SpecError, match="polyglot"):
        repository_domain("polyglot")


def test_a_missing_report_gives_no_score(tmp_path: Path) -> None:
    assert DOMAINS["paper_review"].read_score(tmp_path) is None
