"""The service of containers: the handlers that the HTTP server calls."""

from __future__ import annotations

from collections.abc import Mapping

import hyperruntime
from hyperruntime.serve.containers import Containers, RuntimeSource
from hyperruntime.serve.exec_handlers import ExecHandlers
from hyperruntime.serve.file_handlers import FileHandlers
from hyperruntime.serve.models import (
    ContainerList,
    ContainerName,
    NewContainer,
    Nothing,
    ServiceInfo,
)
from hyperruntime.serve.process_handlers import ProcessHandlers
from hyperruntime.serve.rules import ContainerRules
from hyperruntime.settings.reader import read, to_json
from hyperruntime.wire.peer import Answer, Call, Handler


class ContainerService:
    """Containers that a caller starts, uses and ends by calls.

    Attributes:
        handlers: ``service.info``, ``container.start``, ``list``, ``show`` and ``end``, and those
            of commands, files and processes.
    """

    def __init__(self, source: RuntimeSource, rules: ContainerRules) -> None:
        """Start nothing yet.

        Args:
            source: opens the runtime, and closes it after the service.
            rules: what callers may have.
        """
        self._source = source
        self._rules = rules
        self._containers = containers = Containers(source, rules)
        self.handlers: Mapping[str, Handler] = {
            "service.info": self._info,
            "container.start": self._start,
            "container.list": self._list,
            "container.show": self._show,
            "container.end": self._end,
            **ExecHandlers(containers).handlers,
            **FileHandlers(containers).handlers,
            **ProcessHandlers(containers).handlers,
        }

    async def close(self) -> None:
        """End all containers."""
        await self._containers.close()

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
