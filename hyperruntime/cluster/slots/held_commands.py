"""What runs in the slots of a node for a caller on the head's machine: processes, terminals, shells, connections."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import attrs

from hyperruntime.cluster.node_services import NodeContext
from hyperruntime.cluster.peer import Answer, Call, Handler
from hyperruntime.cluster.slots.remote_exec import NodeStreams, answer_of, exec_for_head
from hyperruntime.concurrency.blocking import RESETS, blocking
from hyperruntime.errors import ContainerStateError
from hyperruntime.exec.options import Stream
from hyperruntime.exec.persistent.shell import Shell
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.process_input import ProcessInput
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.pool.lease import Lease
from hyperruntime.spec import ExecResult

CHUNK_BYTES = 65536


class _Held:
    """Something that the caller writes to, signals and ends."""

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more by itself."""
        return False

    async def write(self, data: bytes, *, end: bool) -> None:
        """Take input; with ``end``, no more comes."""

    async def signal(self, number: int) -> bool:
        """Send a signal; return whether a process could get it."""
        return False

    async def resize(self, rows: int, cols: int) -> None:
        """Set the size of the window."""

    async def end(self) -> bool:
        """End it; return whether nothing is left."""
        return True


@attrs.define(eq=False)
class _HeldProcess(_Held):
    process: Process
    input: ProcessInput

    @property
    def has_ended(self) -> bool:
        return self.process.ended.is_set

    async def write(self, data: bytes, *, end: bool) -> None:
        if data:
            await self.input.write(data)
        if end:
            self.input.end()

    async def signal(self, number: int) -> bool:
        return await self.process.asignal(number)

    async def end(self) -> bool:
        return await blocking(RESETS, self.process.close)


@attrs.define(eq=False)
class _HeldTerminal(_Held):
    terminal: Terminal

    @property
    def has_ended(self) -> bool:
        return self.terminal.process.ended.is_set

    async def write(self, data: bytes, *, end: bool) -> None:
        await self.terminal.awrite(data)

    async def signal(self, number: int) -> bool:
        return await self.terminal.asignal(number)

    async def resize(self, rows: int, cols: int) -> None:
        self.terminal.resize(rows, cols)

    async def end(self) -> bool:
        return await blocking(RESETS, self.terminal.close)


@attrs.define(eq=False)
class _HeldShell(_Held):
    shell: Shell

    async def run(self, args: Sequence[bytes], **options: Any) -> ExecResult:  # noqa: ANN401
        """Run a text; the command is the text."""
        return await self.shell.arun(args[0], **options)

    async def signal(self, number: int) -> bool:
        return await self.shell.asignal(number)

    async def end(self) -> bool:
        return await blocking(RESETS, self.shell.close)


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
        handlers: ``slot.process``, ``terminal``, ``shell``, ``forward`` and ``connect``, which begin one, and
            ``held.text``, ``write``, ``signal``, ``resize``, ``end`` and ``forget``, which use one by its number.
    """

    def __init__(self, context: NodeContext, find_lease: Callable[[Call], Lease]) -> None:
        """Hold nothing yet.

        Args:
            context: the node's.
            find_lease: returns the lease that a call is about; raises StaleLeaseError.
        """
        self._context, self._find_lease = context, find_lease
        self._held: dict[int, dict[int, _Held]] = {}  # by lease and number
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

    async def end_all(self, grant: int) -> None:
        """End everything of a lease."""
        held = self._held.pop(grant, {})
        await asyncio.gather(*(one.end() for one in held.values()), return_exceptions=True)

    async def _process(self, call: Call) -> Answer:
        """Run a command in the background; an event says when its process exists."""
        lease = self._find_lease(call)
        args, options = pickle.loads(call.body)  # noqa: S301 - of the head, which this node trusts
        streams = NodeStreams(call, self._context.head_call)
        process = await lease.spawn(args, **streams.add_to(options))
        held = _HeldProcess(process, ProcessInput())
        try:
            await held.input.open(process)
            self._hold(call, held)
            await call.emit(Answer({"name": ""}))
            result = await process.await_end()
        except BaseException:
            await process.aclose()
            raise
        finally:
            streams.close()
            held.input.abort()
        await self._context.check_not_ended(result.exit_code)
        return answer_of(result)

    async def _terminal(self, call: Call) -> Answer:
        """Run a command on a terminal; the answer's standard output is the last output of the terminal."""
        lease = self._find_lease(call)
        args, options = pickle.loads(call.body)  # noqa: S301 - of the head
        given = {name: options[name] for name in ("env", "workdir", "group", "timeout_s")}
        terminal = await lease.terminal(args, rows=call.args["rows"], cols=call.args["cols"], **given)
        try:
            self._hold(call, _HeldTerminal(terminal))
            await call.emit(Answer({"name": terminal.name}))
            rest = await _show(terminal, NodeStreams(call, self._context.head_call).write)
            result = await terminal.process.await_end()
        except BaseException:
            await terminal.aclose()
            raise
        await self._context.check_not_ended(result.exit_code)
        return answer_of(attrs.evolve(result, stdout=rest))

    async def _shell(self, call: Call) -> Answer:
        self._hold(call, _HeldShell(await self._find_lease(call).shell(**call.args["options"])))
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
            self._hold(call, held)
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
        """Forget what nobody uses any more; it goes on until the lease ends, as on the head's machine."""
        held = self._known(call)
        if held is not None and held.has_ended:
            self._drop(call)
        return Answer()

    def _hold(self, call: Call, held: _Held) -> None:
        self._held.setdefault(call.args["grant"], {})[call.args["number"]] = held

    def _drop(self, call: Call) -> None:
        self._held.get(call.args["grant"], {}).pop(call.args["number"], None)

    def _known(self, call: Call) -> _Held | None:
        return self._held.get(call.args["grant"], {}).get(call.args["number"])

    def _find(self, call: Call) -> _Held:
        held = self._known(call)
        if held is None:
            raise ContainerStateError("it was closed, or its slot was released; start another one")
        return held


async def _show(terminal: Terminal, write: Callable[[Stream, bytes], Coroutine[Any, Any, None]]) -> bytes:
    """Send the output of a terminal to the caller; return what is left when the command has ended.

    A caller that does not read keeps the output waiting, but not the end.
    """
    ended = asyncio.ensure_future(terminal.process.ended.wait())
    try:
        while chunk := await terminal.aread():
            sending = asyncio.ensure_future(write("stdout", chunk))
            await asyncio.wait({sending, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                sending.add_done_callback(lambda done: done.cancelled() or done.exception())
                break
            sending.result()
        rest = b""
        while chunk := await terminal.aread():
            rest += chunk
        return rest
    finally:
        ended.cancel()
