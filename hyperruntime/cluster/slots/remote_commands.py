"""Processes, terminals and shells in a slot of a node, for their caller on the head's machine."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import select
import socket
import stat
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Unpack

import attrs

from hyperruntime.cluster.peer import Answer
from hyperruntime.cluster.slots.remote_exec import wait_cancellable
from hyperruntime.cluster.slots.slot_calls import SlotCalls
from hyperruntime.concurrency.blocking import EXECS, blocking
from hyperruntime.concurrency.closing import AsyncClosing
from hyperruntime.errors import ContainerStateError, HyperRuntimeError, SandboxLostError, StaleLeaseError
from hyperruntime.exec.execution import KILLED_EXIT_CODE, CancelledExecError
from hyperruntime.exec.options import ExecOptions, SlotShellKeywords, Stream, TextKeywords
from hyperruntime.exec.persistent.shell_lane import check_text
from hyperruntime.exec.signals import TakesSignals
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.terminal import Terminal, check_size
from hyperruntime.spec import ExecResult

CHUNK_BYTES = 65536
_FLUSH_S = 5.0  # that the last output of a terminal may take from this process to itself
_SENT = ("timeout_s", "env", "workdir", "group", "merge_output", "output_limit_bytes")
_numbers = itertools.count(1)


def new_number() -> int:
    """Return the number of something that a node holds for a slot; no other has it."""
    return next(_numbers)


async def send_input(calls: SlotCalls, number: int, reader: asyncio.StreamReader, on_error: Callable[[], None]) -> None:
    """Send input to what a node holds, until the reader's end.

    Args:
        calls: the node of the slot.
        number: what the input is for.
        reader: gives the input.
        on_error: called if nothing takes the input, or it cannot be read.
    """
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            await calls.call("held.write", chunk, number=number, end=False)
        await calls.call("held.write", number=number, end=True)
    except (HyperRuntimeError, OSError):
        on_error()


async def start_process(calls: SlotCalls, args: Sequence[str | bytes], options: ExecOptions) -> Process:
    """Start a command in the slot; see :meth:`Lease.spawn`."""
    command = RemoteCommand(calls, "slot.process", args)
    return await _started(lambda: Process(options.checked(), command.prepare), command)


async def start_terminal(
    calls: SlotCalls, args: Sequence[str | bytes], size: tuple[int, int], options: ExecOptions
) -> Terminal:
    """Start a command in the slot on a terminal; see :meth:`Lease.terminal`.

    Args:
        calls: the node of the slot.
        args: the command.
        size: rows and columns of the terminal.
        options: the options of the command.
    """
    check_size(*size)
    command = RemoteCommand(calls, "slot.terminal", args, rows=size[0], cols=size[1])
    pty = command.pty = await RemotePty.open(command)
    try:
        process = await _started(lambda: Process(attrs.evolve(options.checked(), input=b""), command.prepare), command)
        return Terminal(process, pty)
    except BaseException:
        pty.close()
        raise


async def _started(make: Callable[[], Process], command: RemoteCommand) -> Process:
    process = await blocking(EXECS, make, undo=Process.close)
    weakref.finalize(process, command.forget).atexit = False
    return process


class RemoteCommand:
    """A command in a slot of a node, as a process here needs it; see :class:`~hyperruntime.exec.spawn.process.Command`.

    Attributes:
        pty: its terminal, or None.
        name: path of its terminal in the container.
    """

    def __init__(self, calls: SlotCalls, method: str, args: Sequence[str | bytes], **more: int) -> None:
        """Prepare; nothing runs yet.

        Args:
            calls: the node of the slot.
            method: the node's method that runs it.
            args: argv.
            more: arguments of the method.
        """
        self.calls, self.number = calls, new_number()
        self._method, self._args, self._more = method, args, more
        self._options = ExecOptions()
        self.pty: RemotePty | None = None
        self.name = ""

    def prepare(self, options: ExecOptions) -> RemoteCommand:
        """Take the final options."""
        self._options = options
        return self

    def run(self, on_started: Callable[[], None], on_input_end: Callable[[], None]) -> ExecResult:
        """Run it to its end; if the caller cancels, it counts as killed."""
        try:
            return wait_cancellable(self._run(on_started, on_input_end), self.calls.loop, self._options.cancel_fd)
        except CancelledExecError:
            return ExecResult(args=tuple(map(os.fsdecode, self._args)), exit_code=KILLED_EXIT_CODE)

    async def _run(self, on_started: Callable[[], None], on_input_end: Callable[[], None]) -> ExecResult:
        given: dict[str, Any] = {name: getattr(self._options, name) for name in _SENT}
        source, pump = self._options.input, None
        is_pipe = isinstance(source, io.FileIO) and stat.S_ISFIFO(os.fstat(source.fileno()).st_mode)
        if not is_pipe:
            given["input"] = source
        if self.pty is None:
            given["on_output"] = self._options.on_output

        def on_event(event: Answer) -> None:
            nonlocal pump
            self.name = str(event.value["name"])
            if self.pty is not None:
                pump = self.calls.keep(send_input(self.calls, self.number, self.pty.reader, lambda: None))
            elif isinstance(source, io.FileIO) and is_pipe:
                pump = self.calls.keep(self._send_pipe(os.dup(source.fileno()), on_input_end))
            on_started()

        sink = None if self.pty is None else self.pty.show
        try:
            result = await self.calls.run(
                self._method, self._args, given, sink=sink, on_event=on_event, number=self.number, **self._more
            )
        finally:
            if pump is not None:
                pump.cancel()
        if self.pty is not None:
            self.pty.end(result.stdout)
            result = attrs.evolve(result, stdout=b"")
        return result

    async def _send_pipe(self, descriptor: int, on_input_end: Callable[[], None]) -> None:
        reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        transport, _ = await self.calls.loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
        )
        try:
            await send_input(self.calls, self.number, reader, on_input_end)
        finally:
            transport.close()

    def signal(self, number: int) -> bool:
        """Send a signal to all of its processes; return whether there were any."""
        return bool(self.calls.wait("held.signal", number=self.number, signal=int(number)).value)

    def end(self) -> bool:
        """Kill all of its processes; return whether none is left."""
        try:
            return bool(self.calls.wait("held.end", number=self.number).value)
        except (SandboxLostError, StaleLeaseError, ContainerStateError):
            return True  # everything in the slot has ended

    def find(self, pid: int | None) -> list[int]:
        """Return no pid: its processes are on another machine."""
        return []

    def forget(self) -> None:
        """Let the node forget it; nobody here uses it any more."""
        self.calls.soon("held.forget", number=self.number)


class RemotePty:
    """The caller's end of a terminal of a node: one end of a pair of sockets, whose other end the event loop serves.

    Attributes:
        master: the caller's end.
        reader: what the caller writes.
    """

    def __init__(self, command: RemoteCommand, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the loop's end; use :meth:`open`."""
        self._command, self.reader, self._writer = command, reader, writer
        self.master = -1

    @classmethod
    async def open(cls, command: RemoteCommand) -> RemotePty:
        """Make the pair; on the event loop."""
        mine, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=mine, limit=CHUNK_BYTES)
        self = cls(command, reader, writer)
        theirs.setblocking(False)
        self.master = theirs.detach()
        return self

    @property
    def name(self) -> str:
        """Path of the other end in the container."""
        return self._command.name

    async def show(self, stream: Stream, chunk: bytes) -> None:
        """Take output; wait while the caller does not read."""
        self._writer.write(chunk)
        await self._writer.drain()

    def end(self, rest: bytes) -> None:
        """Take the last output, and let the caller read the end after it."""
        self._writer.write(rest)
        self._writer.write_eof()

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of the window."""
        self._command.calls.soon("held.resize", number=self._command.number, rows=rows, cols=cols)

    def send_signal(self, number: int) -> None:
        """Send a signal to the processes in the foreground."""
        self._command.calls.soon("held.signal", number=self._command.number, signal=int(number))

    def take_rest(self) -> bytes:
        """Return the output that is left after the command's end."""
        parts: list[bytes] = []
        poll = select.poll()
        poll.register(self.master, select.POLLIN)
        with suppress(OSError):
            while poll.poll(_FLUSH_S * 1000) and (chunk := os.read(self.master, CHUNK_BYTES)):
                parts.append(chunk)
        return b"".join(parts)

    def close(self) -> None:
        """Close both ends."""
        os.close(self.master)
        with suppress(RuntimeError):  # the loop is closed
            self._command.calls.loop.call_soon_threadsafe(self._writer.transport.abort)


