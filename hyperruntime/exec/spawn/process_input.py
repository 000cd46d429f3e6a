"""The standard input of a background process: a bounded buffer that the event loop writes into its
pipe.
"""

from __future__ import annotations

import asyncio
import os

from hyperruntime.errors import ContainerStateError
from hyperruntime.exec.spawn.process import Process

MOST_BYTES = 1024**2
_ENDED = "nothing reads the standard input: the command has ended, or its input was closed"


class ProcessInput(asyncio.Protocol):
    """Takes the whole input of a call or nothing of it, so what was not taken can be sent again."""

    def __init__(self) -> None:
        """Start closed; :meth:`open` opens it."""
        self._transport: asyncio.WriteTransport | None = None
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    async def open(self, process: Process) -> None:
        """Take the pipe of a process, which nothing else may write to."""
        descriptor = process.detach_stdin()
        if descriptor < 0:
            return  # it has ended
        pipe = os.fdopen(descriptor, "wb", buffering=0)
        self._transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: self, pipe)
        # `resume_writing` means that nothing is left
        self._transport.set_write_buffer_limits(high=0)

    async def write(self, data: bytes, timeout_s: float | None = None) -> None:
        """Take input, as soon as there is room; what it takes is written when the process reads.

        Args:
            data: the input, at most ``MOST_BYTES``.
            timeout_s: seconds to wait for room; None means no limit.

        Raises:
            TimeoutError: the process has not read what it got before; nothing was taken.
            ContainerStateError: the process has ended, or its input was closed.
        """
        transport = self._open_transport()
        try:
            async with asyncio.timeout(timeout_s):
                while transport.get_write_buffer_size() + len(data) > MOST_BYTES:
                    await self._is_empty.wait()
                    transport = self._open_transport()
        except TimeoutError:
            left = transport.get_write_buffer_size()
            why = (
                f"the process has not read {left} bytes of its input; nothing more was taken, "
                "so send it again later"
            )
            raise TimeoutError(why) from None
        transport.write(data)
        self._open_transport()  # raises if the write found that the pipe has no reader

    def end(self) -> None:
        """Let the process read end-of-file after what was taken; may be called again."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the pipe and drop what the process has not read."""
        if self._transport is not None:
            self._transport.abort()

    def _open_transport(self) -> asyncio.WriteTransport:
        if self._transport is None or self._transport.is_closing():
            raise ContainerStateError(_ENDED)
        return self._transport

    def pause_writing(self) -> None:
        """Called when input is left in the buffer."""
        self._is_empty.clear()

    def resume_writing(self) -> None:
        """Called when all of it is in the pipe."""
        self._is_empty.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Called when the pipe is closed or has no reader."""
        self._transport = None
        self._is_empty.set()
