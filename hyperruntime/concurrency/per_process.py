"""Values that each process makes for itself, so that a forked child does not use those of its
parent.

A lock that another thread of the parent held stays locked in the child, and threads of the parent
do not exist there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class PerProcess(Generic[T]):
    """A value of a module, one in each process; every mutable state of a module is in one.

    A child keeps the value of its parent, unused, so that nothing of the parent is finalized in the
    child.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        """Store how to make the value; nothing is made yet.

        Args:
            make: called once in each process, or more often if threads begin together; then one
                value is used.
        """
        self._make = make
        self._values: dict[int, T] = {}

    def get(self) -> T:
        """Return the value of this process. Lock-free."""
        pid = os.getpid()
        try:
            return self._values[pid]
        except KeyError:
            return self._values.setdefault(pid, self._make())


class LockedDict(dict[K, V]):
    """A dictionary, and a lock for changes that take several steps.

    Attributes:
        lock: held by the caller during such a change.
    """

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__()
        self.lock = threading.Lock()
