"""The calls about one leased slot to its node, from the event loop and from threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from hyperruntime.cluster.slots.remote_exec import RemoteExecs, Sink
from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.errors import HyperRuntimeError, PoolClosedError, PoolError
from hyperruntime.spec import ExecResult
from hyperruntime.wire.peer import Answer, OnEvent, Peer

T = TypeVar("T")
_ON_LOOP = (
    "this event loop carries the connection to the node, so it cannot wait for the node's "
    "answer; await the method's twin, such as asignal, aclose or arun, or call it in a thread"
)


class SlotCalls:
    """Calls the node of one slot.

    Attributes:
        loop: the event loop of the connection.
    """

    def __init__(self, peer: Peer, slot: Mapping[str, Any], execs: RemoteExecs) -> None:
        """Call nothing yet; on the event loop.

        Args:
            peer: the node.
            slot: arguments of each call, by which the node finds the slot.
            execs: runs commands whose streams go over the connection.
        """
        self.loop = asyncio.get_running_loop()
        self._peer = peer
        self._slot = slot
        self._execs = execs
        self._beside = BackgroundTasks("a slot")

    async def call(
        self,
        method: str,
        body: bytes = b"",
        *,
        on_event: OnEvent | None = None,
        **args: Any,  # noqa: ANN401 - JSON
    ) -> Answer:
        """Call a method of the node.

        Args:
            method: its name.
            body: bytes beside the arguments.
            on_event: called with each event before the answer; must not block.
            args: its arguments, in addition to those of the slot.

        Raises:
            StaleLeaseError: the slot was released, or its lease expired.
            SandboxLostError: the slot's container or node ended.
        """
        return await self._peer.call(method, {**self._slot, **args}, body, on_event)

    async def run(
        self,
        method: str,
        command: Sequence[str | bytes],
        options: Mapping[str, Any],
        *,
        sink: Sink | None = None,
        on_event: OnEvent | None = None,
        **args: Any,  # noqa: ANN401 - JSON
    ) -> ExecResult:
        """Call a method that runs a command; see :meth:`RemoteExecs.run` for arguments and
        errors.
        """

        async def call(streams: Mapping[str, Any], body: bytes) -> Answer:
            return await self.call(method, body, on_event=on_event, **args, **streams)

        with self._peer.reading():
            return await self._execs.run(call, command, options, node=self._peer.name, sink=sink)

    def wait(self, method: str, **args: Any) -> Answer:  # noqa: ANN401 - JSON
        """Call a method from a thread, and wait.

        Raises:
            PoolError: this thread runs the event loop of the connection.
            HyperRuntimeError: as :meth:`call`.
        """
        return self.wait_for(lambda: self.call(method, **args))

    def wait_for(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a coroutine that ``work`` makes; see :meth:`wait`."""
        self.check_thread()
        if self.loop.is_closed():
            raise PoolClosedError("the cluster is closed, and with it its slots")
        future = asyncio.run_coroutine_threadsafe(work(), self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # if this thread was interrupted
            raise

    def check_thread(self) -> None:
        """Raise PoolError if this thread runs the event loop of the connection."""
        with suppress(RuntimeError):  # no event loop runs here
            if asyncio.get_running_loop() is self.loop:
                raise PoolError(_ON_LOOP)

    def soon(self, method: str, **args: Any) -> None:  # noqa: ANN401 - JSON
        """Call a method without waiting, from any thread; its errors are ignored."""

        async def quiet() -> None:
            with suppress(HyperRuntimeError):
                await self.call(method, **args)

        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(lambda: self.keep(quiet()))

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work in the background, on the event loop."""
        return self._beside.start(work)
