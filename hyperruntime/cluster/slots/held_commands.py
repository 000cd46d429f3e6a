"""Processes, terminals, shells and connections in a node's slots, held for callers on the head's
machine.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any

import attrs

from hyperruntime.cluster.node_services import NodeContext
from hyperruntime.cluster.slots.remote_exec import NodeStreams, answer_of, exec_for_head
from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.concurrency.blocking import RESETS, blocking
from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.concurrency.end_event import make_waiter
from hyperruntime.errors import ContainerStateError, HyperRuntimeError, StaleLeaseError
from hyperruntime.exec.options import Stream
from hyperruntime.exec.persistent.shell import Shell
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.process_input import ProcessInput
from hyperruntime.exec.spawn.terminal import FOREGROUND, Terminal
from hyperruntime.pool.lease import Lease
from hyperruntime.spec import ExecResult
from hyperruntime.wire.peer import Answer, Call, Handler

CHUNK_BYTES = 65536
_TRY_AGAIN_S = 0.05


class _Held:
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
        """Raise an error where something waits for the caller."""

    async def write(self, data: bytes, *, end: bool) -> None:
        """Take input; ``end`` says that it is the last."""

    async def signal(self, number: int) -> bool:
        """Send a signal; return whether a process could get it."""
        return False

    async def resize(self, rows: int, cols: int) -> None:
        """Set the size of the window."""

    async def end(self) -> bool:
        """End it; return whether nothing is left."""
        return True


@attrs.define(eq=False)
class _HeldCommand(_Held):
    command: Process | Terminal | Shell

    async def signal(self, number: int) -> bool:
        return await self.command.asignal(number)

    async def end(self) -> bool:
        return await blocking(RESETS, self.command.close)


@attrs.define(eq=False)
class _HeldProcess(_HeldCommand):
    command: Process
    input: ProcessInput
    streams: NodeStreams

    @property
    def has_ended(self) -> bool:
        return self.command.ended.is_set

    def drop_streams(self) -> None:
        self.streams.close()

    async def write(self, data: bytes, *, end: bool) -> None:
        if data:
            await self.input.write(data)
        if end:
            self.input.end()


@attrs.define(eq=False)
class _HeldTerminal(_HeldCommand):
    command: Terminal

    @property
    def has_ended(self) -> bool:
        return self.command.process.ended.is_set

    async def write(self, data: bytes, *, end: bool) -> None:
        await self.command.awrite(data)

    async def signal(self, number: int) -> bool:
        # does not wait, so no key that the caller types later comes before it
        if number in FOREGROUND:
            return self.command.signal(number)
        return await self.command.asignal(number)

    async def resize(self, rows: int, cols: int) -> None:
        self.command.resize(rows, cols)


@attrs.define(eq=False)
class _HeldShell(_HeldCommand):
    command: Shell

    async def run(self, args: Sequence[bytes], **options: Any) -> ExecResult:  # noqa: ANN401
        """Run a text; the command is the text."""
        return await self.command.arun(args[0], **options)


@attrs.define(eq=False)
class _HeldConnection(_Held):
    writer: asyncio.StreamWriter
    input_ended: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def write(self, data: bytes, *, end: bool) -> None:
        self.writer.write(data)
        await self.writer.drain()
        if end:
            self.writer.write_eof()
            self.input_ended.set()

    async def end(self) -> bool:
        self.writer.transport.abort()
        self.input_ended.set()
        return True


class HeldCommands:
    """The processes, terminals, shells and connections of one node.

    Attributes:
        handlers: ``slot.process``, ``terminal``, ``shell``, ``forward`` and ``connect``, which
            begin one, and ``held.text``, ``write``, ``signal``, ``resize``, ``end`` and ``forget``,
            which use one by its number.
    """

    def __init__(self, context: NodeContext, find_lease: Callable[[Call], Lease]) -> None:
        """Hold nothing yet.

        Args:
            context: the node's.
            find_lease: returns the lease that a call is about; raises StaleLeaseError.
        """
        self._context = context
        self._find_lease = find_lease
        self._held: dict[int, dict[int, _Held]] = {}  # by lease and number
        self._ending = BackgroundTasks("commands of released leases")
        self.handlers: Mapping[str, Handler] = {
            "slot.process": self._process,
            "slot.terminal": self._terminal,
            "slot.shell": self._shell,
            "slot.forward": self._forward,
            "slot.connect": self._connect,
            "held.text": self._text,
            "held.write": self._write,
            "held.signal": self._signal,
            "held.resize": self._resize,
            "held.end": self._end,
            "held.forget": self._forget,
        }

    async def close(self) -> None:
        """Wait until everything of released leases has ended."""
        await self._ending.wait()

    def end_all(self, grant: int) -> None:
        """Begin to end everything of a lease that was released."""
        held = self._held.pop(grant, {}).values()
        for one in held:
            one.drop_streams()  # first: a caller that waits for its release reads nothing
            self._ending.start(_end_quietly(one))

    async def _process(self, call: Call) -> Answer:
        """Run a command in the background; an event says when its process exists."""
        lease = self._find_lease(call)
        args, options = pickle.loads(call.body)  # noqa: S301 - of the head, which this node trusts
        streams = NodeStreams(call, self._context.head_call)
        process = await lease.spawn(args, **streams.add_to(options))
        held = _HeldProcess(process, ProcessInput(), streams)
        try:
            await held.input.open(process)
            with self._holding(call, held):
                await call.emit(Answer({"name": ""}))
                result = await process.await_end()
        except BaseException as error:
            streams.close()
            await process.aclose()
            if isinstance(error, CancelledError):  # of a thread that waited for the caller
                raise StaleLeaseError("the slot was released while the command ran in it") from None
            raise
        finally:
            streams.close()
            held.input.abort()
        await self._context.check_not_ended(result.exit_code)
        return answer_of(result)

    async def _terminal(self, call: Call) -> Answer:
        """Run a command on a terminal; the answer's standard output is the last output of the
        terminal.
        """
        lease = self._find_lease(call)
        args, options = pickle.loads(call.body)  # noqa: S301 - of the head
        given = {name: options[name] for name in ("env", "workdir", "group", "timeout_s")}
        terminal = await lease.terminal(
            args, rows=call.args["rows"], cols=call.args["cols"], **given
        )
        try:
            with self._holding(call, _HeldTerminal(terminal)):
                await call.emit(Answer({"name": terminal.name}))
                rest = await _show(terminal, NodeStreams(call, self._context.head_call).write)
                result = await terminal.process.await_end()
        except BaseException:
            await terminal.aclose()
            raise
        await self._context.check_not_ended(result.exit_code)
        return answer_of(attrs.evolve(result, stdout=rest))

    async def _shell(self, call: Call) -> Answer:
        shell = await self._find_lease(call).shell(**call.args["options"])
        with self._holding(call, _HeldShell(shell)):
            return Answer()

    async def _text(self, call: Call) -> Answer:
        held = self._find(call)
        assert isinstance(held, _HeldShell)
        answer = await exec_for_head(call, self._context.head_call, held.run)
        await self._context.check_not_ended(answer.value["exit_code"])
        return answer

    async def _forward(self, call: Call) -> Answer:
        """Make a port of the slot reachable on this node."""
        await self._find_lease(call).forward(call.args["port"])
        return Answer()

    async def _connect(self, call: Call) -> Answer:
        """Serve one client of a port, until both sides have ended."""
        address = await self._find_lease(call).forward(call.args["port"])
        streams = NodeStreams(call, self._context.head_call)
        reader, writer = await asyncio.open_connection(*address)
        held = _HeldConnection(writer)
        try:
            with self._holding(call, held):
                await call.emit(Answer({"name": ""}))
                while chunk := await reader.read(CHUNK_BYTES):
                    await streams.write("stdout", chunk)
                await streams.write("stdout", b"")
                await held.input_ended.wait()
        finally:
            self._drop(call)
            writer.close()
        return answer_of(ExecResult(args=(), exit_code=0))

    async def _write(self, call: Call) -> Answer:
        await self._find(call).write(call.body, end=call.args["end"])
        return Answer()

    async def _signal(self, call: Call) -> Answer:
        held = self._known(call)
        return Answer(held is not None and await held.signal(call.args["signal"]))

    async def _resize(self, call: Call) -> Answer:
        await self._find(call).resize(call.args["rows"], call.args["cols"])
        return Answer()

    async def _end(self, call: Call) -> Answer:
        held = self._known(call)
        ended = held is None or await held.end()
        if ended:
            self._drop(call)
        return Answer(ended)

    async def _forget(self, call: Call) -> Answer:
        """Forget an unused object; what still runs in it goes on until the lease ends, as on the
        head's machine.
        """
        held = self._known(call)
        if held is not None:
            held.is_forgotten = True
            if held.has_ended:
                self._drop(call)
        return Answer()

    @contextmanager
    def _holding(self, call: Call, held: _Held) -> Iterator[None]:
        """Let the caller find an object from now on; drop it if the block fails or the caller has
        forgotten it.

        Raises:
            StaleLeaseError: the slot was released meanwhile.
        """
        self._find_lease(call)
        self._held.setdefault(call.args["grant"], {})[call.args["number"]] = held
        try:
            yield
        except BaseException:
            self._drop(call)
            raise
        if held.is_forgotten:
            self._drop(call)

    def _drop(self, call: Call) -> None:
        self._held.get(call.args["grant"], {}).pop(call.args["number"], None)

    def _known(self, call: Call) -> _Held | None:
        return self._held.get(call.args["grant"], {}).get(call.args["number"])

    def _find(self, call: Call) -> _Held:
        held = self._known(call)
        if held is None:
            what = "the process, shell or connection"
            raise ContainerStateError(
                f"{what} was closed, or its slot was released; start another one"
            )
        return held


async def _end_quietly(held: _Held) -> None:
    with suppress(HyperRuntimeError):
        await held.end()


async def _show(
    terminal: Terminal, write: Callable[[Stream, bytes], Coroutine[Any, Any, None]]
) -> bytes:
    """Send the output of a terminal to the caller; return what is left when the command has ended.

    A caller that does not read delays the output, but not the end. No thread waits for output,
    because a node may have many idle terminals.
    """
    ended = asyncio.ensure_future(terminal.process.ended.wait())
    is_readable = False
    try:
        with closing_descriptor(os.dup(terminal.fileno())) as descriptor:
            while not ended.done():
                try:
                    chunk = terminal.read(0)
                    is_readable = False
                except TimeoutError:
                    # no process holds the terminal, which counts as readable; one may open it again
                    if is_readable:
                        await asyncio.wait({ended}, timeout=_TRY_AGAIN_S)
                    else:
                        await _until_readable(descriptor, ended)
                    is_readable = not is_readable
                    continue
                sending = asyncio.ensure_future(write("stdout", chunk))
                await asyncio.wait({sending, ended}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    sending.result()
                else:
                    sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        rest = b""
        while chunk := terminal.read():  # does not wait: the command has ended
            rest += chunk
        return rest
    finally:
        ended.cancel()


async def _until_readable(descriptor: int, ended: asyncio.Future[None]) -> None:
    loop = asyncio.get_running_loop()
    readable, wake = make_waiter()
    loop.add_reader(descriptor, wake)
    try:
        await asyncio.wait({readable, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(descriptor)
        readable.cancel()
