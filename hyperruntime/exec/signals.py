"""Signals to commands that run: the methods that processes, terminals and shells share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from signal import SIGINT

from hyperruntime.concurrency.blocking import EXECS, blocking


class TakesSignals(ABC):
    """A process, terminal or shell in a container, which takes signals."""

    __slots__ = ()

    @abstractmethod
    def signal(self, number: int) -> bool:
        """Send a signal; return whether a process could get it."""

    def interrupt(self) -> bool:
        """Send SIGINT, as Ctrl-C does; see :meth:`signal`."""
        return self.signal(SIGINT)

    async def asignal(self, number: int) -> bool:
        """Do what :meth:`signal` does without blocking the event loop."""
        return await blocking(EXECS, partial(self.signal, number))

    async def ainterrupt(self) -> bool:
        """Do what :meth:`interrupt` does without blocking the event loop."""
        return await blocking(EXECS, self.interrupt)
