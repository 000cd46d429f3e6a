"""The head's side of the models: seats of the run's gateway for containers on nodes.

A node may use only the generations that it was given. Its seats and connections end with their call ``models.seat``,
which ends when the node closes it or is lost. No key leaves the head.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from hyperruntime.cluster.generations.relay import PIECE_BYTES
from hyperruntime.cluster.peer import Answer, Call, Handler
from hyperruntime.concurrency.blocking import RESETS, threads
from hyperruntime.concurrency.end_event import make_waiter
from hyperruntime.errors import GatewayError
from hyperruntime.gateway.gateway import SOCKET_NAME, Seat
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import genid_from_json
from hyperruntime.loop.workbench.model_access import ModelAccess

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@attrs.frozen(eq=False)
class _Held:
    """A seat that a node holds, and the node's connections to it."""

    seat: Seat
    folder: str
    connections: dict[object, _Connection] = attrs.field(factory=dict)


class NodeModels:
    """Serves the models of runs to nodes. All methods run on the event loop of the connections."""

    def __init__(self, directory: Path) -> None:
        """Serve nothing yet.

        Args:
            directory: a private directory of this machine with a short path, for sockets.
        """
        self._directory = directory
        self._granted: dict[tuple[str, GenId], ModelAccess] = {}
        self._held: dict[tuple[str, object], _Held] = {}

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """What nodes may call."""
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
        genid = genid_from_json(call.args.get("genid"))
        models = self._granted.get((call.caller, genid))
        if models is None:
            raise GatewayError(f"node {call.caller} does not make generation {genid}")
        return genid, models

    def _find(self, call: Call) -> _Held:
        held = self._held.get((call.caller, call.args.get("seat")))
        if held is None:
            raise GatewayError("the seat is closed")
        return held

    async def _begin(self, call: Call) -> Answer:
        genid, models = self._models(call)
        models.begin(genid)
        return Answer()

    async def _seat(self, call: Call) -> Answer:
        genid, models = self._models(call)
        folder = tempfile.mkdtemp(dir=self._directory)
        refused, refuse = make_waiter()
        key, step, held = (call.caller, call.args["seat"]), str(call.args.get("step")), None
        opening = threads(RESETS).submit(lambda: models.seat(genid, step, folder))
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
            removing = threads(RESETS).submit(lambda: _remove(opening, folder))  # to its end, also if this is cancelled
            await asyncio.shield(asyncio.wrap_future(removing))
        return Answer()

    async def _check(self, call: Call) -> Answer:
        self._find(call).seat.check()
        return Answer()

    async def _open(self, call: Call) -> Answer:
        held = self._find(call)
        try:
            pair = await asyncio.open_unix_connection(os.path.join(held.folder, SOCKET_NAME))
        except OSError as error:
            raise GatewayError(f"the gateway takes no connection: {error}") from error
        if self._held.get((call.caller, call.args.get("seat"))) is not held:  # it was closed meanwhile
            pair[1].close()
            raise GatewayError("the seat is closed")
        held.connections[call.args.get("connection")] = pair
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
        held = self._held.get((call.caller, call.args.get("seat")))
        pair = None if held is None else held.connections.pop(call.args.get("connection"), None)
        if pair is not None:
            pair[1].close()
        return Answer()

    def _connection(self, call: Call) -> _Connection:
        pair = self._find(call).connections.get(call.args.get("connection"))
        if pair is None:
            raise GatewayError("the connection is closed")
        return pair


def _remove(opening: Future[Seat], folder: str) -> None:
    try:
        if opening.exception() is None:
            opening.result().close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
