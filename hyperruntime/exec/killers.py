"""Kill the processes of commands, and all processes of a user.

Designs: docs/design/exec.md#ends-of-process-trees, docs/design/exec.md#users.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress

import attrs

from hyperruntime.exec.exec_marks import Span
from hyperruntime.exec.lane import Lane, LanePool
from hyperruntime.host.process import overload, process_start_ticks, read_proc
from hyperruntime.run_as import RunAs

_ANSWER_S = 0.3  # then the host kills too: the processes to kill may starve the supervisor
GIVE_UP_S = 10.0  # on an idle machine
# of all processes of a user: on few cores, those of a fork loop take long to die
_USER_GIVE_UP_S = 30.0
_MAX_BATCH = 64
_DYING_S = 0.3  # killed processes take a moment to disappear
_MAX_WORDS = 64  # marks in one request, to limit the length of its line


@attrs.frozen
class Tree:
    """The processes that one or many execs started.

    Attributes:
        group: process group of the exec's lane inside the container, or 0.
        title: name of the limit that marks the processes, see
            :class:`~hyperruntime.exec.exec_marks.MarkLimit`.
        spans: ranges (least, greatest) of that limit's hard value, as ``/proc/PID/limits`` prints
            it.
    """

    group: int
    title: str
    spans: tuple[Span, ...]

    def has_one_of(self, limits: Collection[int]) -> bool:
        """Return whether one of these limits marks a process as the tree's."""
        return any(least <= limit <= most for limit in limits for least, most in self.spans)

    def words(self, *, groups: bool) -> str:
        """Return the tree in the format of the supervisor's ``kill`` request; ``groups`` adds the
        process group.
        """
        marks = (f"{least}" if least == most else f"{least}-{most}" for least, most in self.spans)
        return " ".join(f"{self.group if groups else 0}:{mark}" for mark in marks)


def find_limited(
    title: str, spans: Collection[Span], names: Iterable[str]
) -> Iterator[tuple[str, int]]:
    """Yield the pid and the limit of each living process of this machine with a hard limit in one
    of ``spans``.

    Args:
        title: name of the limit in ``/proc/PID/limits``, after ``Max``.
        spans: ranges (least, greatest) of values that no other process has; see :class:`MarkLimit`.
        names: pids to look at.
    """
    line = re.compile(rb"Max %s +\S+ +(\d+) " % title.encode())
    for name in names:
        match = line.search(read_proc(name, "limits"))
        limit = int(match[1]) if match else -1
        if (
            any(least <= limit <= most for least, most in spans)
            and process_start_ticks(name) is not None
        ):
            yield name, limit


def kill_limited(title: str, spans: Collection[Span], *, groups: bool) -> set[int]:
    """Kill every living process of this machine with a hard limit in one of ``spans``; return the
    limits found.

    All are stopped first, so that no shell among them writes that a child was killed.

    Args:
        title: name of the limit in ``/proc/PID/limits``, after ``Max``.
        spans: ranges (least, greatest) of values that no other process has; see :class:`MarkLimit`.
        groups: whether to kill their process groups too, which ends a whole fork loop in one call.
    """

    def send(number: signal.Signals, names: Iterable[str]) -> dict[str, int]:
        sent = {}
        for name, limit in find_limited(title, spans, names):
            sent[name] = limit
            _signal(int(name), number, groups=groups)
        return sent

    stopped = send(signal.SIGSTOP, filter(str.isdigit, os.listdir("/proc")))
    send(signal.SIGKILL, stopped)  # looks at each again: another process may have its number now
    return set(stopped.values())


def _signal(pid: int, number: signal.Signals, *, groups: bool) -> None:
    with suppress(ProcessLookupError, PermissionError):
        group = os.getpgid(pid)
        os.kill(pid, number)
        if groups:
            os.killpg(group, number)


@attrs.define(eq=False)
class _Request:
    """The request of one waiting caller; compared by identity, because each caller gets its own
    result.
    """

    tree: Tree
    ended: bool | None = None


Ask = Callable[[str, str, float], int | None]
"""Sends the supervisor a verb and its words with a timeout in seconds; returns the number in its
answer, or None.
"""


