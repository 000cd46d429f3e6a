"""The lanes of one session: idle lanes by user, and new lanes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import TypeVar

from hyperruntime.exec.exec_marks import Mark
from hyperruntime.exec.lane import Lane
from hyperruntime.run_as import RunAs

L = TypeVar("L", bound=Lane)


class LanePool:
    """The lanes that a supervisor has started; safe to use from many threads.

    Attributes:
        started: how many lanes have reported to their exec that they run.
    """

    def __init__(
        self, exchange: str, request: Callable[[Lane], None], next_mark: Callable[[], Mark]
    ) -> None:
        """Prepare; no lane exists yet.

        Args:
            exchange: directory in which the lanes' directories are made.
            request: asks the supervisor to start a lane.
            next_mark: returns the mark of a new lane.
        """
        self._exchange = exchange
        self._request = request
        self._next_mark = next_mark
        self._lock = threading.Lock()
        self._idle: dict[RunAs | None, list[Lane]] = {}
        self._lanes: set[Lane] = set()
        # uid and mark of each lane that may still have processes of root
        self._unseen: set[tuple[int, Mark]] = set()
        self.started = 0
        self._closing = False

    def lane_for(self, user: RunAs | None, *, checks: bool) -> Lane:
        """Return a lane for one exec as a user: an idle lane, else a new one.

        Args:
            user: user of the lane; None means the session's own.
            checks: whether a new lane must report the reason if it cannot start.

        Raises:
            ContainerLostError: the container is gone.
            OSError: no space or no file descriptors for a new lane.
        """
        while (idle := self._pop_idle(user)) is not None:
            try:
                if idle.wake():
                    return idle
            except BaseException:
                self.retire(idle)
                raise
            self.retire(idle)
        return self.begin(self.make(Lane, user, checks=checks))

    def make(self, kind: Callable[..., L], user: RunAs | None, *, checks: bool = False) -> L:
        """Return a new lane; nothing runs in it before :meth:`begin`.

        Args:
            kind: class of the lane.
            user: user of the lane; None means the session's own.
            checks: whether it must report the reason if it cannot start.

        Raises:
            OSError: no space or no file descriptors.
        """
        return kind(self._exchange, self._next_mark(), user, checks=checks)

    def begin(self, lane: L) -> L:
        """Start a lane from :meth:`make` and return it; raises the errors of :meth:`lane_for`."""
        with self._lock:
            self._lanes.add(lane)
            if lane.user is not None:
                self._unseen.add((lane.user.uid, lane.mark))
        try:
            self._request(lane)
        except BaseException:
            self.retire(lane)
            raise
        return lane

    def on_report(
        self, lane: Lane, *, has_begun: bool = False, is_up: bool = False, group: int = 0
    ) -> None:
        """Pass a lane what it reports about itself; see :meth:`Lane.on_report`."""
        self.started += is_up and not lane.is_up
        lane.on_report(has_begun=has_begun, is_up=is_up, group=group)

    def keep(self, lane: Lane) -> None:
        """Keep a clean lane for the next exec of its user."""
        try:
            lane.rest()
        except BaseException as error:
            self.retire(lane)
            if isinstance(error, OSError):  # no descriptor is left; the next exec gets a new lane
                return
            raise
        with self._lock:
            if not self._closing and lane in self._lanes:
                self._idle.setdefault(lane.user, []).append(lane)
                return
        self.retire(lane)

    def retire(self, lane: Lane) -> None:
        """Close a lane that must not be reused."""
        with self._lock:
            self._lanes.discard(lane)
            self._see(lane)
        lane.close()

    def forget(self, uid: int) -> None:
        """Close the idle lanes of a uid now, and its lanes in use as soon as they are free."""
        with self._lock:
            users = [user for user in self._idle if user is not None and user.uid == uid]
            idle = [lane for user in users for lane in self._idle.pop(user)]
            for lane in tuple(self._lanes):
                if lane.user is not None and lane.user.uid == uid:
                    self._lanes.discard(lane)
                    self._see(lane)
        for lane in idle:
            lane.close()

    def unseen(self, uid: int) -> tuple[Mark, ...]:
        """Return the marks of a uid's lanes that have not reported that they run as that user.

        Processes of such a lane are still root's and may become the user's, even after the lane was
        retired.
        """
        with self._lock:
            return tuple(mark for known, mark in self._unseen if known == uid)

    def forget_unseen(self, uid: int, marks: Collection[Mark]) -> None:
        """Forget marks that have no living process."""
        with self._lock:
            self._unseen.difference_update((uid, mark) for mark in marks)

    def close(self) -> None:
        """Close the idle lanes; a lane in use is closed by the thread that uses it."""
        with self._lock:
            self._closing = True
            idle = [lane for lanes in self._idle.values() for lane in lanes]
            self._idle.clear()
            self._lanes.difference_update(idle)
        for lane in idle:
            lane.close()

    def all(self) -> tuple[Lane, ...]:
        """Return every lane. Lock-free: the lock holder does not exist in a forked child."""
        return tuple(self._lanes)

    def _see(self, lane: Lane) -> None:
        """Forget the mark of a retired lane if all its processes run as its user."""
        if lane.user is not None and lane.is_up:
            self._unseen.discard((lane.user.uid, lane.mark))

    def _pop_idle(self, user: RunAs | None) -> Lane | None:
        with self._lock:
            lanes = self._idle.get(user)
            lane = lanes.pop() if lanes else None
            if not lanes:
                self._idle.pop(user, None)
            return lane
