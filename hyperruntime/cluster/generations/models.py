"""The head's side of the models: seats of the run's gateway for containers on nodes.

A node may use only the generations that it was given. Its seats and connections end with their call
``models.seat``, which ends when the node closes it or is lost. No key leaves the head.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.concurrency.blocking import RESETS, threads
from hyperruntime.concurrency.end_event import make_waiter
from hyperruntime.errors import GatewayError, HyperRuntimeError
from hyperruntime.gateway.config.values import Budget
from hyperruntime.gateway.log.budget import Meter, Spent
from hyperruntime.gateway.seat import SOCKET_NAME, Seat, listen_in
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import genid_from_json
from hyperruntime.loop.workbench.model_access import ModelAccess, open_access
from hyperruntime.loop.workbench.open_containers import LoopContainer
from hyperruntime.ports.http_connection import MOST_CONNECTIONS
from hyperruntime.wire.checks import Line
from hyperruntime.wire.messages import PeerFaultError
from hyperruntime.wire.peer import Answer, Call, Handler, Peer, Streams

if TYPE_CHECKING:
    from hyperruntime.gateway import Access


MOST_SEATS = 1024  # that a node holds at once
PIECE_BYTES = 64 * 1024


@attrs.frozen(kw_only=True)
class _Wanted:
    """The arguments of the methods.

    Attributes:
        genid: the generation.
        seat: the node's number of the seat.
        step: name of the step.
    """

    genid: str | int
    seat: int = 0
    step: str = attrs.field(default="", validator=Line(200))


@attrs.frozen(eq=False)
class _Held:
    """A seat that a node holds, and the connections to it."""

    seat: Seat
    folder: str
    connections: BackgroundTasks = attrs.field(factory=lambda: BackgroundTasks("a seat"))


class NodeModels:
    """Serves the models of runs to nodes. All methods run on the event loop of the connections."""

    def __init__(self, directory: Path) -> None:
        """Serve nothing yet.

        Args:
            directory: a private directory of this machine with a short path, for sockets.
        """
        self._directory = directory
        self._granted: dict[tuple[str, GenId], ModelAccess] = {}
        self._held: dict[tuple[str, int], _Held] = {}
        self._seats: Counter[str] = Counter()

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Methods that nodes may call, by name."""
        return {
            "models.begin": self._begin,
            "models.seat": self._seat,
            "models.check": self._check,
            "models.connect": self._connect,
        }

    @contextmanager
    def granted(self, node: str, genid: GenId, models: ModelAccess) -> Iterator[None]:
        """Let a node use the models for a generation during a block.

        Args:
            node: the name of the node.
            genid: the generation.
            models: the models of the run.
        """
        self._granted[node, genid] = models
        try:
            yield
        finally:
            del self._granted[node, genid]

    def _models(self, call: Call) -> tuple[GenId, ModelAccess]:
        try:
            genid = genid_from_json(call.values(_Wanted).genid)
        except ValueError as error:
            raise PeerFaultError(str(error)) from error
        models = self._granted.get((call.caller, genid))
        if models is None:
            raise GatewayError(f"node {call.caller} does not make generation {genid}")
        return genid, models

    def _find(self, call: Call) -> _Held:
        held = self._held.get((call.caller, call.values(_Wanted).seat))
        if held is None:
            raise GatewayError("the seat is closed")
        return held

    async def _begin(self, call: Call) -> Answer:
        genid, models = self._models(call)
        models.begin(genid)
        return Answer()

    async def _seat(self, call: Call) -> Answer:
        genid, models = self._models(call)
        wanted = call.values(_Wanted)
        if self._seats[call.caller] >= MOST_SEATS:
            raise PeerFaultError(f"it has {MOST_SEATS} seats, and wants one more")
        self._seats[call.caller] += 1
        try:
            await self._keep_seat(call, genid, models, wanted)
        finally:
            self._seats[call.caller] -= 1
        return Answer()

    async def _keep_seat(
        self, call: Call, genid: GenId, models: ModelAccess, wanted: _Wanted
    ) -> None:
        """Keep a seat open until the call is cancelled."""
        folder = tempfile.mkdtemp(dir=self._directory)
        refused, refuse = make_waiter()
        key = (call.caller, wanted.seat)
        held = None
        opening = threads(RESETS).submit(lambda: models.seat(genid, wanted.step, folder))
        try:
            seat = await asyncio.shield(asyncio.wrap_future(opening))
            held = self._held[key] = _Held(seat, folder)
            await call.emit(Answer({"token": seat.token}))
            seat.when_refused(refuse)
            await refused
            await call.emit(Answer({"refused": True}))
            await asyncio.Event().wait()  # until the node closes the seat or is lost
        finally:
            self._held.pop(key, None)
            if held is not None:
                held.connections.cancel()
            # to its end, also if this is cancelled
            removing = threads(RESETS).submit(lambda: _remove(opening, folder))
            await asyncio.shield(asyncio.wrap_future(removing))

    async def _check(self, call: Call) -> Answer:
        self._find(call).seat.check()
        return Answer()

    async def _connect(self, call: Call) -> Answer:
        """Carry one connection of a container until one side ends it, or the seat is closed."""
        held = self._find(call)
        if call.read is None:
            raise PeerFaultError("it connects to a seat without an input")
        if len(held.connections) >= MOST_CONNECTIONS:
            raise GatewayError(f"{MOST_CONNECTIONS} connections of this seat are open; close one")
        await held.connections.start(_carry(call, os.path.join(held.folder, SOCKET_NAME)))
        return Answer()


