"""One thread of this process that reads many descriptors, so that none needs a thread of its
own.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable

from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.logs import get_logger

log = get_logger(__name__)


class Poller:
    """Calls functions in one daemon thread when their descriptors are readable or at their end."""

    def __init__(self) -> None:
        """Prepare; the thread starts with the first descriptor."""
        self._epoll = select.epoll()
        self._lock = threading.Lock()
        self._readers: dict[int, Callable[[], None]] = {}
        self._serves = False

    def add(self, descriptor: int, read: Callable[[], None]) -> None:
        """Call ``read`` in the thread whenever the descriptor is readable, until :meth:`remove`.

        Args:
            descriptor: a pipe or a socket.
            read: must not block, also if there is nothing to read: the descriptor may be a new one
                with an old number.
        """
        with self._lock:
            if not self._serves:
                threading.Thread(
                    target=self._serve, name="hyperruntime-poller", daemon=True
                ).start()
                self._serves = True
            self._epoll.register(descriptor, select.EPOLLIN)
            self._readers[descriptor] = read

    def remove(self, descriptor: int) -> None:
        """Forget a descriptor, which is still open. A closed one is not forgotten while a forked
        child holds a copy.
        """
        with self._lock:
            del self._readers[descriptor]
            self._epoll.unregister(descriptor)

    def _serve(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                read = self._readers.get(descriptor)
                if read is None:
                    continue  # removed after the poll
                try:
                    read()
                except Exception as error:  # noqa: BLE001 - the other descriptors must still be read
                    log.warning("a descriptor's reader failed", error=repr(error))


_poller = PerProcess(Poller)  # a forked child has no threads of its parent


def poller() -> Poller:
    """Return the poller of this process."""
    return _poller.get()
