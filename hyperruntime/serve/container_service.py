"""The service of containers: the handlers that the HTTP server calls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs

import hyperruntime
from hyperruntime.errors import ContainerStateError, SpecError
from hyperruntime.exec.spawn.process_input import MOST_BYTES
from hyperruntime.remote.handlers import VERBS
from hyperruntime.remote.requests import Command, ContainerName, InputToWrite, Nothing
from hyperruntime.remote.service_errors import RequestError
from hyperruntime.serve.containers import Containers, RuntimeSource
from hyperruntime.serve.models import ContainerList, ExecCommand, NewContainer, ServiceInfo
from hyperruntime.serve.routes import ROUTES, Route
from hyperruntime.serve.rules import ContainerRules
from hyperruntime.settings.reader import read, to_json
from hyperruntime.wire.peer import Answer, Call, Handler

_LEAST_BYTES = 2
_MOST_OUTPUT_BYTES = 16 * 1024**2


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
