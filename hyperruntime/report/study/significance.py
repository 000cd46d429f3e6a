"""Tests of differences between groups of runs, by ``scipy.stats`` (extra ``study``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import attrs

from hyperruntime.errors import ExtraMissingError


@attrs.frozen(kw_only=True)
class Test:
    """A test of one group against another, or against a number.

    Attributes:
        method: its name.
        statistic: of the method.
        p: probability of a difference as large as this or larger without a cause, two-sided.
        wins: probability that a run of the first group is better than one of the other, ties
            counted as half; with a number, the share of runs that are better than it.
    """

    __test__ = False  # for pytest, which takes the name for a test's

    method: str
    statistic: float
    p: float
    wins: float


def can_test() -> bool:
    """Return whether scipy is installed."""
    return importlib.util.find_spec("scipy") is not None


def compare_groups(one: Sequence[float], other: Sequence[float]) -> Test:
    """Return the Mann-Whitney U test of two groups of scores.

    It asks for no shape of their distribution. Its p value is exact for groups of up to eight runs
    without equal scores.

    Args:
        one: the best score of each run; at least one.
        other: as ``one``.

    Raises:
        ExtraMissingError: scipy is not installed.
    """
    stats = _stats()
    found = stats.mannwhitneyu(one, other, alternative="two-sided", method="auto")
    statistic = float(found.statistic)
    return Test(
        method="Mann-Whitney U",
        statistic=statistic,
        p=float(found.pvalue),
        wins=statistic / (len(one) * len(other)),
    )


def compare_with(scores: Sequence[float], value: float) -> Test:
    """Return the Wilcoxon signed-rank test of a group's scores against a number.

    Args:
        scores: the best score of each run; at least one.
        value: the number. If all scores equal it, the statistic is 0 and p is 1.

    Raises:
        ExtraMissingError: scipy is not installed.
    """
    stats = _stats()
    differences = [score - value for score in scores]
    wins = sum(0.5 if one == 0 else one > 0 for one in differences) / len(differences)
    method = "Wilcoxon signed-rank"
    if not any(differences):
        return Test(method=method, statistic=0.0, p=1.0, wins=wins)
    found = stats.wilcoxon([one for one in differences if one], alternative="two-sided")
    return Test(method=method, statistic=float(found.statistic), p=float(found.pvalue), wins=wins)


def _stats() -> Any:  # noqa: ANN401 - a module without types
    if not can_test():
        raise ExtraMissingError("tests", "scipy", "study")
    from scipy import stats

    return stats
