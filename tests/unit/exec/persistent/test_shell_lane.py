"""The state that a lasting shell reports after each command text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperruntime.exec.exec_marks import MarkLimit
from hyperruntime.exec.persistent.shell_lane import ShellLane

LIMIT = MarkLimit("w", "x", "file locks", 1, 2**62)


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[ShellLane]:
    """Return the host's end of a lane; the test writes what bash would write."""
    made = ShellLane(str(tmp_path), LIMIT.mark(1))
    yield made
    made.close()


def say(lane: ShellLane, state: bytes, number: int) -> None:
    os.write(lane.state, state + b"\n# end %s %d\n" % (lane.name.encode(), number))


def test_the_state_is_the_last_complete_one(lane: ShellLane) -> None:
    say(lane, b"x=1", 1)
    say(lane, b"x=2", 2)
    os.write(lane.state, b"x=3")
    lane.hear_state()
    assert lane.left == b"x=2\n"
    os.write(lane.state, b"\n# end other 3\n# end %s " % lane.name.encode())
    lane.hear_state()
    assert lane.left == b"x=2\n"
    os.write(lane.state, b"3\n")
    lane.hear_state()
    assert lane.left == b"x=3\n# end other 3\n"


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("before", [(), (1,), (1, 2)])
def test_an_ended_text_leaves_the_state_before_it(
    lane: ShellLane, heard: bool, before: tuple[int, ...]
) -> None:
    """A text may still reach its end while its processes are being killed one by one."""
    for number in before:
        say(lane, b"x=%d" % number, number)
    for _ in range(len(before) + 1):
        lane.next_exec()
    say(lane, b"x=late", lane.sequence)
    if heard:
        lane.hear_state()
    lane.undo_text()
    wanted = b"x=%d\n" % before[-1] if before else None
    assert lane.left == wanted
    say(lane, b"x=later", lane.sequence)
    lane.hear_state()
    assert lane.left == wanted
