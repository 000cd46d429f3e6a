"""Close an object or a file descriptor at the end of a ``with`` block."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A context manager that closes itself; for classes with a ``close`` method."""

    __slots__ = ()

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    @abstractmethod
    def close(self) -> object:
        """End it; the result is not used here."""


class AsyncClosing(Closing):
    """A :class:`Closing` for event loops too: it closes in a thread, and does not block the
    loop.
    """

    async def aclose(self) -> None:
        """Do what ``close`` does in a thread; it goes on if the caller is cancelled."""
        # loads asyncio, which most commands never use
        from hyperruntime.concurrency.blocking import RESETS, blocking

        await blocking(RESETS, self.close)

    async def __aenter__(self) -> Self:
        """Return the object itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it in a thread."""
        await self.aclose()


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[int]:
    """Yield a file descriptor and close it."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
