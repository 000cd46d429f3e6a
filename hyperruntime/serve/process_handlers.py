"""Handlers for commands in the background: their output is taken when the caller asks for it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from hyperruntime.concurrency.blocking import EXECS, blocking
from hyperruntime.errors import SpecError
from hyperruntime.exec.spawn.process_input import MOST_BYTES
from hyperruntime.serve.background import Background
from hyperruntime.serve.containers import Containers, Served
from hyperruntime.serve.exec_handlers import exec_options
from hyperruntime.serve.models import (
    Command,
    ContainerName,
    InputToWrite,
    OutputToTake,
    ProcessList,
    ProcessName,
    SignalReceived,
    SignalToSend,
)
from hyperruntime.serve.service_errors import (
    CapacityError,
    InputNotReadError,
    RequestError,
    ResourceNotFoundError,
)
from hyperruntime.settings.reader import read, to_json
from hyperruntime.wire.peer import Answer, Call, Handler

_MOST_WAIT_S = 60.0
_MOST_INPUT_S = 10.0  # for a request to wait for room


class ProcessHandlers:
    """Background processes in the containers of a service.

    Attributes:
        handlers: ``process.start``, ``list``, ``take``, ``write``, ``signal`` and ``end``.
    """

    def __init__(self, containers: Containers) -> None:
        """Start nothing yet."""
        self._containers = containers
        self.handlers: Mapping[str, Handler] = {
            "process.start": self._start,
            "process.list": self._list,
            "process.take": self._take,
            "process.write": self._write,
            "process.signal": self._signal,
            "process.end": self._end,
        }

    async def _start(self, call: Call) -> Answer:
        command = read(Command, call.args)
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def notify(*_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(news.set)

        with self._containers.using(command.container) as served, self._room_for_one(served):
            options = exec_options(command)
            options["on_output"] = notify
            process = await served.container.aspawn(command.args, **options)
            process.ended.listen(notify)
            made = Background(process, command.args, news)
            try:
                await made.input.open(process)
            except BaseException:
                await process.aclose()
                raise
            served.processes[made.name] = made
            return Answer(to_json(made.state))

    @contextmanager
    def _room_for_one(self, served: Served) -> Iterator[None]:
        most = self._containers.rules.most_processes
        if len(served.processes) + served.starting >= most:
            raise CapacityError(f"the container has {most} processes; end some of them first")
        served.starting += 1
        try:
            yield
        finally:
            served.starting -= 1

    async def _list(self, call: Call) -> Answer:
        with self._containers.using(read(ContainerName, call.args).container) as served:
            return Answer(
                to_json(
                    ProcessList(processes=tuple(one.state for one in served.processes.values()))
                )
            )

    async def _take(self, call: Call) -> Answer:
        asked = read(OutputToTake, call.args)
        if not 0 <= asked.wait_s <= _MOST_WAIT_S:
            raise SpecError(
                "wait_s", asked.wait_s, f"a number of seconds from 0 to {_MOST_WAIT_S:g}"
            )
        with self._found(asked) as found:
            taken = await found.take(asked.wait_s, whole_characters=asked.encoding == "text")
        facts = {"truncated": taken.truncated, "stdout_bytes": len(taken.stdout)}
        return Answer({**to_json(taken.state), **facts}, taken.stdout + taken.stderr)

    async def _write(self, call: Call) -> Answer:
        asked = read(InputToWrite, call.args)
        with self._found(asked) as found:
            if len(call.body) > MOST_BYTES:
                raise RequestError(
                    413, f"the input has more than {MOST_BYTES} bytes; send it in parts"
                )
            if call.body:
                try:
                    await found.input.write(call.body, _MOST_INPUT_S)
                except TimeoutError as error:
                    raise InputNotReadError(str(error)) from None
            if asked.end:
                found.input.end()
        return Answer()

    async def _signal(self, call: Call) -> Answer:
        asked = read(SignalToSend, call.args)
        number = signal.Signals.__members__.get(asked.signal)
        if number is None:
            raise SpecError(
                "signal", asked.signal, "the name of a signal, such as SIGINT or SIGTERM"
            )
        with self._found(asked) as found:
            received = await blocking(EXECS, lambda: found.process.signal(number))
            return Answer(to_json(SignalReceived(received=received)))

    async def _end(self, call: Call) -> Answer:
        asked = read(ProcessName, call.args)
        with self._found(asked) as found:
            await found.process.aclose()
            found.input.abort()
        with self._containers.using(asked.container) as served:
            served.processes.pop(asked.process, None)
        return Answer()

    @contextmanager
    def _found(self, asked: ProcessName) -> Iterator[Background]:
        with self._containers.using(asked.container) as served:
            found = served.processes.get(asked.process)
            if found is None:
                raise ResourceNotFoundError(
                    f"container {asked.container!r} has no process {asked.process!r}"
                )
            yield found
