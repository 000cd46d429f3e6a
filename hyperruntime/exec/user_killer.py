"""Ending all processes of one user of a container. Design: docs/decisions/0022-users-and-shells.md.

The supervisor waits for nothing that the user could stop; whoever ends it waits here, and not for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hyperruntime.exec.lane import Lane
from hyperruntime.exec.lane_pool import LanePool
from hyperruntime.exec.tree_killer import Ask
from hyperruntime.run_as import RunAs

_GIVE_UP_S = 10.0
_DYING_S = 0.3  # what was killed takes a moment to be gone
_MAX_WORDS = 64  # marks in one request, for a line's length


class _Clearing(Lane):
    """A lane that kills its user and says whether anything of it is left."""

    program = "clear"


class UserKiller:
    """Ends a user of the container in which a supervisor's user is root."""

    def __init__(self, lanes: LanePool, exchange: str, ask: Ask, is_lost: Callable[[], bool]) -> None:
        """Prepare.

        Args:
            lanes: of the supervisor.
            exchange: where lanes are made.
            ask: sends the supervisor a verb and its words, and returns the number it answers with in time, or None.
            is_lost: whether the supervisor is gone.
        """
        self._lanes, self._exchange, self._ask, self._is_lost = lanes, exchange, ask, is_lost

    def end(self, user: RunAs, *, switches: bool) -> bool:
        """Kill every process of a uid and forget its lanes; return whether none is left.

        The user kills itself, which takes all its processes at one stroke. Where that fails, everything in the
        container is stopped and searched. The same is done where a lane was given up before it ran as the user: root's
        processes of it may still become the user's, and the kernel's count does not include them.

        Args:
            user: whose.
            switches: whether the supervisor can start something as another user.
        """
        deadline = time.monotonic() + _GIVE_UP_S
        self._lanes.forget(user.uid)
        gone = False
        while not gone and not self._is_lost() and time.monotonic() < deadline:
            gone = switches and not self._lanes.unseen(user.uid) and self._is_cleared(user)
            gone = gone or self._reap(user.uid)
        self._lanes.forget(user.uid)
        return gone

    def _reap(self, uid: int) -> bool:
        """Stop everything, and kill what is the user's or was to be; return whether none is left."""
        marks = self._lanes.unseen(uid)
        for first in range(0, max(1, len(marks)), _MAX_WORDS):
            part = marks[first : first + _MAX_WORDS]
            words = " ".join(str(mark.span[0]) for mark in part)
            if self._ask("reap", f"{uid} {words}", _GIVE_UP_S) != 0:
                return False
            self._lanes.forget_unseen(uid, part)
        return True

    def _is_cleared(self, user: RunAs) -> bool:
        """Tell whether a uid has no process once it was told to kill itself."""
        pause_s = 0.0005
        while (left := self._clear(user)) != "0":
            if left is None or pause_s > _DYING_S:
                return False
            time.sleep(pause_s)
            pause_s *= 2
        return True

    def _clear(self, user: RunAs) -> str | None:
        lane = self._lanes.begin(_Clearing(self._exchange, self._lanes.next_mark(), user))
        try:
            said = lane.wait_for("left", _DYING_S)
            lane.is_up = said is not None  # it says that last
            return said
        finally:
            self._lanes.retire(lane)
