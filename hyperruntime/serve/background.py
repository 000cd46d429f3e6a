"""A background process of a container, whose output its caller polls."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress

import attrs

from hyperruntime.exec.options import Stream
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.process_input import ProcessInput
from hyperruntime.serve.models import ProcessState, end_of, facts_of


@attrs.frozen
class Taken:
    """The output of a process since the last time.

    Attributes:
        stdout: its standard output.
        stderr: its standard error.
        truncated: whether the middle of one of them was dropped.
        state: the state of the process before this output was read: if it has ended, no other
            output comes.
    """

    stdout: bytes
    stderr: bytes
    truncated: bool
    state: ProcessState


class Background:
    """A background process of a container, for its caller.

    Attributes:
        process: the process.
        name: its name.
        input: its standard input.
    """

    def __init__(self, process: Process, args: tuple[str, ...], news: asyncio.Event) -> None:
        """Take no output yet.

        Args:
            process: the process.
            args: its command.
            news: set when it has written something, or has ended.
        """
        self.process = process
        self.input = ProcessInput()
        self.name = uuid.uuid4().hex[:12]
        self._args = args
        self._news = news
        self._rest: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}

    @property
    def state(self) -> ProcessState:
        """Its state, as clients see it."""
        end = error = None
        if self.process.ended.is_set:
            try:
                end = end_of(self.process.wait())
            except Exception as why:  # noqa: BLE001 - any error may have ended it
                error = facts_of(why)
        return ProcessState(process=self.name, args=self._args, end=end, error=error)

    async def take(self, wait_s: float, *, whole_characters: bool) -> Taken:
        """Return its output since the last time.

        Args:
            wait_s: seconds to wait for output or its end.
            whole_characters: keep an incomplete character of UTF-8 at the end for the next call.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            self._news.clear()
            # before the output is read: a process that has ended has written all of it
            state = self.state
            has_ended = state.end is not None or state.error is not None
            cut = whole_characters and not has_ended
            out, out_cut = self._new("stdout", cut=cut)
            err, err_cut = self._new("stderr", cut=cut)
            if out or err or has_ended or loop.time() >= deadline:
                return Taken(out, err, out_cut or err_cut, state)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()

    def _new(self, stream: Stream, *, cut: bool) -> tuple[bytes, bool]:
        new, truncated = self.process.take(stream)
        data = self._rest[stream] + new
        end = _whole_length(data) if cut else len(data)
        self._rest[stream] = data[end:]
        return data[:end], truncated


def _whole_length(data: bytes) -> int:
    """Return the length without an incomplete character of UTF-8 at the end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # not a continuation
            needed = (
                2
                if byte >> 5 == 0b110
                else 3
                if byte >> 4 == 0b1110
                else 4
                if byte >> 3 == 0b11110
                else 1
            )
            return len(data) - back if needed > back else len(data)
    return len(data)
