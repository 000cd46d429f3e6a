"""Standard input and output for an event loop, which may stop reading and writing at any time."""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import select
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_OUTPUT = 1
_ERRORS = 2
_FIRST_FREE = 3


async def input_lines() -> AsyncIterator[str]:
    """Yield the lines of standard input until its end; what is not UTF-8 becomes U+FFFD.

    A daemon thread reads them, one ahead, so that neither a cancelled task nor the end of the
    process waits for input. The thread has a buffer of its own: the interpreter takes the lock of
    ``sys.stdin`` when it ends.
    """
    loop = asyncio.get_running_loop()
    lines = asyncio.Queue[str](1)

    def put(line: str) -> None:
        asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()

    def read() -> None:
        with suppress(RuntimeError):  # the loop is closed
            with suppress(OSError), open(0, "rb", closefd=False) as received:
                for line in received:
                    put(line.decode(errors="replace"))
            put("")

    threading.Thread(target=read, name="hyperruntime-input", daemon=True).start()
    while line := await lines.get():
        yield line


class OutputText:
    """Writes text to a descriptor, piece by piece.

    A daemon thread writes, so that neither a cancelled task nor the end of the process waits for a
    reader that does not read.
    """

    def __init__(self, descriptor: int) -> None:
        """Start the thread.

        Args:
            descriptor: where to write; it stays open.
        """
        self._descriptor = descriptor
        self._waiting: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name="hyperruntime-output", daemon=True).start()

    async def write(self, text: str) -> None:
        """Write a text, as UTF-8.

        Raises:
            OSError: it cannot be written; a BrokenPipeError if nobody can read it any more.
        """
        written = self._loop.create_future()
        self._waiting.put((text.encode(errors="replace"), written))
        await written

    async def flush(self) -> None:
        """Do nothing: :meth:`write` waits until everything is written."""

    def close(self) -> None:
        """End the thread when it has written what it has."""
        self._waiting.put(None)

    def _run(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            while (waiting := self._waiting.get()) is not None:
                data, written = waiting
                if written.cancelled():
                    continue
                error = self._write(data)
                self._loop.call_soon_threadsafe(_settle, written, error)

    def _write(self, data: bytes) -> OSError | None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # another process on the same terminal made it non-blocking
                select.select([], [self._descriptor], [])
            except OSError as error:
                return error
        return None


@asynccontextmanager
async def own_standard_output() -> AsyncIterator[OutputText]:
    """Yield standard output for this block alone; what others write to it goes to standard error
    meanwhile.
    """
    # stays open: the thread may still write
    own = fcntl.fcntl(_OUTPUT, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    output = OutputText(own)
    os.dup2(_ERRORS, _OUTPUT)
    try:
        yield output
    finally:
        output.close()
        os.dup2(own, _OUTPUT)


def _settle(written: asyncio.Future[None], error: OSError | None) -> None:
    if written.done():
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
