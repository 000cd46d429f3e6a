"""Kill process trees; requests that arrive at the same time share one sweep. See docs/decisions/0002-exec.md."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import attrs

from hyperruntime.exec.exec_marks import Span
from hyperruntime.host.process import kill_limited

_ANSWER_S = 0.3  # then the host kills too: the processes to kill may starve the supervisor
_GIVE_UP_S = 10.0
_MAX_BATCH = 64


@attrs.frozen
class Tree:
    """The processes that one or many execs started.

    Attributes:
        group: process group of the exec's lane inside the container, or 0.
        title: name of the limit that marks the processes, see :class:`~hyperruntime.exec.exec_marks.MarkLimit`.
        spans: ranges (least, greatest) of that limit's hard value, as ``/proc/PID/limits`` prints it.
    """

    group: int
    title: str
    spans: tuple[Span, ...]

    def words(self, *, groups: bool) -> str:
        """Return the tree in the format of the supervisor's ``kill`` request; ``groups`` adds the process group."""
        marks = (f"{least}" if least == most else f"{least}-{most}" for least, most in self.spans)
        return " ".join(f"{self.group if groups else 0}:{mark}" for mark in marks)


@attrs.define(eq=False)
class _Request:
    """The request of one waiting caller; compared by identity, because each caller gets its own result."""

    tree: Tree
    ended: bool | None = None


Ask = Callable[[str, str, float], int | None]


class TreeKiller:
    """Kills trees for many threads: the first thread does the work for all that wait."""

    def __init__(self, ask: Ask, is_lost: Callable[[], bool]) -> None:
        """Prepare.

        Args:
            ask: sends the supervisor a verb and its words with a timeout in seconds; returns the number in its answer,
                or None if no answer comes in time.
            is_lost: returns whether the supervisor is gone.
        """
        self.private_groups = False
        self._ask, self._is_lost = ask, is_lost
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
            batch = [request, *(other for other in self._waiting if other is not request)][:_MAX_BATCH]
            self._waiting = [other for other in self._waiting if other not in batch]
        try:
            ended = self._sweep([other.tree for other in batch])
        except BaseException:
            self._finish(batch, None)
            raise
        self._finish(batch, ended)
        return ended

    def _finish(self, batch: Sequence[_Request], ended: bool | None) -> None:
        """Give the result of a sweep to the callers of a batch; None (interrupted) makes each start its own sweep."""
        with self._turn:
            self._busy = False
            for request in batch:
                request.ended = ended
            self._turn.notify_all()

    def _sweep(self, trees: Sequence[Tree]) -> bool:
        """Sweep until a round finds no process and no process was created meanwhile; return whether that succeeded.

        From the third round on, all processes in the container are stopped during the sweep, so that none can escape.
        """
        words = " ".join(tree.words(groups=self.private_groups) for tree in trees)
        spans = [span for tree in trees for span in tree.spans]
        groups = self.private_groups and all(tree.group for tree in trees)
        deadline = time.monotonic() + _GIVE_UP_S
        verbs = iter(("kill", "kill"))
        seen = clean = 0
        while not self._is_lost() and time.monotonic() < deadline:
            left = self._ask(next(verbs, "freeze"), words, _ANSWER_S)
            if left == 0:
                return True
            if left is None and not self._is_lost():
                found = kill_limited(trees[0].title, spans, groups=groups)
                seen, clean = seen + found, 0 if found else clean + 1
                if seen and clean >= 2:
                    return True
            time.sleep(0.005)
        return False
