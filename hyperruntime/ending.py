"""Ending process trees: what is asked for at the same time is done in one sweep. See docs/decisions/0002-exec.md."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import attrs

from hyperruntime.process import kill_limited

_ANSWER_S = 0.3  # then the host helps: the supervisor may be starved by what it shall end
_GIVE_UP_S = 10.0
_MAX_BATCH = 64


@attrs.frozen
class Tree:
    """What one exec started, or many.

    Attributes:
        group: process group of its lane inside the container, or 0.
        least_bytes: the hard RSS limit that marks it; of many the least one.
        most_bytes: the same, of many the greatest one.
    """

    group: int
    least_bytes: int
    most_bytes: int

    def word(self, *, groups: bool) -> str:
        """Return it as the supervisor takes it."""
        marks = (
            f"{self.least_bytes}" if self.least_bytes == self.most_bytes else f"{self.least_bytes}-{self.most_bytes}"
        )
        return f"{self.group if groups else 0}:{marks}"


Ask = Callable[[str, str, float], int | None]


class TreeEnder:
    """Ends trees for many threads: the first to come does the work for all that wait."""

    def __init__(self, ask: Ask, is_lost: Callable[[], bool]) -> None:
        """Prepare.

        Args:
            ask: sends the supervisor a verb and its words, and returns the number it answers with in time, or None.
            is_lost: whether the supervisor is gone.
        """
        self.private_groups = False
        self._ask, self._is_lost = ask, is_lost
        self._turn = threading.Condition()
        self._waiting: list[Tree] = []
        self._ended: dict[Tree, bool] = {}
        self._busy = False

    def end(self, tree: Tree) -> bool:
        """Kill a tree; return whether none of it is left."""
        with self._turn:
            self._waiting.append(tree)
            while self._busy and tree not in self._ended:
                self._turn.wait()
            if tree in self._ended:
                return self._ended.pop(tree)
            self._busy = True
            batch = [tree, *(other for other in self._waiting if other != tree)][:_MAX_BATCH]
        ended: dict[Tree, bool] = {}
        try:
            ended = dict.fromkeys(batch, self._sweep(batch))
        finally:
            with self._turn:
                self._busy = False
                self._waiting = [other for other in self._waiting if other != tree and other not in ended]
                self._ended.update(ended)
                self._turn.notify_all()
        return self._ended.pop(tree)

    def _sweep(self, trees: Sequence[Tree]) -> bool:
        """Sweep until nothing is found and nothing was born meanwhile; return whether that came to be.

        The third round stops everything for the moment of the sweep, which leaves nowhere to run to.
        """
        words = " ".join(tree.word(groups=self.private_groups) for tree in trees)
        limits = [(tree.least_bytes, tree.most_bytes) for tree in trees]
        groups = self.private_groups and all(tree.group for tree in trees)
        deadline = time.monotonic() + _GIVE_UP_S
        verbs = iter(("kill", "kill"))
        seen = clean = 0
        while not self._is_lost() and time.monotonic() < deadline:
            left = self._ask(next(verbs, "freeze"), words, _ANSWER_S)
            if left == 0:
                return True
            if left is None and not self._is_lost():
                found = kill_limited(limits, groups=groups)
                seen, clean = seen + found, 0 if found else clean + 1
                if seen and clean >= 2:
                    return True
            time.sleep(0.005)
        return False
