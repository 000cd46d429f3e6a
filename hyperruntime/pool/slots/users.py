"""Users for slots: numbers that no other slot of this process has, from what the container's engine maps."""

from __future__ import annotations

import secrets
import threading

from hyperruntime.errors import PoolError

# Below are users that images and machines have; above are those that some tools take for negative.
_LOWEST, _HIGHEST = 20_000, 2**31 - 2
_SPAN = 1_000_000
_NOBODY = (65_533, 65_534, 65_535)
_LEAST = 256

_lock = threading.Lock()
_taken: set[int] = set()


class Users:
    """The user ids that slots of one container get; one that was used comes again only after all others."""

    def __init__(self, first: int, count: int) -> None:
        """Take a range; where in it we begin is left to chance, so that two processes seldom meet."""
        self._first, self._count = first, count
        self._next = secrets.randbelow(count)

    @classmethod
    def of_map(cls, uid_map: str) -> Users:
        """Return those that a container's user namespace has.

        Args:
            uid_map: text of its ``/proc/self/uid_map``. Source: user_namespaces(7).

        Raises:
            PoolError: it has too few.
        """
        best = (0, 0)
        for line in uid_map.splitlines():
            inside, _, length = (int(word) for word in line.split())
            first, end = max(inside, _LOWEST), min(inside + length, _HIGHEST)
            best = max(best, (end - first, first))
        count, first = best
        if count < _LEAST:
            raise PoolError(
                f"the engine maps too few users into a container for slots of their own ({max(0, count)} from {_LOWEST}"
                " on); give this user more in /etc/subuid, or set slots_per_container=1"
            )
        if count > _SPAN:
            first, count = first + secrets.randbelow(count - _SPAN), _SPAN
        return cls(first, count)

    def take(self) -> int:
        """Return a user that no slot of this process has; see :meth:`give_back`."""
        with _lock:
            for _ in range(self._count):
                uid = self._first + self._next
                self._next = (self._next + 1) % self._count
                if uid not in _taken and uid not in _NOBODY:
                    _taken.add(uid)
                    return uid
        raise PoolError("every user that the engine maps into a container is taken by a slot; use fewer slots")

    def give_back(self, uid: int) -> None:
        """Take back a user whose processes and files are gone."""
        with _lock:
            _taken.discard(uid)
