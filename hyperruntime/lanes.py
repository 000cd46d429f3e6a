"""The lanes of one session: idle ones of each user, new ones, and none that is forgotten. Imports lane and runas."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hyperruntime.lane import Lane
from hyperruntime.runas import RunAs


class LanePool:
    """Lanes that a supervisor has started; safe to use from many threads."""

    def __init__(self, exchange: str, request: Callable[[Lane], None]) -> None:
        """Prepare; there is none yet.

        Args:
            exchange: where their directories are made.
            request: asks the supervisor to start a lane.
        """
        self._exchange, self._request = exchange, request
        self._lock = threading.Lock()
        self._idle: dict[RunAs | None, list[Lane]] = {}
        self._lanes: set[Lane] = set()
        self._closing = False

    def acquire(self, user: RunAs | None, *, checks: bool) -> Lane:
        """Return a lane for one exec as a user: an idle one, else a new one.

        Args:
            user: whose.
            checks: whether a new one shall say why it cannot begin.

        Raises:
            ContainerLostError: the container is gone.
            OSError: no space or no descriptors for a new lane.
        """
        while (idle := self._pop_idle(user)) is not None:
            if idle.is_usable():
                return idle
            self.retire(idle)
        lane = Lane(self._exchange, user)
        lane.checks = checks
        return self.begin(lane)

    def begin(self, lane: Lane) -> Lane:
        """Have a new lane started, and return it; errors as of :meth:`acquire`."""
        with self._lock:
            self._lanes.add(lane)
        try:
            self._request(lane)
        except BaseException:
            self.retire(lane)
            raise
        return lane

    def release(self, lane: Lane) -> None:
        """Keep a lane that is clean for the next exec of its user."""
        with self._lock:
            if not self._closing and lane in self._lanes:
                self._idle.setdefault(lane.user, []).append(lane)
                return
        self.retire(lane)

    def retire(self, lane: Lane) -> None:
        """Give up a lane that may not serve again."""
        with self._lock:
            known = lane in self._lanes
            self._lanes.discard(lane)
        if known or lane.is_open():
            lane.close()

    def forget(self, uid: int) -> None:
        """Give up the idle lanes of a uid now, and those in use as soon as they are free."""
        with self._lock:
            users = [user for user in self._idle if user is not None and user.uid == uid]
            idle = [lane for user in users for lane in self._idle.pop(user)]
            self._lanes = {lane for lane in self._lanes if lane.user is None or lane.user.uid != uid}
        for lane in idle:
            lane.close()

    def close(self) -> None:
        """Close the idle lanes; one in use is closed by the thread that uses it."""
        with self._lock:
            self._closing = True
            idle = [lane for lanes in self._idle.values() for lane in lanes]
            self._idle.clear()
            self._lanes.difference_update(idle)
        for lane in idle:
            lane.close()

    def all(self) -> tuple[Lane, ...]:
        """Return every lane; takes no lock, for in a forked child whoever held it is not."""
        return tuple(self._lanes)

    def _pop_idle(self, user: RunAs | None) -> Lane | None:
        with self._lock:
            lanes = self._idle.get(user)
            lane = lanes.pop() if lanes else None
            if not lanes:
                self._idle.pop(user, None)
            return lane
