"""User ids for slots: unique in this process, taken from the ids that the engine maps into a container."""

from __future__ import annotations

import secrets
import threading

from hyperruntime.errors import PoolError

# Images and hosts use the ids below; some tools read the ids above as negative numbers.
_LOWEST, _HIGHEST = 20_000, 2**31 - 2
_SPAN = 1_000_000
_NOBODY = (65_533, 65_534, 65_535)
_LEAST = 256

_lock = threading.Lock()
_taken: set[int] = set()


class Users:
    """The user ids for the slots of one pool; a used id comes again only after all others."""

    def __init__(self, first: int, count: int) -> None:
        """Use ``count`` ids from ``first``, beginning at a random one so that two processes seldom use the same."""
        self._first, self._count = first, count
        self._next = secrets.randbelow(count)

    @classmethod
    def of_map(cls, uid_map: str) -> Users:
        """Return user ids of a container's user namespace.

        Args:
            uid_map: content of ``/proc/self/uid_map`` in the container.

        Raises:
            PoolError: the namespace has too few ids.

        Source: user_namespaces(7).
        """
        best = (0, 0)
        for line in uid_map.splitlines():
            inside, _, length = (int(word) for word in line.split())
            first, end = max(inside, _LOWEST), min(inside + length, _HIGHEST)
            best = max(best, (end - first, first))
        count, first = best
        if count < _LEAST:
            raise PoolError(
                f"the engine maps too few user ids into a container for one per slot ({max(0, count)} from"
                f" {_LOWEST} on); give this user more in /etc/subuid, or set slots_per_container=1"
            )
        if count > _SPAN:
            first, count = first + secrets.randbelow(count - _SPAN), _SPAN
        return cls(first, count)

    def take(self) -> int:
        """Return a user id that no slot of this process has; see :meth:`give_back`.

        Raises:
            PoolError: every user id is taken.
        """
        with _lock:
            for _ in range(self._count):
                uid = self._first + self._next
                self._next = (self._next + 1) % self._count
                if uid not in _taken and uid not in _NOBODY:
                    _taken.add(uid)
                    return uid
        raise PoolError("slots have taken every user id that the engine maps into a container; use fewer slots")

    def give_back(self, uid: int) -> None:
        """Take back a user id; its processes and files must be gone."""
        with _lock:
            _taken.discard(uid)
