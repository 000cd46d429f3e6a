"""Summarise a split under the keys that are usual for this benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hyperruntime.domain import Score


def babyai_report(domain: str, split: str, scores: Sequence[Score]) -> dict[str, Any]:
    """Return the report: progress in percent with its standard error, in total and per level.

    Args:
        domain: the name of the domain.
        split: the name of the split.
        scores: the scores of its tasks.
    """
    levels = sorted({score.facts["level"] for score in scores})
    average, error = _percent(scores)
    return {
        "domain": domain,
        "split": split,
        "score": average / 100,
        "total": len(scores),
        "average_progress": average,
        "standard_error": error,
        "environments": {
            level: _of_level([score for score in scores if score.facts["level"] == level]) for level in levels
        },
    }


def _of_level(scores: Sequence[Score]) -> dict[str, float | int]:
    average, error = _percent(scores)
    return {
        "progression_percentage": average,
        "standard_error": error,
        "episodes_played": len(scores),
        "failed_action_candidates": sum(score.facts["failed_actions"] for score in scores),
    }


def _percent(scores: Sequence[Score]) -> tuple[float, float]:
    """Return the mean and the standard error of the values, in percent."""
    if not scores:
        return 0.0, 0.0
    mean = math.fsum(score.value for score in scores) / len(scores)
    spread = math.fsum((score.value - mean) ** 2 for score in scores) / max(1, len(scores) - 1)
    return 100 * mean, 100 * math.sqrt(spread / len(scores))
