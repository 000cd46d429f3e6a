"""The streams of work in a thread, which coroutines of an event loop read and write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, BinaryIO, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


class LoopStreams:
    """Lets threads wait for coroutines of the event loop that made it, until it is closed."""

    def __init__(self) -> None:
        """Wait for nothing yet; called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._waiting: set[Future[Any]] = set()
        self._closed = threading.Event()

    @property
    def waits(self) -> frozenset[Future[Any]]:
        """What threads wait for now."""
        return frozenset(tuple(self._waiting))

    def close(self) -> None:
        """Raise CancelledError in each waiting thread, such as for a client that does not read;
        called on the loop.
        """
        self._closed.set()
        for future in tuple(self._waiting):
            future.cancel()

    def output(self, write: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
        """Return a function for a thread that calls ``write`` on the loop, and waits until it has
        returned.
        """

        def from_thread(*args: P.args, **kwargs: P.kwargs) -> None:
            self._wait(lambda: write(*args, **kwargs))

        return from_thread

    def input(self, read: Callable[[], Coroutine[Any, Any, bytes]]) -> BinaryIO:
        """Return a file for a thread whose content ``read`` returns piece by piece, and b"" at the
        end.
        """
        return cast(BinaryIO, _Input(lambda: self._wait(read)))

    def _wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._closed.is_set():
            raise CancelledError
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        self._waiting.add(future)
        if self._closed.is_set():  # since the check above
            future.cancel()
        try:
            return future.result()
        finally:
            self._waiting.discard(future)


class _Input:
    """An input that comes in pieces, as a file."""

    def __init__(self, ask: Callable[[], bytes]) -> None:
        self._ask = ask
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        self._left = self._left or self._ask()
        cut = len(self._left) if size < 0 else size
        part, self._left = self._left[:cut], self._left[cut:]
        return part
