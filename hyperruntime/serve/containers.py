"""The service of containers, whose handlers the HTTP server calls: how many containers there are,
who uses them, and when an unused one ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

import attrs

import hyperruntime
from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.container import Container
from hyperruntime.errors import ContainerLostError, ContainerStateError, SpecError
from hyperruntime.exec.spawn.process_input import MOST_BYTES
from hyperruntime.logs import get_logger
from hyperruntime.remote.handlers import VERBS
from hyperruntime.remote.held import Served, Target
from hyperruntime.remote.requests import Command, ContainerName, InputToWrite, Nothing
from hyperruntime.remote.service_errors import (
    CapacityError,
    RequestError,
    ResourceNotFoundError,
)
from hyperruntime.runtime import Runtime
from hyperruntime.serve.models import (
    ContainerList,
    ContainerState,
    ExecCommand,
    NewContainer,
    ServiceInfo,
)
from hyperruntime.serve.routes import ROUTES, Route
from hyperruntime.serve.rules import ContainerRules
from hyperruntime.settings.reader import read, to_json
from hyperruntime.spec import ContainerSpec
from hyperruntime.wire.peer import Answer, Call, Handler

log = get_logger(__name__)

_LEAST_BYTES = 2
_MOST_OUTPUT_BYTES = 16 * 1024**2
_ENDED_S = 60.0  # time that an ended container is kept, for the last output of its processes
_MOST_LOST = 1000
_MOST_INPUT_S = 10.0  # for a request to wait for room


class RuntimeSource(Protocol):
    """Opens the runtime of a service."""

    async def runtime(self) -> Runtime:
        """Return the runtime."""
        ...


class ContainerVerbs:
    """The verbs of a container that have a route, with the names that a lease has."""

    def __init__(self, container: Container) -> None:
        """Take the container's methods for an event loop."""
        self.exec = container.aexec
        self.spawn = container.aspawn
        self.read_file = container.aread_file
        self.write_file = container.awrite_file
        self.stat = container.astat
        self.listdir = container.alistdir


