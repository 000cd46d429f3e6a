"""Processes, terminals, shells and ports in a slot of a node, for their caller on the head's
machine. It listens for clients of a port, and each client goes over the connection to the node.
"""

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
from functools import partial
from typing import Any, Unpack

import attrs

from hyperruntime.concurrency.blocking import EXECS, blocking
from hyperruntime.concurrency.closing import AsyncClosing
from hyperruntime.concurrency.exhaustion import too_many_files
from hyperruntime.errors import (
    ContainerStateError,
    HyperRuntimeError,
    PoolClosedError,
    SandboxLostError,
    StaleLeaseError,
)
from hyperruntime.exec.execution import KILLED_EXIT_CODE, CancelledExecError
from hyperruntime.exec.options import ExecOptions, SlotShellKeywords, Stream, TextKeywords
from hyperruntime.exec.persistent.shell_lane import check_text
from hyperruntime.exec.spawn.process import Process, TakesSignals
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.ports.forward import listen
from hyperruntime.remote.calls import Calls, in_thread, plain_env, wait_cancellable
from hyperruntime.spec import ExecResult
from hyperruntime.wire.checks import Line
from hyperruntime.wire.peer import Answer, checked

CHUNK_BYTES = 65536
_FLUSH_S = 5.0  # for the last output of a terminal to reach its reader
_SENT = ("timeout_s", "env", "workdir", "group", "merge_output", "output_limit_bytes")
# Everything in the slot has ended.
_ENDED = (SandboxLostError, StaleLeaseError, ContainerStateError, PoolClosedError)
_numbers = itertools.count(1)


def _new_name() -> str:
    """Return a new name, by which a node knows an object that it holds for a slot."""
    return str(next(_numbers))


async def _send_input(
    calls: Calls, name: str, reader: asyncio.StreamReader, on_error: Callable[[], None]
) -> None:
    """Send input to an object that a node holds, until the reader's end.

    Args:
        calls: the node of the slot.
        name: of the object.
        reader: gives the input.
        on_error: called if nothing takes the input, or it cannot be read.
    """
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            await calls.call("process.write", chunk, process=name)
        await calls.call("process.write", process=name, end=True)
    except (HyperRuntimeError, OSError):
        on_error()


def signal_held(calls: Calls, name: str, number: int) -> bool:
    """Send a signal to what a node holds; return whether a process could get it."""
    try:
        answer = calls.wait("process.signal", process=name, signal=int(number))
    except (ContainerStateError, StaleLeaseError):  # the node has ended or forgotten it
        return False
    received: bool = answer.value == {"received": True}
    return received


def end_held(calls: Calls, name: str) -> bool:
    """End what a node holds; return whether nothing is left."""
    try:
        return bool(calls.wait("process.end", process=name).value)
    except _ENDED:
        return True


async def start_process(calls: Calls, args: Sequence[str | bytes], options: ExecOptions) -> Process:
    """Start a command in the slot; see :meth:`Lease.spawn`."""
    command = RemoteCommand(calls, "process.run", args, has_callback=options.on_output is not None)
    return await _started(lambda: Process(options.checked(), command.prepare), command)


async def start_terminal(
    calls: Calls, args: Sequence[str | bytes], size: tuple[int, int], options: ExecOptions
) -> Terminal:
    """Start a command in the slot on a terminal; see :meth:`Lease.terminal`.

    Args:
        calls: the node of the slot.
        args: the command.
        size: rows and columns of the terminal.
        options: the options of the command.
    """
    command = RemoteCommand(calls, "terminal.run", args, rows=size[0], cols=size[1])
    pty = command.pty = await RemotePty.open(command)
    try:
        process = await _started(
            lambda: Process(attrs.evolve(options, input=b""), command.prepare), command
        )
    except BaseException:
        pty.close()
        raise
    try:
        process.ended.listen(pty.end_output)
        return Terminal(process, pty)
    except OSError as error:
        await process.aclose()
        pty.close()
        raise too_many_files(error) or error from None


async def _started(make: Callable[[], Process], command: RemoteCommand) -> Process:
    process = await blocking(EXECS, make, undo=Process.close)
    weakref.finalize(
        process, command.calls.soon, "process.forget", process=command.process
    ).atexit = False
    return process


@attrs.frozen(kw_only=True)
class _Started:
    """The event of a node when a command has started: the path of its terminal in the container, or
    "".
    """

    name: str = attrs.field(validator=Line(4095))


