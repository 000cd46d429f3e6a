"""The states that a persistent bash leaves: found in pieces of any size, and each byte is searched
about once.
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
    made = ShellLane(str(tmp_path), cast(Any, None))
    yield made
    made.close()


def end(lane: ShellLane, number: int) -> bytes:
    return f"\n# end {lane.name} {number}\n".encode()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_states_are_found_in_pieces_of_any_size(lane: ShellLane, size: int) -> None:
    data = b"a=1" + end(lane, 1) + b"a=2\n# end of another" + end(lane, 2) + b"a=3"
    for at in range(0, len(data), size):
        lane._add(data[at : at + size])
    assert lane.left == b"a=2\n# end of another\n"
    lane._add(end(lane, 3))
    assert lane.left == b"a=3\n"
    lane._undone = 3
    assert lane._heard == 3


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


def test_what_bash_writes_is_read_without_waiting(lane: ShellLane) -> None:
    lane.hear_state()
    os.write(lane.state, b"a=1" + end(lane, 1))
    lane.hear_state()
    assert lane.left == b"a=1\n"