async def _carry(call: Call, socket: str) -> None:
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError as error:
        raise GatewayError(f"the gateway takes no connection: {error}") from error

    async def upward() -> None:
        assert call.read is not None
        while piece := await call.read():
            writer.write(piece)
            await writer.drain()

    async def downward() -> None:
        while piece := await reader.read(PIECE_BYTES):
            await call.emit(Answer(body=piece))

    both = {asyncio.ensure_future(upward()), asyncio.ensure_future(downward())}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        writer.close()
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


def _remove(opening: Future[Seat], folder: str) -> None:
    try:
        if opening.exception() is None:
            opening.result().close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


T = TypeVar("T")
MOST_CARRIED = 256  # connections of a seat; the forwarder in the container makes at most 200
_numbers = itertools.count(1)


class RelayedSeat(Seat):
    """A seat of the head's gateway whose socket is on this node."""

    def __init__(self, models: RelayedModels, name: str, directory: str, number: int) -> None:
        """Make it; :meth:`RelayedModels.seat` listens."""
        super().__init__(models, name, Meter(name, Budget()), directory)
        self._models = models
        self.number = number

    def check(self) -> None:
        """Check the head's seat; raises the errors of :meth:`Seat.check`."""
        self._models.check(self)


class RelayedModels:
    """The models of one generation on a node; thread-safe.

    Without a gateway, containers get no access.
    """

    def __init__(self, head: Peer, genid: object, grace_s: float | None) -> None:
        """Call nothing yet; must be called on the node's event loop.

        Args:
            head: has the gateway.
            genid: the generation, as JSON.
            grace_s: as for :func:`~hyperruntime.loop.workbench.model_access.open_access`; None
                without a gateway.
        """
        self._head = head
        self._genid = genid
        self._grace_s = grace_s
        self._loop = asyncio.get_running_loop()
        self._serving: dict[Seat, asyncio.Task[None]] = {}

    def begin(self, genid: GenId) -> None:
        """Give the generation its whole budget, on the head."""
        if self._grace_s is not None:
            self._run(self._head.call("models.begin", {"genid": self._genid}))

    def usage(self, genid: GenId) -> Spent | None:
        """Return None: the head counts it."""
        return None

    def open(self, container: LoopContainer, genid: GenId, step: str) -> Access | None:
        """Return a container's access to the models; None without a gateway.

        Args:
            container: the container.
            genid: the generation; not used, because this object serves only one.
            step: name of the step, for the seat.
        """
        if self._grace_s is None:
            return None
        return open_access(self, container, step, None, self._grace_s)

    def check(self, seat: RelayedSeat) -> None:
        """Check the head's seat, from a thread; raises the errors of :meth:`Seat.check`."""
        self._run(self._head.call("models.check", self._at(seat)))

    def seat(self, name: str, directory: str, budget: Budget | Meter | None = None) -> Seat:
        """Return a seat of the head's gateway, and listen on its socket here; only the head knows
        its budget.
        """
        return self._run(self._seat(name, directory))

    def drop(self, seat: Seat) -> None:
        """Close a seat, here and on the head. Idempotent."""
        self._run(self._drop(seat))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _seat(self, name: str, directory: str) -> Seat:
        seat = RelayedSeat(self, name, directory, next(_numbers))
        ready = self._loop.create_future()
        listener = listen_in(directory)
        serving = self._serving[seat] = asyncio.ensure_future(self._serve(seat, listener, ready))
        # also if it was cancelled before it listened
        serving.add_done_callback(lambda _: listener.close())
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            del self._serving[seat]
            await serving  # raises
        # the node says that it is lost
        serving.add_done_callback(lambda task: task.cancelled() or task.exception())
        return seat

    async def _drop(self, seat: Seat) -> None:
        if (serving := self._serving.pop(seat, None)) is not None:
            serving.cancel()
            await asyncio.wait({serving})

    async def _serve(self, seat: RelayedSeat, listener: Any, ready: asyncio.Future[None]) -> None:  # noqa: ANN401
        """Keep the head's seat open by a long call, and carry connections until cancelled."""
        carrying = BackgroundTasks("a connection of a container")
        most = MOST_CARRIED

        def hear(said: Answer) -> None:
            if isinstance(said.value, dict) and "token" in said.value:
                seat.token = str(said.value["token"])
                if not ready.done():
                    ready.set_result(None)
            else:
                seat.refuse("a budget is used up")

        # Not a coroutine function: asyncio would call it in a task, which can begin after the end
        # of the seat.
        def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(carrying) >= most:
                writer.close()
                return
            task = carrying.start(self._carry(seat, reader, writer))
            # also if it was cancelled before it began
            task.add_done_callback(lambda _: writer.close())

        server = await asyncio.start_unix_server(carry, sock=listener)
        try:
            await self._head.call("models.seat", self._at(seat), on_event=hear)
        finally:
            most = 0  # for connections that were accepted, but are not carried yet
            self._loop.remove_reader(listener)
            try:
                # asyncio loses connections that it accepted just before its server closes
                await asyncio.sleep(0)
            finally:
                server.close()
                carrying.cancel()
            await carrying.wait()

    async def _carry(
        self, seat: RelayedSeat, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection until either end closes it."""

        async def write(said: Answer) -> None:
            writer.write(said.body)
            await writer.drain()

        streams = Streams(lambda: reader.read(PIECE_BYTES), write)
        with suppress(HyperRuntimeError, OSError):
            await self._head.call("models.connect", self._at(seat), streams=streams)

    def _at(self, seat: RelayedSeat) -> Mapping[str, Any]:
        return {"genid": self._genid, "seat": seat.number, "step": seat.name}
