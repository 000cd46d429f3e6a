"""The state that a persistent bash leaves after each text: found in pieces of any size, searched
once, and dropped with a text that was ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from hyperruntime.exec.persistent import shell_lane
from hyperruntime.exec.persistent.shell_lane import ShellLane


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[ShellLane]:
    """Return the host's end of a lane; the test writes what bash would write."""
    made = ShellLane(str(tmp_path), cast(Any, None))
    yield made
    made.close()


def end(lane: ShellLane, number: int) -> bytes:
    return f"\n# end {lane.name} {number}\n".encode()


def say(lane: ShellLane, data: bytes) -> None:
    os.write(lane.state, data)
    lane.hear_state()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_state_is_the_last_complete_one_in_pieces_of_any_size(
    lane: ShellLane, size: int
) -> None:
    lane.hear_state()  # nothing is there, and it does not wait
    data = b"a=1" + end(lane, 1) + b"a=2\n# end of another" + end(lane, 2) + b"a=3"
    for at in range(0, len(data), size):
        say(lane, data[at : at + size])
    assert lane.left == b"a=2\n# end of another\n"
    say(lane, end(lane, 3))
    assert lane.left == b"a=3\n"


def test_a_state_that_is_too_large_is_skipped_and_the_next_one_is_found(
    lane: ShellLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_lane, "_STATE_LIMIT", 1000)
    lane._add(b"a=1" + end(lane, 1))
    for _ in range(100):
        lane._add(b"x" * 99)
        assert len(lane._partial) < 3000
    lane._add(end(lane, 2) + b"a=3" + end(lane, 3))
    assert lane.left == b"a=3\n"


class Counting:
    """A pattern that counts the bytes that are searched."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern, self.searched = pattern, 0

    def search(self, data: bytes, begin: int = 0) -> re.Match[bytes] | None:
        self.searched += len(data) - begin
        return self.pattern.search(data, begin)


def test_a_long_state_in_short_pieces_is_searched_once(lane: ShellLane) -> None:
    counting, pieces, piece = Counting(lane._mark), 5_000, b"x" * 1000
    lane._mark = cast(Any, counting)
    for _ in range(pieces):
        lane._add(piece)
    assert counting.searched <= pieces * (len(piece) + 128)


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_an_ended_text_leaves_the_state_before_it(
    lane: ShellLane, heard: bool, before: int
) -> None:
    """A text may still reach its end while its processes are being killed one by one."""
    for number in range(1, before + 1):
        os.write(lane.state, b"x=%d" % number + end(lane, number))
    for _ in range(before + 1):
        lane.next_exec()
    os.write(lane.state, b"x=late" + end(lane, lane.sequence))
    if heard:
        lane.hear_state()
    lane.undo_text()
    wanted = b"x=%d\n" % before if before else None
    assert lane.left == wanted
    say(lane, b"x=later" + end(lane, lane.sequence))
    assert lane.left == wanted
