"""The containers of a service: how many there are, who uses them, and when an unused one ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs

from hyperruntime.container import Container
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.logs import get_logger
from hyperruntime.runtime import Runtime
from hyperruntime.serve.background import Background
from hyperruntime.serve.models import ContainerState
from hyperruntime.serve.rules import ContainerRules
from hyperruntime.serve.service_errors import CapacityError, ResourceNotFoundError
from hyperruntime.spec import ContainerSpec

log = get_logger(__name__)


class RuntimeSource(Protocol):
    """What opens the runtime of a service, such as a node's context."""

    async def runtime(self) -> Runtime:
        """Return the runtime."""
        ...


@attrs.define(eq=False)
class Served:
    """A container of a service.

    Attributes:
        container: the container.
        processes: its background processes, by name.
        starting: how many more are starting.
        requests: how many requests use it.
        used_at: monotonic time at which the last one ended.
        timer: ends it for want of use.
    """

    container: Container
    processes: dict[str, Background] = attrs.field(factory=dict)
    starting: int = 0
    requests: int = 0
    used_at: float = attrs.field(factory=time.monotonic)
    timer: asyncio.TimerHandle | None = None

    def state(self) -> ContainerState:
        """Return what a client is told of it."""
        return ContainerState(
            name=self.container.name,
            image=self.container.spec.image,
            is_alive=self.container.is_alive,
            ended_because=self.container.watchdog_verdict,
            requests=self.requests,
            unused_s=0.0 if self.requests else round(time.monotonic() - self.used_at, 3),
        )


class Containers:
    """The containers of a service; used on one event loop.

    Attributes:
        rules: what clients may have.
    """

    def __init__(self, source: RuntimeSource, rules: ContainerRules) -> None:
        """Have no container yet.

        Args:
            source: opens the runtime.
            rules: what clients may have.
        """
        self.rules = rules
        self._source = source
        self._served: dict[str, Served] = {}
        self._starting = 0
        self._is_closed = False
        self._ending: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Served]:
        """Return all containers."""
        return iter(tuple(self._served.values()))

    async def start(self, spec: ContainerSpec) -> Served:
        """Start a container.

        Raises:
            CapacityError: the service has as many as it may have.
            HyperRuntimeError: it cannot be started.
        """
        alive = sum(one.container.is_alive for one in self._served.values())
        if self._is_closed or alive + self._starting >= self.rules.most_containers:
            why = "it ends" if self._is_closed else f"it has {self.rules.most_containers} containers; end one first"
            raise CapacityError(f"the service starts no container now: {why}")
        self._starting += 1
        try:
            container = await (await self._source.runtime()).acontainer(spec)
        finally:
            self._starting -= 1
        served = self._served[container.name] = Served(container)
        self._await_use(served)
        return served

    def find(self, name: str) -> Served:
        """Return a container; this does not count as its use.

        Raises:
            ResourceNotFoundError: the service has none of this name.
        """
        served = self._served.get(name)
        if served is None:
            raise ResourceNotFoundError(f"the service has no container {name!r}; unused ones are ended after a time")
        return served

    @contextmanager
    def using(self, name: str) -> Iterator[Served]:
        """Yield a container, which is not ended for want of use inside the block.

        Raises:
            ResourceNotFoundError: the service has none of this name.
        """
        served = self.find(name)
        served.requests += 1
        if served.timer is not None:
            served.timer.cancel()
        try:
            yield served
        finally:
            served.requests -= 1
            served.used_at = time.monotonic()
            self._await_use(served)

    async def end(self, name: str) -> None:
        """End a container.

        Raises:
            ResourceNotFoundError: the service has none of this name.
            EngineError: it cannot be removed.
        """
        with self.using(name) as served:
            del self._served[name]
        await served.container.aclose()

    async def close(self) -> None:
        """End all containers, and start no other."""
        self._is_closed = True
        names = tuple(self._served)
        results = await asyncio.gather(*map(self.end, names), *self._ending, return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                log.warning("container not closed", error=str(error))

    def _await_use(self, served: Served) -> None:
        """End a container that nobody uses, after a time."""
        if served.requests == 0 and self.rules.idle_s is not None and served.container.name in self._served:
            loop = asyncio.get_running_loop()
            served.timer = loop.call_later(self.rules.idle_s, self._end_unused, served.container.name)

    def _end_unused(self, name: str) -> None:
        unused = self._served.pop(name)  # at once: no request can use it from now on
        task = asyncio.ensure_future(self._close_unused(unused.container))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _close_unused(self, container: Container) -> None:
        try:
            await container.aclose()
            log.info("unused container ended", name=container.name)
        except HyperRuntimeError as error:
            log.warning("unused container not ended", name=container.name, error=str(error))
