"""Kill all processes of one user of a container. Design: docs/decisions/0022-users-and-shells.md.

The supervisor never waits for a process that the user could stop. The host waits instead, for a limited time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hyperruntime.exec.lane import Lane
from hyperruntime.exec.lane_pool import LanePool
from hyperruntime.exec.tree_killer import Ask
from hyperruntime.run_as import RunAs

_GIVE_UP_S = 10.0
_DYING_S = 0.3  # killed processes take a moment to disappear
_MAX_WORDS = 64  # marks in one request, to limit the length of its line


class _Clearing(Lane):
    """A lane that kills its user's processes and reports whether any is left."""

    program = "clear"


class UserKiller:
    """Kills users' processes in a container whose supervisor runs as root."""

    def __init__(self, lanes: LanePool, ask: Ask, is_lost: Callable[[], bool]) -> None:
        """Prepare.

        Args:
            lanes: lanes of the supervisor.
            ask: sends the supervisor a verb and its words with a timeout in seconds; returns the number in its answer,
                or None if no answer comes in time.
            is_lost: returns whether the supervisor is gone.
        """
        self._lanes, self._ask, self._is_lost = lanes, ask, is_lost

    def end(self, user: RunAs, *, switches: bool) -> bool:
        """Kill every process of a uid and drop its lanes; return whether none is left.

        A process of the user kills all processes of that user in one call. If that fails, all processes in the
        container are stopped and searched. The search also runs if a lane was retired before it ran as the user: its
        processes are still root's, may become the user's, and are not in the kernel's count of the user's processes.

        Args:
            user: the user.
            switches: whether the supervisor can start processes as another user.
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
        """Stop all processes, and kill those that are or will become the user's; return whether none is left."""
        marks = self._lanes.unseen(uid)
        for first in range(0, max(1, len(marks)), _MAX_WORDS):
            part = marks[first : first + _MAX_WORDS]
            words = " ".join(str(mark.span[0]) for mark in part)
            if self._ask("reap", f"{uid} {words}", _GIVE_UP_S) != 0:
                return False
            self._lanes.forget_unseen(uid, part)
        return True

    def _is_cleared(self, user: RunAs) -> bool:
        """Make the user kill its processes; return whether none is left."""
        pause_s = 0.0005
        while (left := self._clear(user)) != "0":
            if left is None or pause_s > _DYING_S:
                return False
            time.sleep(pause_s)
            pause_s *= 2
        return True

    def _clear(self, user: RunAs) -> str | None:
        lane = self._lanes.begin(self._lanes.make(_Clearing, user))
        try:
            said = lane.wait_for("left", _DYING_S)
            lane.on_report(is_up=said is not None)  # `left` is its last report
            return said
        finally:
            self._lanes.retire(lane)
