"""Marks are unique, the marks of a group lie in their own ranges, and all fit below the limit that
carries them.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hyperruntime.exec import exec_marks as tags
from hyperruntime.exec.exec_marks import MarkLimit, MarkNumbers


@given(st.lists(st.sampled_from([None, "a", "b"]), max_size=200))
def test_ranges_of_a_group_contain_only_its_own_numbers(groups: list[str | None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tags, "_BLOCK", 3)  # so that a group needs many ranges
        numbers = MarkNumbers()
        given_out = [(group, numbers.next(group)) for group in groups]
        assert len({number for _, number in given_out}) == len(given_out)
        for name in ("a", "b"):
            spans = [span for series in numbers.leave_group(name) for span in series.spans()]
            inside = {(g, n) for g, n in given_out for first, last in spans if first <= n <= last}
            assert inside == {(g, n) for g, n in given_out if g == name}
            own = [n for g, n in given_out if g == name]
            assert own == sorted(own)


def test_many_execs_of_a_group_share_one_range() -> None:
    numbers = MarkNumbers()
    for _ in range(10_000):
        numbers.next("a")
    (series,) = numbers.leave_group("a")
    assert len(series.spans()) == 1
    assert numbers.leave_group("a") == []


def test_a_closed_series_leaves_its_group() -> None:
    numbers = MarkNumbers()
    first, second = numbers.open_series("a"), numbers.open_series("a")
    numbers.close_series("a", first)
    assert numbers.leave_group("a") == [second]
    numbers.rejoin_group("a", [second])
    assert numbers.leave_group("a") == [second]


@given(
    st.sampled_from("xwm"),
    st.one_of(st.just("unlimited"), st.integers(10**18, 2**64 - 2).map(str)),
    st.data(),
)
def test_marks_fit_below_the_limit_that_carries_them(
    option: str, hard: str, data: st.DataObject
) -> None:
    limit = MarkLimit.parse(option, hard)
    assert limit is not None
    numbers = MarkNumbers()
    count = data.draw(st.integers(1, 20))
    given_out = [numbers.next(data.draw(st.sampled_from([None, "a"]))) for _ in range(count)]
    marks = [limit.mark(number) for number in (*given_out, numbers.next_lane())]
    ceiling = 2**64 - 1 if hard == "unlimited" else int(hard)
    for mark in marks:
        least, most = mark.span
        assert 10**12 < least == most <= ceiling
        assert mark.options == b"-%s %d" % (option.encode(), least // limit.unit)
    assert limit.span((given_out[0], given_out[0])) == marks[0].span


def test_the_mark_of_a_lane_is_above_the_marks_of_its_commands() -> None:
    """A hard limit can only be lowered, so the mark of a lane must be above the range of an older
    group.
    """
    limit = MarkLimit.parse("x", "unlimited")
    assert limit is not None
    for _ in range(50):
        numbers = MarkNumbers()
        group = limit.mark(numbers.next("a"))
        lane = limit.mark(numbers.next_lane())
        assert lane.span > group.span


@pytest.mark.parametrize("option", ["x", "m"])
@pytest.mark.parametrize(
    "hard", ["0", "1000", "3145728000", "1" * 15, "9" * 21, "-1", "", "many", "\u0663" * 19]
)
def test_a_limit_that_other_processes_may_have_is_rejected(option: str, hard: str) -> None:
    """The shell in the container reports the limit, and the host kills processes by its value."""
    assert MarkLimit.parse(option, hard) is None


def test_an_unknown_option_of_a_limit_is_rejected() -> None:
    assert [MarkLimit.parse(one, "unlimited") for one in ("", "v", "-x", "xx")] == [None] * 4


def test_all_sessions_of_a_container_must_have_the_same_limit() -> None:
    numbers, first = MarkNumbers(), MarkLimit.parse("x", "unlimited")
    assert first is not None
    assert numbers.agree(first)
    assert numbers.agree(first)
    other = MarkLimit.parse("x", str(2**61))
    assert other is not None
    assert not numbers.agree(other)
