"""A sandbox that others use from elsewhere, and what it holds for them: processes, terminals,
shells and connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar, Unpack

import attrs

from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.concurrency.blocking import RESETS, blocking
from hyperruntime.concurrency.loop_streams import LoopStreams
from hyperruntime.errors import ContainerStateError, HyperRuntimeError, StaleLeaseError
from hyperruntime.exec.options import SlotExecKeywords, SlotTerminalKeywords, Stream
from hyperruntime.exec.persistent.shell import Shell
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.process_input import ProcessInput
from hyperruntime.exec.spawn.terminal import FOREGROUND, Terminal
from hyperruntime.remote.requests import ProcessState, end_of, facts_of
from hyperruntime.remote.service_errors import InputNotReadError
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ExecResult
from hyperruntime.transfer.file_calls import FileStat


class Served(Protocol):
    """What a sandbox needs so that others can be given its commands and files: also a container
    has it. The ends of its processes wake the event loop.
    """

    async def exec(
        self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]
    ) -> ExecResult:
        """Run a command."""
        ...

    async def spawn(
        self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]
    ) -> Process:
        """Start a command in the background."""
        ...

    async def read_file(
        self, path: str, *, limit_bytes: int = ..., timeout_s: float | None = ...
    ) -> bytes:
        """Return the bytes of a file."""
        ...

    async def write_file(
        self,
        path: str,
        data: bytes,
        *,
        mode: int | None = ...,
        parents: bool = ...,
        timeout_s: float | None = ...,
    ) -> None:
        """Write a whole file."""
        ...

    async def stat(
        self, path: str, *, follow_symlinks: bool = ..., timeout_s: float | None = ...
    ) -> FileStat:
        """Return the facts of a path."""
        ...

    async def listdir(self, path: str, *, timeout_s: float | None = ...) -> list[str]:
        """Return the sorted names in a directory."""
        ...


class ServedSandbox(Served, Sandbox, Protocol):
    """A sandbox of which others can be given everything."""

    async def listdir(self, path: str = ..., *, timeout_s: float | None = ...) -> list[str]:
        """Return the sorted names in a directory."""
        ...

    async def terminal(
        self, args: Sequence[str | bytes], **options: Unpack[SlotTerminalKeywords]
    ) -> Terminal:
        """Start a command on a terminal."""
        ...


S_co = TypeVar("S_co", bound=Served, covariant=True)


class Held:
    """An object that the caller writes to, signals and ends.

    Attributes:
        is_forgotten: whether its caller has dropped it.
    """

    is_forgotten = False

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return False

    def drop_streams(self) -> None:
        """Let nothing wait for the caller."""

    async def write(self, data: bytes, *, end: bool, wait_s: float | None) -> None:
        """Take input, the last one if ``end``; wait for room for at most ``wait_s``."""

    async def signal(self, number: int) -> bool:
        """Send a signal; return whether a process could get it."""
        return False

    async def resize(self, rows: int, cols: int) -> None:
        """Set the size of the window."""

    async def end(self) -> bool:
        """End it; return whether nothing is left."""
        return True


@attrs.define(eq=False)
class HeldCommand(Held):
    """A process, terminal or shell.

    Attributes:
        command: the object of the sandbox.
    """

    command: Process | Terminal | Shell

    async def signal(self, number: int) -> bool:
        """Send a signal; see :class:`Held`."""
        return await self.command.asignal(number)

    async def end(self) -> bool:
        """End it; see :class:`Held`."""
        return await blocking(RESETS, self.command.close)


@attrs.define(eq=False)
class HeldTerminal(HeldCommand):
    """A terminal."""

    command: Terminal

    @property
    def has_ended(self) -> bool:
        """Whether its command has ended."""
        return self.command.process.ended.is_set

    async def write(self, data: bytes, *, end: bool, wait_s: float | None) -> None:
        """Type; see :class:`Held`."""
        await self.command.awrite(data)

    async def signal(self, number: int) -> bool:
        """Send a signal; see :class:`Held`."""
        # does not wait, so no key that the caller types later comes before it
        if number in FOREGROUND:
            return self.command.signal(number)
        return await self.command.asignal(number)

    async def resize(self, rows: int, cols: int) -> None:
        """Set the size of the window."""
        self.command.resize(rows, cols)


@attrs.define(eq=False)
class HeldConnection(Held):
    """A connection to a port.

    Attributes:
        writer: to the port.
        input_ended: set when the last input has come.
    """

    writer: asyncio.StreamWriter
    input_ended: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def write(self, data: bytes, *, end: bool, wait_s: float | None) -> None:
        """Send to the port; see :class:`Held`."""
        self.writer.write(data)
        await self.writer.drain()
        if end:
            self.writer.write_eof()
            self.input_ended.set()

    async def end(self) -> bool:
        """End both directions."""
        self.writer.transport.abort()
        self.input_ended.set()
        return True


@attrs.define(eq=False)
class HeldProcess(HeldCommand):
    """A process; its caller takes the output as it comes, or asks for it.

    Attributes:
        command: the process.
        name: its name.
        args: its command.
        streams: through which the caller takes the output.
        input: its standard input.
        news: set when it has written something, or has ended.
    """

    command: Process
    name: str
    args: tuple[str, ...]
    streams: LoopStreams
    news: asyncio.Event = attrs.field(factory=asyncio.Event)
    input: ProcessInput = attrs.field(factory=ProcessInput)
    _rest: dict[Stream, bytes] = attrs.field(factory=lambda: {"stdout": b"", "stderr": b""})

    @property
    def has_ended(self) -> bool:
        """Whether its command has ended."""
        return self.command.ended.is_set

    @property
    def state(self) -> ProcessState:
        """Its state, as its caller sees it."""
        end = error = None
        if self.has_ended:
            try:
                end = end_of(self.command.wait())
            except Exception as why:  # noqa: BLE001 - any error may have ended it
                error = facts_of(why)
        return ProcessState(process=self.name, args=self.args, end=end, error=error)

    def drop_streams(self) -> None:
        """Raise an error where its output waits for the caller, and drop the input that it has not
        read.
        """
        self.streams.close()
        self.input.abort()

    async def write(self, data: bytes, *, end: bool, wait_s: float | None) -> None:
        """Take input, whole or not at all; see :class:`Held`.

        Raises:
            InputNotReadError: there was no room in time.
            ContainerStateError: nothing reads it.
        """
        if data:
            try:
                await self.input.write(data, wait_s)
            except TimeoutError as error:
                raise InputNotReadError(str(error)) from None
        if end:
            self.input.end()

    async def end(self) -> bool:
        """End it with its input; see :class:`Held`."""
        ended = await HeldCommand.end(self)
        self.input.abort()
        return ended

    async def take(
        self, wait_s: float, *, whole_characters: bool
    ) -> tuple[ProcessState, bytes, bytes, bool]:
        """Return its state before its output was read, its standard output and its standard error
        since the last time, and whether the middle of one of them was dropped.

        If it has ended, no other output comes.

        Args:
            wait_s: seconds to wait for output or its end.
            whole_characters: keep an incomplete character of UTF-8 at the end for the next call.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            self.news.clear()
            # before the output is read: a process that has ended has written all of it
            state = self.state
            has_ended = state.end is not None or state.error is not None
            cut = whole_characters and not has_ended
            out, out_cut = self._new("stdout", cut=cut)
            err, err_cut = self._new("stderr", cut=cut)
            if out or err or has_ended or loop.time() >= deadline:
                return state, out, err, out_cut or err_cut
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self.news.wait()

    def _new(self, stream: Stream, *, cut: bool) -> tuple[bytes, bool]:
        new, truncated = self.command.take(stream)
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


