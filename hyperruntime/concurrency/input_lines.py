"""Lines of standard input for an event loop, which may stop reading at any time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress


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
