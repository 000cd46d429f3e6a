"""Summarise a split under the keys that are usual for this benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyperruntime.domain import Score

PREDICTIONS = "predictions.jsonl"  # in the report's directory; holds each exercise's answer and score


def polyglot_report(domain: str, split: str, scores: Sequence[Score]) -> dict[str, Any]:
    """Return the report; ``accuracy_score`` is the share of exercises that pass all their tests.

    Args:
        domain: the name of the domain.
        split: the name of the split.
        scores: the scores of its exercises.
    """
    ids = {
        kind: [score.task_id for score in scores if score.facts.get("result") == kind]
        for kind in ("resolved", "unresolved", "empty_patch", "error")
    }
    resolved = sum(score.value == 1.0 for score in scores)
    accuracy = resolved / len(scores) if scores else 0.0
    return {
        "domain": domain,
        "split": split,
        "score": accuracy,
        "total": len(scores),
        "accuracy_score": accuracy,
        "total_resolved_instances": resolved,
        "total_submitted_instances": len(ids["resolved"]) + len(ids["unresolved"]),
        "total_instances": len(scores),
        "files": [PREDICTIONS],
        "total_resolved_ids": ids["resolved"],
        "total_unresolved_ids": ids["unresolved"],
        "total_emptypatch_ids": ids["empty_patch"],
        "total_error_ids": ids["error"],
    }
