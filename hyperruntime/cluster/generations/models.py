"""The head's side of the models: seats of the run's gateway for containers on nodes.

A node may use only the generations that it was given. Its seats and connections end with their call
``models.seat``, which ends when the node closes it or is lost. No key leaves the head.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from hyperruntime.cluster.generations.relay import PIECE_BYTES
from hyperruntime.concurrency.blocking import RESETS, threads
from hyperruntime.concurrency.end_event import make_waiter
from hyperruntime.errors import GatewayError
from hyperruntime.gateway.seat import SOCKET_NAME, Seat
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import genid_from_json
from hyperruntime.loop.workbench.model_access import ModelAccess
from hyperruntime.ports.http_connection import MOST_CONNECTIONS
from hyperruntime.wire.checks import Line
from hyperruntime.wire.messages import PeerFaultError
from hyperruntime.wire.peer import Answer, Call, Handler

MOST_SEATS = 1024  # that a node holds at once
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@attrs.frozen(kw_only=True)
class _Wanted:
    """The arguments of ``models.begin`` and ``models.seat``.

    Attributes:
        genid: the generation.
        seat: the node's number of the seat.
        step: name of the step.
    """

    genid: str | int
    seat: int = 0
    step: str = attrs.field(default="", validator=Line(200))


@attrs.frozen(kw_only=True)
class _Place:
    """The arguments of the methods about an open seat.

    Attributes:
        seat: the node's number of the seat.
        connection: the node's number of a connection to it.
    """

    seat: int
    connection: int = 0


@attrs.frozen(eq=False)
class _Held:
    """A seat that a node holds, and the node's connections to it."""

    seat: Seat
    folder: str
    connections: dict[int, _Connection] = attrs.field(factory=dict)


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
            "models.open": self._open,
            "models.read": self._read,
            "models.write": self._write,
            "models.close": self._close,
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
        held = self._held.get((call.caller, call.values(_Place).seat))
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
            for _, writer in () if held is None else held.connections.values():
                writer.close()
            # to its end, also if this is cancelled
            removing = threads(RESETS).submit(lambda: _remove(opening, folder))
            await asyncio.shield(asyncio.wrap_future(removing))

    async def _check(self, call: Call) -> Answer:
        self._find(call).seat.check()
        return Answer()

    async def _open(self, call: Call) -> Answer:
        held = self._find(call)
        place = call.values(_Place)
        if len(held.connections) >= MOST_CONNECTIONS:
            raise GatewayError(f"{MOST_CONNECTIONS} connections of this seat are open; close one")
        try:
            pair = await asyncio.open_unix_connection(os.path.join(held.folder, SOCKET_NAME))
        except OSError as error:
            raise GatewayError(f"the gateway takes no connection: {error}") from error
        # it may have been closed meanwhile
        is_open = self._held.get((call.caller, place.seat)) is held
        if not is_open or place.connection in held.connections:
            pair[1].close()
            raise GatewayError("the seat is closed")
        held.connections[place.connection] = pair
        return Answer()

    async def _read(self, call: Call) -> Answer:
        with suppress(OSError):
            return Answer(body=await self._connection(call)[0].read(PIECE_BYTES))
        return Answer()

    async def _write(self, call: Call) -> Answer:
        _, writer = self._connection(call)
        try:
            writer.write(call.body)
            await writer.drain()
        except OSError as error:
            raise GatewayError("the gateway closed the connection") from error
        return Answer()

    async def _close(self, call: Call) -> Answer:
        place = call.values(_Place)
        held = self._held.get((call.caller, place.seat))
        pair = None if held is None else held.connections.pop(place.connection, None)
        if pair is not None:
            pair[1].close()
        return Answer()

    def _connection(self, call: Call) -> _Connection:
        pair = self._find(call).connections.get(call.values(_Place).connection)
        if pair is None:
            raise GatewayError("the connection is closed")
        return pair


def _remove(opening: Future[Seat], folder: str) -> None:
    try:
        if opening.exception() is None:
            opening.result().close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
