"""Commands of a session that the SDK polls, on terminals or on pipes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Unpack

from hyperruntime.container import Container
from hyperruntime.exec.options import ShellKeywords
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.exec.streams import OutputBuffer

_UNREAD_BYTES = 1024**2
_MOST = 64
_FIRST = 1000


class BackgroundCommand:
    """A command whose output is buffered until :meth:`poll`; output above 1 MiB keeps its head and
    tail.

    Attributes:
        terminal: its terminal; None if its output goes to a pipe, with an empty input.
        end: done when it has ended and all its output is here; its result is the exit code.
        ended: set at the end.
        chunks: output that :meth:`poll` took.
        used: monotonic time of the last :meth:`poll`.
    """

    def __init__(self, process: Process, terminal: Terminal | None) -> None:
        """Follow a command that runs; in an event loop."""
        self.terminal = terminal
        self._process = process
        self.ended = asyncio.Event()
        self.chunks = deque[bytes]()
        self.used = time.monotonic()
        self._unread = OutputBuffer(_UNREAD_BYTES)
        self.end = asyncio.create_task(self._follow())
        self.end.add_done_callback(lambda _: self.ended.set())

    async def _follow(self) -> int:
        while self.terminal is not None and (chunk := await self.terminal.aread()):
            self._unread.write(chunk)
        return (await self._process.await_end()).exit_code

    async def poll(self) -> None:
        """Append the output since the last call to ``chunks``, without waiting."""
        self.used = time.monotonic()
        if self.terminal is None:
            chunk = self._process.read()
        else:
            chunk, self._unread = self._unread.value(), OutputBuffer(_UNREAD_BYTES)
        if chunk:
            self.chunks.append(chunk)

    async def write(self, data: bytes) -> None:
        """Write to the terminal; does nothing without a terminal or after the end of the
        command.
        """
        if self.terminal is not None:
            with suppress(BrokenPipeError):
                await self.terminal.awrite(data)

    async def close(self) -> None:
        """Kill the command and all that it started.

        If a command on a pipe has ended already, the processes that it left running continue.
        """
        if self.terminal is not None:
            await self.terminal.aclose()
        elif not self.end.done():
            await self._process.aclose()
        await asyncio.wait([self.end])


class BackgroundCommands:
    """The commands of one session, by number.

    At most 64 are kept. One more closes a command that has ended, else the one that was polled
    least recently.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._numbers = itertools.count(_FIRST)
        self._commands: dict[int, BackgroundCommand] = {}

    async def start(
        self,
        container: Container,
        args: Sequence[str],
        *,
        tty: bool,
        **options: Unpack[ShellKeywords],
    ) -> int:
        """Start a command on a terminal, or on a pipe that merges both streams; return its number.

        Args:
            container: the container.
            args: argv.
            tty: whether it gets a terminal.
            options: as for :meth:`~hyperruntime.container.Container.terminal`, which also lists the
                errors.
        """
        if tty:
            terminal = await container.aterminal(args, **options)
            command = BackgroundCommand(terminal.process, terminal)
        else:
            process = await container.aspawn(
                args, input=b"", merge_output=True, output_limit_bytes=_UNREAD_BYTES, **options
            )
            command = BackgroundCommand(process, None)
        number = next(self._numbers)
        self._commands[number] = command
        if len(self._commands) > _MOST:
            others = [other for other in self._commands if other != number]
            await self.remove(min(others, key=lambda other: self._rank(self._commands[other])))
        return number

    @staticmethod
    def _rank(command: BackgroundCommand) -> tuple[bool, float]:
        return not command.end.done(), command.used

    def __getitem__(self, number: int) -> BackgroundCommand:
        """Return a command; raises KeyError if there is none with this number."""
        return self._commands[number]

    def get(self, number: int) -> BackgroundCommand | None:
        """Return a command, or None if there is none with this number."""
        return self._commands.get(number)

    async def remove(self, number: int) -> None:
        """Close a command and forget it; does nothing if there is none with this number."""
        if command := self._commands.pop(number, None):
            await command.close()

    async def close(self) -> None:
        """Close all commands."""
        for number in tuple(self._commands):
            await self.remove(number)
