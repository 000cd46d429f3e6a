"""Services of a node for its head; they share the node's runtime, and end with it."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

import attrs

from hyperruntime.errors import HyperRuntimeError, SandboxLostError
from hyperruntime.host.batch_job import SETTLE_S, TERMINATED
from hyperruntime.host.owner import owned_directory
from hyperruntime.logs import get_logger
from hyperruntime.runtime import Runtime, open_runtime
from hyperruntime.wire.peer import Handler, Peer

log = get_logger(__name__)


@attrs.frozen
class NodeSettings:
    """Part of the cluster's configuration that a node needs.

    Attributes:
        runtime: the engine; ``auto`` means the first that works on the node.
        logs: a directory for ``NODE.log``; "" means no log.
    """

    runtime: str = "auto"
    logs: str = ""


class NodeContext:
    """Shared context of the services of one node.

    Attributes:
        settings: from the head.
        head: calls the head; set by the node server.
        told_to_end: set when the batch system has sent SIGTERM; it may have sent it to the
            processes of containers too.
    """

    def __init__(self, settings: NodeSettings) -> None:
        """Open nothing yet; must be called on an event loop."""
        self.settings = settings
        self.head: Peer | None = None
        self.told_to_end = asyncio.Event()
        self._opening = asyncio.Lock()
        self._runtime: Runtime | None = None
        self._open = ExitStack()
        self._pruning: asyncio.Task[None] | None = None
        self._early: asyncio.Task[None] | None = None
        self._scratch: Path | None = None

    async def runtime(self) -> Runtime:
        """Return the node's runtime; the first call opens it.

        Raises:
            EngineUnavailableError: the engine, or every engine, cannot run a container on this
                node.
        """
        async with self._opening:
            if self._runtime is None:
                self._runtime = await asyncio.to_thread(open_runtime, self.settings.runtime)
                log.info("runtime opened", runtime=self._runtime.name)
                self._pruning = asyncio.ensure_future(self._prune(self._runtime))
        return self._runtime

    def open_soon(self) -> None:
        """Open the runtime before it is needed: work then begins sooner, and what node servers that
        were killed have left here goes.
        """

        async def opened() -> None:
            with suppress(HyperRuntimeError):  # what needs the runtime gets the error
                await self.runtime()

        self._early = asyncio.ensure_future(opened())

    async def _prune(self, runtime: Runtime) -> None:
        """Remove what node servers that were killed have left on this node."""
        try:
            removed = await asyncio.to_thread(runtime.prune)
            log.info("node pruned", removed=len(removed))
        except HyperRuntimeError as error:
            log.warning("node not pruned", error=str(error))

    async def check_not_ended(self, exit_code: int | None) -> None:
        """Raise if the batch system ends this node's job: its SIGTERM reaches the processes in
        containers too.

        SIGTERM may reach a command a moment before the node server.

        Args:
            exit_code: of the command that has ended; None if none has run.

        Raises:
            SandboxLostError: the batch system ends the job.
        """
        if exit_code == TERMINATED and not self.told_to_end.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.told_to_end.wait(), SETTLE_S)
        if self.told_to_end.is_set():
            raise SandboxLostError(
                "the batch system ends the job of the node, and sends SIGTERM to all its processes"
            )

    def containers(self) -> tuple[str, ...]:
        """Return the names of the containers that this node server has started and not ended."""
        return () if self._runtime is None else self._runtime.open_containers

    def scratch(self) -> Path:
        """Return a directory of this node server alone, which :meth:`close` removes.

        Raises:
            StorageError: it cannot be made.
        """
        if self._scratch is None:
            self._scratch = Path(self._open.enter_context(owned_directory()))
        return self._scratch

    async def close(self) -> None:
        """End all containers of the node's runtime, and remove this node server's own part of the
        scratch directory.
        """
        for task in (self._early, self._pruning):
            if task is not None:
                await asyncio.wait({task})
        if self._runtime is not None:
            await asyncio.to_thread(self._runtime.close)
        await asyncio.to_thread(self._open.close)


class NodeService(Protocol):
    """One service of a node.

    Attributes:
        handlers: what the head may call.
    """

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The service's methods, by names that no other service has."""
        ...

    async def close(self) -> None:
        """End what the service has started; called before the runtime is closed."""
        ...


SERVICES = (
    "hyperruntime.cluster.check:CheckService",
    "hyperruntime.cluster.generations.service:GenerationService",
    "hyperruntime.cluster.images:ImageService",
    "hyperruntime.cluster.rollouts.episode_service:EpisodeService",
    "hyperruntime.cluster.slots.pool_service:PoolService",
)
"""The services of a node, by module and class; by name, because they import this module or stand in
later folders.
"""


def all_services(context: NodeContext) -> Sequence[NodeService]:
    """Return a new instance of each service of a node, whose runtime is opened meanwhile."""
    context.open_soon()
    named = (name.split(":") for name in SERVICES)
    return tuple(getattr(importlib.import_module(module), kind)(context) for module, kind in named)


async def close_services(services: Sequence[NodeService], context: NodeContext) -> None:
    """End all services and then their context; if one fails, the others are still ended."""
    closing: list[Awaitable[None]] = [service.close() for service in services]
    for result in await asyncio.gather(*closing, return_exceptions=True):
        if isinstance(result, BaseException):
            log.warning("service not closed", error=repr(result))
    await context.close()
