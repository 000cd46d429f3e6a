"""The rule of retries: what goes to another node, what fails an item, and what ends a run."""

from __future__ import annotations

import pytest

from hyperruntime.errors import ClusterError, NodeLostError
from hyperruntime.runs.retry import (
    ATTEMPTS_IN_A_ROW,
    MOST_FAULTS,
    MOST_LOSSES,
    Losses,
    LostTooOftenError,
    Streak,
    attempts_in_a_row,
)


def test_work_that_was_lost_on_ten_nodes_goes_to_no_other_one() -> None:
    losses = Losses()
    for _ in range(MOST_LOSSES - 1):
        losses.count(NodeLostError("node a is lost"))
    with pytest.raises(LostTooOftenError, match="lost on 10 nodes; the last time: node b is lost"):
        losses.count(NodeLostError("node b is lost"))


def test_three_nodes_that_cannot_do_the_work_end_the_run_with_the_error_of_the_last_one() -> None:
    losses = Losses()
    for _ in range(MOST_FAULTS - 1):
        losses.count(ClusterError("no engine"))
        losses.count(NodeLostError("lost meanwhile"))
    with pytest.raises(ClusterError, match="the last"):
        losses.count(ClusterError("the last"))


def test_an_error_that_all_nodes_would_give_ends_the_run_at_once() -> None:
    with pytest.raises(ClusterError):
        Losses().count(ClusterError("no such environment"), ends_run=True)


def test_a_streak_is_over_after_failures_in_a_row() -> None:
    streak = Streak(3)
    for failed, is_over in [(1, 0), (1, 0), (0, 0), (1, 0), (1, 0), (1, 1), (0, 0)]:
        streak.count(failed=bool(failed))
        assert streak.is_over is bool(is_over)


def test_more_attempts_at_once_may_fail_in_a_row() -> None:
    assert [attempts_in_a_row(parallel) for parallel in (1, 10, 64)] == [
        ATTEMPTS_IN_A_ROW,
        ATTEMPTS_IN_A_ROW,
        128,
    ]