class ClusterShell(AsyncClosing, TakesSignals):
    """A persistent bash in a slot of a node, with the methods of :class:`~hyperruntime.exec.persistent.shell.Shell`.

    Attributes:
        exit_code: the value that the next text sees in ``$?``.
    """

    def __init__(self, calls: SlotCalls, number: int) -> None:
        """Take over a shell; use :meth:`open`."""
        self._calls, self._number = calls, number
        self.exit_code = 0
        weakref.finalize(self, calls.soon, "held.forget", number=number).atexit = False

    @classmethod
    async def open(cls, calls: SlotCalls, options: SlotShellKeywords) -> ClusterShell:
        """Open a shell in the slot; see :meth:`Lease.shell`."""
        number = new_number()
        await calls.call("slot.shell", number=number, options=dict(options))
        return cls(calls, number)

    def run(self, text: str | bytes, **options: Unpack[TextKeywords]) -> ExecResult:
        """Run a text in the shell and return how it ended; see :meth:`Shell.run`. Not on the cluster's event loop."""
        return self._calls.wait_for(lambda: self.arun(text, **options))

    async def arun(self, text: str | bytes, **options: Unpack[TextKeywords]) -> ExecResult:
        """Do what :meth:`run` does without blocking the event loop; cancelling kills this text's processes only."""
        code = check_text(text)
        ExecOptions(**options).checked()
        result = await self._calls.run("held.text", [code], options, number=self._number)
        self.exit_code = result.exit_code
        return result

    def signal(self, number: int) -> bool:
        """Send a signal to the processes of the running text; see :meth:`Shell.signal`."""
        return bool(self._calls.wait("held.signal", number=self._number, signal=int(number)).value)

    def close(self) -> bool:
        """End the shell and all processes that it started; return whether none is left. May be called again."""
        try:
            return bool(self._calls.wait("held.end", number=self._number).value)
        except (SandboxLostError, StaleLeaseError):
            return True
