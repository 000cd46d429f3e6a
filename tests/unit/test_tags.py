"""Marks: no two alike, and a group's in ranges that hold no other."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hyperruntime import tags
from hyperruntime.tags import TagNumbers


@given(st.lists(st.sampled_from([None, "a", "b"]), max_size=200))
def test_ranges_of_a_group_hold_its_numbers_and_no_other(groups: list[str | None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tags, "_BLOCK", 3)  # so that groups need many ranges
        numbers = TagNumbers()
        given_out = [(group, numbers.next(group)) for group in groups]
        assert len({number for _, number in given_out}) == len(given_out)
        for name in ("a", "b"):
            spans = [span for series in numbers.leave_group(name) for span in series.spans()]
            inside = {(g, n) for g, n in given_out for first, last in spans if first <= n <= last}
            assert inside == {(g, n) for g, n in given_out if g == name}
            own = [n for g, n in given_out if g == name]
            assert own == sorted(own)


def test_many_execs_of_a_group_cost_no_memory() -> None:
    numbers = TagNumbers()
    for _ in range(10_000):
        numbers.next("a")
    (series,) = numbers.leave_group("a")
    assert len(series.spans()) == 1
    assert numbers.leave_group("a") == []


def test_a_closed_series_leaves_its_group() -> None:
    numbers = TagNumbers()
    first, second = numbers.open_series("a"), numbers.open_series("a")
    numbers.close_series(first)
    assert numbers.leave_group("a") == [second]
    numbers.rejoin_group("a", [second])
    assert numbers.leave_group("a") == [second]