class RemoteCommand:
    """A command in a slot of a node, as a process here needs it; see
    :class:`~hyperruntime.exec.spawn.process.Command`.

    Attributes:
        calls: the node of the slot.
        process: its name on the node.
        pty: its terminal, or None.
        name: path of its terminal in the container.
    """

    def __init__(
        self,
        calls: Calls,
        method: str,
        args: Sequence[str | bytes],
        *,
        has_callback: bool = False,
        **call_args: Any,  # noqa: ANN401 - JSON
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            calls: the node of the slot.
            method: the node's method that runs it.
            args: argv.
            has_callback: whether the output goes to a callback of the caller, which may wait.
            call_args: arguments of the method.
        """
        self.calls = calls
        self.process = _new_name()
        self._method = method
        self._args = args
        self._has_callback = has_callback
        self._call_args = call_args
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
            return wait_cancellable(
                self._run(on_started, on_input_end), self.calls.loop, self._options.cancel_fd
            )
        except CancelledExecError:
            return ExecResult(args=tuple(map(os.fsdecode, self._args)), exit_code=KILLED_EXIT_CODE)

    async def _run(
        self, on_started: Callable[[], None], on_input_end: Callable[[], None]
    ) -> ExecResult:
        given: dict[str, Any] = {name: getattr(self._options, name) for name in _SENT}
        source = self._options.input
        pump: asyncio.Task[None] | None = None
        pipe = await _Pipe.open(source)
        if pipe is None:
            given["input"] = source
        reader = (
            self.pty.reader if self.pty is not None else pipe.reader if pipe is not None else None
        )

        def end_input() -> None:
            if pipe is not None:
                pipe.close()
            on_input_end()

        def begin(event: Answer) -> None:
            nonlocal pump
            self.name = checked(_Started, event.value, "the start of a command").name
            if reader is not None:
                pump = self.calls.keep(_send_input(self.calls, self.process, reader, end_input))
            on_started()

        on_output = self._options.on_output
        assert on_output is not None, "a process takes its output"
        sink = in_thread(on_output) if self._has_callback else self._keep
        try:
            result = await self.calls.run(
                self._method,
                self._args,
                given,
                sink=sink if self.pty is None else self.pty.show,
                on_started=begin,
                process=self.process,
                **self._call_args,
            )
        finally:
            if pump is not None:
                pump.cancel()
            if pipe is not None:
                pipe.close()
        if self.pty is not None:
            await self.pty.show("stdout", result.stdout, is_last=True)
            result = attrs.evolve(result, stdout=b"")
        return result

    async def _keep(self, stream: Stream, chunk: bytes) -> None:
        """Give output to the process, which only keeps it."""
        assert self._options.on_output is not None, "a process takes its output"
        self._options.on_output(stream, chunk)

    def signal(self, number: int) -> bool:
        """Send a signal to all of its processes; return whether there were any."""
        return signal_held(self.calls, self.process, number)

    def end(self) -> bool:
        """Kill all of its processes; return whether none is left."""
        return end_held(self.calls, self.process)

    def find(self, pid: int | None) -> list[int]:
        """Return no pid: its processes are on another machine."""
        return []

    def check_thread(self) -> None:
        """Raise PoolError if this thread runs the event loop of the connection."""
        self.calls.check_thread()


class _Pipe:
    """An input that is a pipe, read on the event loop, because it may be idle for long.

    Attributes:
        reader: gives the input.
    """

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.BaseTransport) -> None:
        self.reader = reader
        self._transport = transport

    @classmethod
    async def open(cls, source: object) -> _Pipe | None:
        """Return the pipe of an input; None if the input is not a pipe."""
        if not isinstance(source, io.FileIO) or not stat.S_ISFIFO(
            os.fstat(source.fileno()).st_mode
        ):
            return None
        try:
            pipe = os.fdopen(os.dup(source.fileno()), "rb", buffering=0)
        except OSError as error:
            raise too_many_files(error) or error from None
        reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        return cls(reader, transport)

    def close(self) -> None:
        self._transport.close()


class RemotePty:
    """The caller's end of a terminal of a node: one end of a pair of sockets, whose other end the
    event loop serves.

    Attributes:
        master: the caller's end.
        reader: what the caller writes.
    """

    def __init__(
        self, command: RemoteCommand, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve the loop's end; use :meth:`open`."""
        self._command = command
        self.reader = reader
        self._writer = writer
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

    async def show(self, stream: Stream, chunk: bytes, *, is_last: bool = False) -> None:
        """Take output; wait while the caller does not read, unless it is the last."""
        self._writer.write(chunk)
        if not is_last:
            await self._writer.drain()

    def end_output(self) -> None:
        """Let the caller read the end after the output; its command has ended."""

        def end() -> None:
            with suppress(OSError, RuntimeError):  # it was closed
                self._writer.write_eof()

        with suppress(RuntimeError):  # the loop is closed
            self._command.calls.loop.call_soon_threadsafe(end)

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of the window."""
        self._command.calls.soon(
            "terminal.resize", process=self._command.process, rows=rows, cols=cols
        )

    def send_signal(self, number: int) -> None:
        """Send a signal to the processes in the foreground."""
        self._command.calls.soon(
            "process.signal", process=self._command.process, signal=int(number)
        )

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


class RemoteShell(AsyncClosing, TakesSignals):
    """A persistent bash in a slot of a node, with the methods of
    :class:`~hyperruntime.exec.persistent.shell.Shell`.

    Attributes:
        exit_code: the value that the next text sees in ``$?``.
    """

    def __init__(self, calls: Calls, name: str) -> None:
        """Take over a shell; use :meth:`open`."""
        self._calls = calls
        self._name = name
        self._pid = os.getpid()
        self.exit_code = 0
        weakref.finalize(self, calls.soon, "process.forget", process=name).atexit = False

    @classmethod
    async def open(cls, calls: Calls, options: SlotShellKeywords) -> RemoteShell:
        """Open a shell in the slot; see :meth:`Lease.shell`."""
        name = _new_name()
        given: dict[str, Any] = {**options}
        if (env := options.get("env")) is not None:
            given["env"] = plain_env(env)
        await calls.call("shell.open", process=name, **given)
        return cls(calls, name)

    def run(self, text: str | bytes, **options: Unpack[TextKeywords]) -> ExecResult:
        """Run a text in the shell and return how it ended; see :meth:`Shell.run`. Not on the
        cluster's event loop.
        """
        return self._calls.wait_for(lambda: self.arun(text, **options))

    async def arun(self, text: str | bytes, **options: Unpack[TextKeywords]) -> ExecResult:
        """Do what :meth:`run` does without blocking the event loop; cancelling kills this text's
        processes only.
        """
        code = check_text(text)
        ExecOptions(**options).checked()
        try:
            result = await self._calls.run("shell.run", [], options, text=code, process=self._name)
        except asyncio.CancelledError:
            self.exit_code = KILLED_EXIT_CODE
            raise
        except StaleLeaseError:
            raise ContainerStateError(
                "the shell ended when its slot was released; start another one"
            ) from None
        self.exit_code = result.exit_code
        return attrs.evolve(result, args=(os.fsdecode(code),))

    def signal(self, number: int) -> bool:
        """Send a signal to the processes of the running text; see :meth:`Shell.signal`."""
        return signal_held(self._calls, self._name, number)

    def close(self) -> bool:
        """End the shell and all processes that it started; return whether none is left. May be
        called again.

        Does nothing in a forked child.
        """
        if os.getpid() != self._pid:
            return True
        return end_held(self._calls, self._name)


class RemotePorts:
    """The forwarded ports of one slot."""

    def __init__(self, calls: Calls) -> None:
        """Listen on nothing yet.

        Args:
            calls: the node of the slot.
        """
        self._calls = calls
        self._servers: dict[tuple[int, str], asyncio.Server] = {}
        self._clients: set[asyncio.Task[Any]] = set()
        self._opening = asyncio.Lock()
        self._closed = False

    async def open(self, port: int, host: str) -> tuple[str, int]:
        """Return the address on this machine that leads to a port of the slot; see
        :meth:`Lease.forward`.
        """
        async with self._opening:
            server = self._servers.get((port, host))
            if server is None:
                await self._calls.call("port.forward", port=port)
                server = await asyncio.start_server(
                    partial(self._serve, port), sock=listen(host), limit=CHUNK_BYTES
                )
                self._servers[port, host] = server
                self._check_open()
        address: tuple[str, int] = server.sockets[0].getsockname()[:2]
        return address

    def _check_open(self) -> None:
        if self._closed:
            self.close()
            raise StaleLeaseError("the slot was released; acquire another one")

    def close(self) -> None:
        """Stop listening and end all connections."""
        self._closed = True
        for server in self._servers.values():
            server.close()
        for client in self._clients:
            client.cancel()

    async def _serve(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        name = _new_name()
        sending: asyncio.Task[None] | None = None

        def begin(_: Answer) -> None:
            nonlocal sending
            forget = partial(self._calls.soon, "process.end", process=name)
            sending = self._calls.keep(_send_input(self._calls, name, reader, forget))

        async def show(stream: Stream, chunk: bytes) -> None:
            if chunk:
                writer.write(chunk)
                await writer.drain()
            else:
                writer.write_eof()

        try:
            with suppress(HyperRuntimeError, OSError):  # the client sees that its connection ends
                await self._calls.run(
                    "port.connect", [], {}, sink=show, on_started=begin, process=name, port=port
                )
        # the lease has ended; a client that does not read must see it too
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._clients.discard(task)
            if sending is not None:
                sending.cancel()
            writer.close()
