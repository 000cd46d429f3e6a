"""The node's side of the models: a container's requests go over the node's connection to the head's
gateway.

The bytes of a connection are carried unread. Each side is asked for the next piece only when the
last one was taken, so a container that does not read holds one piece here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.gateway.config.values import Budget
from hyperruntime.gateway.log.budget import Meter, Spent
from hyperruntime.gateway.seat import Seat, listen_in
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.workbench.model_access import open_access
from hyperruntime.loop.workbench.open_containers import LoopContainer
from hyperruntime.wire.peer import Answer, Peer

if TYPE_CHECKING:
    from hyperruntime.gateway import Access

T = TypeVar("T")
PIECE_BYTES = 64 * 1024
MOST_CONNECTIONS = 256  # of a seat; the forwarder in the container makes at most 200
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
        self._models.ask("models.check", {"seat": self.number})


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
            self.ask("models.begin", {"genid": self._genid})

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

    def ask(self, method: str, args: Mapping[str, Any]) -> Answer:
        """Call the head from a thread."""
        return self._run(self._head.call(method, args))

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
        most = MOST_CONNECTIONS

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
            task = carrying.start(self._carry(seat.number, reader, writer))
            # also if it was cancelled before it began
            task.add_done_callback(lambda _: writer.close())

        server = await asyncio.start_unix_server(carry, sock=listener)
        try:
            await self._head.call(
                "models.seat",
                {"seat": seat.number, "genid": self._genid, "step": seat.name},
                on_event=hear,
            )
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
        self, seat: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection until either end closes it."""
        at = {"seat": seat, "connection": next(_numbers)}

        async def upward() -> None:
            while data := await reader.read(PIECE_BYTES):
                await self._head.call("models.write", at, data)

        async def downward() -> None:
            while data := (await self._head.call("models.read", at)).body:
                writer.write(data)
                await writer.drain()

        both: set[asyncio.Task[None]] = set()
        try:
            await self._head.call("models.open", at)
            both = {asyncio.ensure_future(upward()), asyncio.ensure_future(downward())}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except HyperRuntimeError:
            pass
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            writer.close()
            with suppress(HyperRuntimeError):
                await self._head.call("models.close", at)
