"""Summarise a split under the keys of HyperAgents' reports.

Source: HyperAgents' report.json (overall_accuracy and the other keys).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hyperruntime.domain import Score

NO_ANSWER = "none"


def table_report(domain: str, split: str, scores: Sequence[Score], ordered: Sequence[str]) -> dict[str, Any]:
    """Return the report; it does not name the label of any row, because agents may read it.

    Args:
        domain: the name of the domain.
        split: the name of the split.
        scores: the scores of its rows.
        ordered: the labels in their order; empty if they have none.
    """
    pairs = [_pair(score) for score in scores]
    correct = sum(label == said for label, said in pairs)
    accuracy = correct / len(pairs) if pairs else 0.0
    truth = Counter(label for label, _ in pairs)
    report: dict[str, Any] = {
        "domain": domain,
        "split": split,
        "score": accuracy,
        "overall_accuracy": accuracy,
        "total_correct": correct,
        "total": len(pairs),
        "valid": sum(score.valid for score in scores),
        "accuracy_by_ground_truth": {label: _of_label(label, pairs) for label in sorted(truth)},
        "label_distribution": _distributions(pairs),
        "random_guess_accuracy": 1 / len(truth) if truth else 0.0,
        "question_ids_failed": [score.task_id for score in scores if not score.value],
        "question_ids_passed": [score.task_id for score in scores if score.value],
    }
    if ordered:
        report["normalized_mean_absolute_error"] = _mean_distance(pairs, ordered)
    return report


def _pair(score: Score) -> tuple[str, str | None]:
    """Return the right label and the given one; None if the task ended without a valid answer."""
    return score.facts["label"], score.facts["said"]


def _of_label(label: str, pairs: Sequence[tuple[str, str | None]]) -> Mapping[str, float | int]:
    total = sum(right == label for right, _ in pairs)
    said = sum(answer == label for _, answer in pairs)
    correct = sum(right == label and answer == label for right, answer in pairs)
    return {
        "precision": correct / said if said else 0.0,
        "recall": correct / total if total else 0.0,
        "correct": correct,
        "total": total,
    }


def _distributions(pairs: Sequence[tuple[str, str | None]]) -> Mapping[str, Mapping[str, float]]:
    """Return the share of each label among the rows and among the answers."""
    truth = Counter(label for label, _ in pairs)
    said = Counter(NO_ANSWER if answer is None else answer for _, answer in pairs)
    return {
        "ground_truth": {label: truth[label] / len(pairs) for label in sorted(truth)},
        "prediction": {label: said[label] / len(pairs) for label in sorted(said)},
    }


def _mean_distance(pairs: Sequence[tuple[str, str | None]], ordered: Sequence[str]) -> float:
    """Return the mean distance of the answers in the order of labels, in [0, 1]; a missing answer counts as 1."""
    place = {label: number for number, label in enumerate(ordered)}
    away = [1.0 if said is None else abs(place[label] - place[said]) / (len(ordered) - 1) for label, said in pairs]
    return sum(away) / len(away) if away else 0.0
