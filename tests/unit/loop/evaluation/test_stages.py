"""Staged evaluation: which tasks run in which domain, for any order of domains and any
thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.domain import DomainBase, Score, Split, Task, mean_report
from hyperruntime.loop.evaluation.evaluator import (
    Evaluator,
    SplitResult,
    evaluate_domains,
    selection_score,
)
from hyperruntime.loop.evaluation.task_runner import Prediction
from hyperruntime.loop.run_files.options import GenerateOptions

TASKS = 10


@attrs.define(kw_only=True)
class Graded(DomainBase):
    """A domain in which an agent's first answers are right; ``right`` is their number."""

    name: str
    splits: tuple[Split, ...] = (Split(name="train"),)
    right: int = TASKS
    description: str = "for tests"
    agent: str = "mutator"
    task_timeout_s: float = 1.0

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return numbered tasks."""
        return tuple(
            Task(id=f"{split}{number}", inputs={"number": number}) for number in range(TASKS)
        )[:limit]

    def score(self, task: Task, prediction: Any) -> Score:
        """Return 1 for the first tasks, 0 for the others."""
        return Score(task_id=task.id, value=float(task.inputs["number"] < self.right), valid=True)

    def report(self, split: str, scores: Sequence[Score]) -> dict[str, Any]:
        """Return the mean score; like many reports, it needs at least one score."""
        assert scores
        return mean_report(self.name, split, scores)


class Answers:
    """Stands in for the containers: answers every task with 0; the domain scores the answers."""

    def __init__(self) -> None:
        """Start with no request."""
        self.asked: list[tuple[str, str, int]] = []

    def ask(self, domain: Any, split: Split, tasks: Sequence[Task]) -> tuple[Prediction, ...]:
        """Record the request and return one prediction per task."""
        self.asked.append((domain.name, split.name, len(tasks)))
        return tuple(Prediction(task_id=task.id, value=0) for task in tasks)

    def score(
        self, domain: Any, tasks: Sequence[Task], predictions: Sequence[Prediction]
    ) -> tuple[Score, ...]:
        """Return the scores of the domain."""
        return tuple(
            domain.score(task, said.value) for task, said in zip(tasks, predictions, strict=True)
        )


def evaluated(
    domains: Sequence[Graded], **options: Any
) -> tuple[dict[tuple[str, str], int], float | None, bool]:
    """Return the number of tasks per split, the score, and whether the evaluation stopped early."""
    answers, kept = Answers(), []

    def keep(domain: Any, split: Split, result: SplitResult) -> None:
        kept.append((domain.name, split.name, len(result.scores)))

    evaluator = Evaluator(answers, answers, {}, keep)  # type: ignore[arg-type]
    made = GenerateOptions(domains=tuple(domain.name for domain in domains), **options)
    early = evaluate_domains(evaluator, domains, made)
    assert len(set(kept)) == len(kept), "a split was kept twice"
    run = {
        (domain, split): len(result.scores)
        for domain, splits in evaluator.results.items()
        for split, result in splits.items()
    }
    assert {(name, split): count for name, split, count in kept} == {
        key: count for key, count in run.items() if count
    }
    return run, selection_score(domains, evaluator.results), early


@pytest.mark.parametrize(
    ("threshold", "inclusive", "right", "full"),
    [
        (0.0, False, 0, False),
        (0.0, False, 1, True),
        (0.4, False, 4, False),
        (0.4, True, 4, True),
        (0.4, True, 3, False),
    ],
)
def test_the_threshold_of_a_split_decides_whether_the_full_stage_runs(
    threshold: float, inclusive: bool, right: int, full: bool
) -> None:
    split = Split(
        name="train", staged_samples=10, staged_threshold=threshold, staged_inclusive=inclusive
    )
    assert split.is_passed(right / 10) is full


def test_a_first_stage_counts_by_its_fraction_of_the_tasks() -> None:
    domain = Graded(
        name="a", splits=(Split(name="train", staged_samples=4, staged_threshold=0.5),), right=2
    )
    run, score, early = evaluated([domain])
    assert (run, early) == ({("a", "train"): 4}, True)
    assert score == pytest.approx(0.5 * 4 / 10)


def test_the_first_stage_can_be_skipped() -> None:
    bad = Graded(
        name="bad", splits=(Split(name="train", staged_samples=2), Split(name="val")), right=0
    )
    assert evaluated([bad])[2] is True
    run, _, early = evaluated([bad], skip_staged_eval=True)
    assert (run, early) == ({("bad", "train"): TASKS, ("bad", "val"): TASKS}, False)


def test_one_domain_below_its_threshold_stops_all_domains_in_any_order() -> None:
    bad = Graded(
        name="bad", splits=(Split(name="train", staged_samples=2), Split(name="val")), right=0
    )
    good = Graded(name="good", splits=(Split(name="train", staged_samples=5), Split(name="val")))
    plain = Graded(name="plain")
    for order in permutations((bad, good, plain)):
        run, score, early = evaluated(order)
        assert run == {("bad", "train"): 2, ("good", "train"): 5, ("plain", "train"): 0}
        assert early
        assert score == pytest.approx((0 + 0.5 + 0) / 3)


def test_the_test_split_runs_only_on_request_and_does_not_change_the_score() -> None:
    domain = Graded(
        name="a", splits=(Split(name="train"), Split(name="val"), Split(name="test")), right=3
    )
    run, score, _ = evaluated([domain])
    assert set(run) == {("a", "train"), ("a", "val")}
    tested, same, _ = evaluated([domain], eval_test=True)
    assert tested == {**run, ("a", "test"): TASKS}
    assert same == score == pytest.approx(0.3)


graded = st.builds(
    lambda samples, threshold, inclusive, right, val: Graded(
        name="x",
        splits=(
            Split(
                name="train",
                staged_samples=samples,
                staged_threshold=threshold / 10,
                staged_inclusive=inclusive,
            ),
            *((Split(name="val", staged_samples=samples),) if val else ()),
        ),
        right=right,
    ),
    st.integers(0, TASKS),
    st.integers(0, TASKS),
    st.booleans(),
    st.integers(0, TASKS),
    st.booleans(),
)


@given(domains=st.lists(graded, min_size=1, max_size=4), data=st.data())
def test_the_order_of_domains_does_not_change_the_result(
    domains: list[Graded], data: st.DataObject
) -> None:
    named = [attrs.evolve(domain, name=f"d{number}") for number, domain in enumerate(domains)]
    run, score, early = evaluated(named)
    assert score is not None
    same_run, same_score, same_early = evaluated(data.draw(st.permutations(named)))
    assert same_run == run
    assert same_score == pytest.approx(score)
    assert same_early == early


@given(domains=st.lists(graded, min_size=1, max_size=4))
def test_sample_counts_follow_the_order_of_the_domains(domains: list[Graded]) -> None:
    named = [attrs.evolve(domain, name=f"d{number}") for number, domain in enumerate(domains)]
    counts = tuple(range(1, len(named) + 1))
    run, _, _ = evaluated(named, eval_samples=counts, skip_staged_eval=True)
    assert all(
        run[domain.name, split.name] == count
        for domain, count in zip(named, counts, strict=True)
        for split in domain.splits
    )