class ServedContainer(Target[Served]):
    """A container of a service.

    Attributes:
        container: the container.
        requests: how many requests use it.
        used_at: monotonic time at which the last one ended.
        timer: ends it after a time without requests.
    """

    def __init__(self, container: Container, most_processes: int) -> None:
        """Serve a container.

        Args:
            container: the container.
            most_processes: how many background processes it may have.
        """
        super().__init__(ContainerVerbs(container))
        self.container = container
        self.requests = 0
        self.used_at = time.monotonic()
        self.timer: asyncio.TimerHandle | None = None
        self._most_processes = most_processes
        self._starting = 0

    @property
    def input_wait_s(self) -> float:
        """Seconds that a request waits for room; see :class:`Target`."""
        return _MOST_INPUT_S

    def missing(self, name: str) -> ResourceNotFoundError:
        """Return the error about a process that it does not have."""
        return ResourceNotFoundError(f"container {self.container.name!r} has no process {name!r}")

    @contextmanager
    def place(self) -> Iterator[None]:
        """Start a process inside this block.

        Raises:
            CapacityError: it has as many as it may have.
        """
        most = self._most_processes
        if len(self.held) + self._starting >= most:
            raise CapacityError(f"the container has {most} processes; end some of them first")
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1

    def state(self) -> ContainerState:
        """Return its state, as clients see it."""
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
        self._served: dict[str, ServedContainer] = {}
        self._starting = 0
        self._is_closed = False
        self._ending = BackgroundTasks("the service")
        self._lost: dict[str, str] = {}  # why containers ended by themselves, by name

    def __iter__(self) -> Iterator[ServedContainer]:
        """Return all containers."""
        return iter(tuple(self._served.values()))

    async def start(self, spec: ContainerSpec) -> ServedContainer:
        """Start a container.

        Raises:
            CapacityError: the service has as many as it may have, or it is ending.
            HyperRuntimeError: it cannot be started.
        """
        if self._is_full:
            await self._end_lost()
        if self._is_closed or self._is_full:
            why = (
                "it ends"
                if self._is_closed
                else f"it has {self.rules.most_containers} containers; end one first"
            )
            raise CapacityError(f"the service starts no container now: {why}")
        self._starting += 1
        try:
            container = await (await self._source.runtime()).acontainer(spec)
        finally:
            self._starting -= 1
        served = self._served[container.name] = ServedContainer(
            container, self.rules.most_processes
        )
        self._await_use(served)
        loop = asyncio.get_running_loop()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._await_use, served)

        container.on_end(notify)
        return served

    @property
    def _is_full(self) -> bool:
        return len(self._served) + self._starting + len(self._ending) >= self.rules.most_containers

    def find(self, name: str) -> ServedContainer:
        """Return a container; this does not count as its use.

        Raises:
            ResourceNotFoundError: the service has none of this name.
            ContainerLostError: it has ended by itself, a while ago.
        """
        served = self._served.get(name)
        if name in self._lost:
            raise ContainerLostError(
                f"container {name} has ended: {self._lost[name]}; start another one"
            )
        if served is None:
            raise ResourceNotFoundError(
                f"the service has no container {name!r}; unused ones are ended after a time"
            )
        return served

    @contextmanager
    def using(self, name: str) -> Iterator[ServedContainer]:
        """Yield a container, which does not count as unused inside the block.

        Raises:
            ResourceNotFoundError: the service has none of this name.
            ContainerLostError: it has ended by itself, a while ago.
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
        """End a container; this goes on if the caller is cancelled.

        Raises:
            ResourceNotFoundError: the service has none of this name.
            ContainerLostError: it has ended by itself, a while ago.
            EngineError: it cannot be removed; the service still has it.
        """
        await asyncio.shield(self._begin_end(self.find(name)))

    async def close(self) -> None:
        """End all containers, and start no other."""
        self._is_closed = True
        for served in self:
            self._begin_end(served)
        await self._ending.wait()

    def _await_use(self, served: ServedContainer) -> None:
        """Start the timer that ends an unused container; it is short if the container has ended by
        itself.
        """
        if served.timer is not None:
            served.timer.cancel()
        idle_s = self.rules.idle_s
        if not served.container.is_alive:
            idle_s = _ENDED_S if idle_s is None else min(_ENDED_S, idle_s)
        if (
            served.requests == 0
            and idle_s is not None
            and self._has(served)
            and not self._is_closed
        ):
            served.timer = asyncio.get_running_loop().call_later(idle_s, self._end_unused, served)

    def _has(self, served: ServedContainer) -> bool:
        return self._served.get(served.container.name) is served

    async def _end_lost(self) -> None:
        """End the containers that have ended by themselves and are not used."""
        lost = [one for one in self if not (one.container.is_alive or one.requests)]
        for served in lost:
            self._begin_end(served)
        await self._ending.wait()

    def _end_unused(self, served: ServedContainer) -> None:
        if self._has(served) and not served.requests:
            self._begin_end(served)

    def _begin_end(self, served: ServedContainer) -> asyncio.Task[None]:
        """Begin to end a container, which no request can use from now on."""
        name = served.container.name
        why = (
            ""
            if served.container.is_alive
            else served.container.watchdog_verdict or "its main process is gone"
        )
        del self._served[name]
        if served.timer is not None:
            served.timer.cancel()
        return self._ending.start(self._end(served, why))

    async def _end(self, served: ServedContainer, why: str) -> None:
        name = served.container.name
        try:
            await served.container.aclose()
        except BaseException as error:
            log.warning("container not ended", name=name, error=str(error))
            self._served[name] = served  # so that a client or the timer retries
            self._await_use(served)
            raise
        for held in served.held.values():
            held.drop_streams()
        if why:
            self._lost[name] = why
            if len(self._lost) > _MOST_LOST:
                del self._lost[next(iter(self._lost))]
        log.info("container ended", name=name, why=why)


class ContainerService:
    """Containers that a caller starts, uses and ends by calls.

    Attributes:
        handlers: ``service.info``, ``container.start``, ``list``, ``show`` and ``end``, and the
            verbs of a sandbox that have a route.
    """

    def __init__(self, source: RuntimeSource, rules: ContainerRules) -> None:
        """Start nothing yet.

        Args:
            source: opens the runtime, and closes it after the service.
            rules: what callers may have.
        """
        self._source = source
        self._rules = rules
        self._containers = Containers(source, rules)
        verbs = [route for route in ROUTES if route.handler in VERBS]
        self.handlers: Mapping[str, Handler] = {
            "service.info": self._info,
            "container.start": self._start,
            "container.list": self._list,
            "container.show": self._show,
            "container.end": self._end,
            **{route.handler: partial(self._use, route) for route in verbs},
        }

    async def close(self) -> None:
        """End all containers."""
        await self._containers.close()

    async def _use(self, route: Route, call: Call) -> Answer:
        """Answer a verb of a container."""
        asked: ContainerName | Command = read(route.request, call.args)
        with self._containers.using(asked.container) as served:
            answer = await VERBS[route.handler].handler(served, _allowed(asked, call), call)
        if answer.value is False:  # only the end of a process
            raise ContainerStateError("processes of it still run; send the request again")
        return answer

    async def _info(self, call: Call) -> Answer:
        read(Nothing, call.args)
        runtime = await self._source.runtime()
        rules = self._rules
        info = ServiceInfo(
            version=hyperruntime.__version__,
            runtime=runtime.name,
            most_containers=rules.most_containers,
            idle_s=rules.idle_s,
        )
        return Answer(to_json(info))

    async def _start(self, call: Call) -> Answer:
        served = await self._containers.start(self._rules.spec_of(read(NewContainer, call.args)))
        return Answer(to_json(served.state()))

    async def _list(self, call: Call) -> Answer:
        read(Nothing, call.args)
        return Answer(
            to_json(ContainerList(containers=tuple(one.state() for one in self._containers)))
        )

    async def _show(self, call: Call) -> Answer:
        return Answer(
            to_json(self._containers.find(read(ContainerName, call.args).container).state())
        )

    async def _end(self, call: Call) -> Answer:
        await self._containers.end(read(ContainerName, call.args).container)
        return Answer()


def _allowed(asked: ContainerName | Command, call: Call) -> ContainerName | Command:
    """Return a request for its handler; output that is emitted is not kept, too.

    Raises:
        SpecError: it keeps too much output in the memory of the service.
        RequestError: its input is too large to be taken whole.
    """
    if isinstance(asked, InputToWrite) and len(call.body) > MOST_BYTES:
        raise RequestError(413, f"the input has more than {MOST_BYTES} bytes; send it in parts")
    if not isinstance(asked, Command):
        return asked
    if asked.output_limit_bytes > _MOST_OUTPUT_BYTES:
        allowed = f"at most {_MOST_OUTPUT_BYTES}; a stream has no limit"
        raise SpecError("output_limit_bytes", asked.output_limit_bytes, allowed)
    streams = isinstance(asked, ExecCommand) and asked.stream
    return attrs.evolve(asked, output_limit_bytes=_LEAST_BYTES) if streams else asked
