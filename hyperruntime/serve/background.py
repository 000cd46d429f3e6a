"""A background process of a container, whose output its caller takes from time to time."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress

from hyperruntime.exec.options import Stream
from hyperruntime.exec.spawn.process import Process
from hyperruntime.serve.models import ProcessState, end_of


class Background:
    """A background process of a container, for its caller.

    Attributes:
        process: the process.
        name: its name.
    """

    def __init__(self, process: Process, args: tuple[str, ...], news: asyncio.Event) -> None:
        """Take no output yet.

        Args:
            process: the process.
            args: its command.
            news: set when it has written something, or has ended.
        """
        self.process = process
        self.name, self._args, self._news = uuid.uuid4().hex[:12], args, news
        self._rest: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}

    @property
    def state(self) -> ProcessState:
        """What its caller is told of it; raises the error that ended it."""
        end = end_of(self.process.wait()) if self.process.ended.is_set else None
        return ProcessState(process=self.name, args=self._args, end=end)

    async def take(self, wait_s: float, *, whole_characters: bool) -> tuple[bytes, bytes]:
        """Return its standard output and its standard error since the last time.

        Args:
            wait_s: seconds to wait for output or its end.
            whole_characters: leave the first bytes of a character of UTF-8 for the next time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            self._news.clear()
            has_ended = self.process.ended.is_set
            cut = whole_characters and not has_ended
            out, err = self._new("stdout", cut=cut), self._new("stderr", cut=cut)
            if out or err or has_ended or loop.time() >= deadline:
                return out, err
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()

    def _new(self, stream: Stream, *, cut: bool) -> bytes:
        data = self._rest[stream] + self.process.read(stream)
        end = _whole_length(data) if cut else len(data)
        self._rest[stream] = data[end:]
        return data[:end]


def _whole_length(data: bytes) -> int:
    """Return the length without the first bytes of a character of UTF-8 at the end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # not a continuation
            needed = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
            return len(data) - back if needed > back else len(data)
    return len(data)