class TreeKiller:
    """Kills trees for many threads: the first thread does the work for all that wait, in one
    sweep.
    """

    def __init__(self, ask: Ask, is_lost: Callable[[], bool]) -> None:
        """Prepare.

        Args:
            ask: sends the supervisor a request.
            is_lost: returns whether the supervisor is gone.
        """
        self.private_groups = False
        self._ask = ask
        self._is_lost = is_lost
        self._turn = threading.Condition()
        self._waiting: list[_Request] = []
        self._busy = False

    def end(self, tree: Tree) -> bool:
        """Kill a tree; return whether no process of it is left."""
        request = _Request(tree)
        with self._turn:
            self._waiting.append(request)
            try:
                while self._busy and request.ended is None:
                    self._turn.wait()
            except BaseException:
                self._waiting = [other for other in self._waiting if other is not request]
                raise
            if request.ended is not None:
                return request.ended
            self._busy = True
            batch = [request, *(other for other in self._waiting if other is not request)][
                :_MAX_BATCH
            ]
            self._waiting = [other for other in self._waiting if other not in batch]
        try:
            ended = self._sweep([other.tree for other in batch])
        except BaseException:
            self._finish(batch, None)
            raise
        self._finish(batch, ended)
        return ended

    def _finish(self, batch: Sequence[_Request], ended: bool | None) -> None:
        """Give the result of a sweep to the callers of a batch; None (interrupted) makes each start
        its own sweep.
        """
        with self._turn:
            self._busy = False
            for request in batch:
                request.ended = ended
            self._turn.notify_all()

    def _sweep(self, trees: Sequence[Tree]) -> bool:
        """Sweep until a round finds no process and no process was created meanwhile; return whether
        that succeeded.

        From the third round on, all processes in the container are stopped during the sweep, so
        that none can escape.
        """
        words = " ".join(tree.words(groups=self.private_groups) for tree in trees)
        spans = [span for tree in trees for span in tree.spans]
        groups = self.private_groups and all(tree.group for tree in trees)
        deadline = time.monotonic() + GIVE_UP_S * overload()
        verbs = iter(("kill", "kill"))
        unseen = set(trees)
        clean = 0
        while not self._is_lost() and time.monotonic() < deadline:
            left = self._ask(next(verbs, "freeze"), words, _ANSWER_S)
            if left == 0:
                return True
            if left is None and not self._is_lost():
                found = kill_limited(trees[0].title, spans, groups=groups)
                unseen -= {tree for tree in unseen if tree.has_one_of(found)}
                clean = 0 if found else clean + 1
                if not unseen and clean >= 2:
                    return True
            time.sleep(0.005)
        return False


class _Clearing(Lane):
    """A lane that kills its user's processes and reports whether any is left."""

    program = "clear"


def kill_user(
    lanes: LanePool, ask: Ask, is_lost: Callable[[], bool], user: RunAs, *, switches: bool
) -> bool:
    """Kill every process of a uid and drop its lanes; return whether none is left.

    A process of the user kills all processes of that user in one call. If that fails, all processes
    in the container are stopped and searched. The search also runs if a lane was retired before it
    ran as the user: its processes are still root's, may become the user's, and are not in the
    kernel's count of the user's processes. The supervisor never waits for a process that the user
    could stop. The host waits instead, for a limited time.

    Args:
        lanes: lanes of a supervisor that runs as root.
        ask: sends that supervisor a request.
        is_lost: returns whether it is gone.
        user: the user.
        switches: whether it can start processes as another user.
    """
    deadline = time.monotonic() + _USER_GIVE_UP_S * overload()
    lanes.forget(user.uid)
    gone = False
    while not gone and not is_lost() and time.monotonic() < deadline:
        gone = switches and not lanes.unseen(user.uid) and _is_cleared(lanes, user)
        gone = gone or _reap(lanes, ask, user.uid, deadline)
    lanes.forget(user.uid)
    return gone


def _reap(lanes: LanePool, ask: Ask, uid: int, deadline: float) -> bool:
    """Stop all processes, and kill those that are or will become the user's; return whether none is
    left.
    """
    marks = lanes.unseen(uid)
    for first in range(0, max(1, len(marks)), _MAX_WORDS):
        part = marks[first : first + _MAX_WORDS]
        words = " ".join(str(mark.span[0]) for mark in part)
        if ask("reap", f"{uid} {words}", deadline - time.monotonic()) != 0:
            return False
        lanes.forget_unseen(uid, part)
    return True


def _is_cleared(lanes: LanePool, user: RunAs) -> bool:
    """Make the user kill its processes; return whether none is left."""
    pause_s = 0.0005
    while (left := _clear(lanes, user)) != "0":
        if left is None or pause_s > _DYING_S:
            return False
        time.sleep(pause_s)
        pause_s *= 2
    return True


def _clear(lanes: LanePool, user: RunAs) -> str | None:
    lane = lanes.begin(lanes.make(_Clearing, user))
    try:
        said = lane.wait_for("left", _DYING_S)
        lane.on_report(is_up=said is not None)  # `left` is its last report
        return said
    finally:
        lanes.retire(lane)