class Target(Generic[S_co]):
    """A sandbox that others use from elsewhere.

    Attributes:
        sandbox: the sandbox.
        held: what it holds for its callers, by name.
        is_released: whether no caller may use it any more.
    """

    def __init__(self, sandbox: S_co) -> None:
        """Hold nothing yet."""
        self.sandbox = sandbox
        self.held: dict[str, Held] = {}
        self.is_released = False

    @property
    def input_wait_s(self) -> float | None:
        """Seconds that a write waits for room; None means no limit."""
        return None

    def missing(self, name: str) -> HyperRuntimeError:
        """Return the error about a name that nothing is held under."""
        return ContainerStateError(
            "the process, shell or connection was closed, or its slot was released; start another "
            "one"
        )

    @contextmanager
    def place(self) -> Iterator[None]:
        """Start a process inside this block; a subclass may refuse it."""
        yield

    def find(self, name: str, kind: type[Any] = Held) -> Any:  # noqa: ANN401 - of the kind
        """Return what is held under a name.

        Raises:
            HyperRuntimeError: nothing of this kind is.
        """
        found = self.held.get(name)
        if not isinstance(found, kind):
            raise self.missing(name)
        return found

    @contextmanager
    def holding(self, name: str, held: Held) -> Iterator[None]:
        """Let the caller find an object from now on; drop it if the block fails or the caller has
        forgotten it.

        Raises:
            StaleLeaseError: the slot was released meanwhile.
        """
        if self.is_released:
            raise StaleLeaseError("the slot was released; acquire another one")
        self.held[name] = held
        try:
            yield
        except BaseException:
            self.held.pop(name, None)
            raise
        if held.is_forgotten:
            self.held.pop(name, None)

    def release(self, ending: BackgroundTasks) -> None:
        """Begin to end everything that it holds; no caller uses it any more.

        Args:
            ending: takes what is still ending.
        """
        self.is_released = True
        held, self.held = self.held, {}
        for one in held.values():
            one.drop_streams()  # first: a caller that waits for its release reads nothing
            ending.start(_end_quietly(one))


async def _end_quietly(held: Held) -> None:
    with suppress(HyperRuntimeError):
        await held.end()
