"""The handler that runs a command to its end, with its streams if the caller wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import attrs

from hyperruntime.cluster.slots.remote_exec import answer_of
from hyperruntime.concurrency.loop_streams import LoopStreams
from hyperruntime.container import Container
from hyperruntime.errors import SpecError, TransferTimeoutError
from hyperruntime.exec.options import ExecKeywords, Stream
from hyperruntime.serve.containers import Containers
from hyperruntime.serve.models import Command, ExecCommand
from hyperruntime.settings.reader import read
from hyperruntime.spec import ExecResult
from hyperruntime.wire.peer import Answer, Call, Handler

_LATE_S = 5.0  # after its deadline, a command is ended even if its client does not read the output
_LEAST_BYTES = 2
_MOST_OUTPUT_BYTES = 16 * 1024**2


class ExecHandlers:
    """Runs commands in the containers of a service.

    Attributes:
        handlers: ``exec.run``; its body is the input.
    """

    def __init__(self, containers: Containers) -> None:
        """Run nothing yet."""
        self._containers = containers
        self.handlers: Mapping[str, Handler] = {"exec.run": self._run}

    async def _run(self, call: Call) -> Answer:
        """Answer with the output of a command; with ``stream``, emit it while the command runs."""
        command = read(ExecCommand, call.args)
        with self._containers.using(command.container) as served:
            if command.stream:
                return answer_of(await _run_streamed(served.container, command, call))
            options = exec_options(command)
            options["input"] = call.body or None
            return answer_of(await served.container.aexec(command.args, **options))


def exec_options(command: Command) -> ExecKeywords:
    """Return the options of a command for its container.

    Raises:
        SpecError: it keeps too much output in the memory of the service.
    """
    if command.output_limit_bytes > _MOST_OUTPUT_BYTES:
        allowed = f"at most {_MOST_OUTPUT_BYTES}; a stream has no limit"
        raise SpecError("output_limit_bytes", command.output_limit_bytes, allowed)
    return {
        "env": command.env,
        "workdir": command.workdir,
        "user": command.user,
        "timeout_s": command.timeout_s,
        "output_limit_bytes": command.output_limit_bytes,
        "merge_output": command.merge_output,
    }


async def _run_streamed(container: Container, command: Command, call: Call) -> ExecResult:
    """Run a command whose output the caller gets in events, and whose input may come in pieces."""

    async def write(stream: Stream, chunk: bytes) -> None:
        await call.emit(Answer({"stream": stream}, chunk))

    streams = LoopStreams()
    options = exec_options(command)
    options["input"] = streams.input(call.read) if call.read is not None else call.body or None
    options["on_output"] = streams.output(write)
    options["output_limit_bytes"] = _LEAST_BYTES
    running = asyncio.ensure_future(container.aexec(command.args, **options))
    result = await finished(running, streams, command.timeout_s)
    return attrs.evolve(result, stdout=b"", stderr=b"", truncated=False)  # all of it was emitted


async def finished(
    running: asyncio.Future[ExecResult], streams: LoopStreams, timeout_s: float | None
) -> ExecResult:
    """Return the result of an exec; end it soon after its deadline, even if the caller does not
    read its output.

    Args:
        running: the exec.
        streams: its streams, which are closed at its end.
        timeout_s: its deadline in seconds; None means no limit.

    Raises:
        TransferTimeoutError: the deadline passed a few seconds ago, and the output was not read.
        HyperRuntimeError: as the exec.
    """
    try:
        await asyncio.wait({running}, timeout=None if timeout_s is None else timeout_s + _LATE_S)
    finally:
        streams.close()
        if was_late := not running.done():
            running.cancel()
            await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # so that it counts as seen
    if was_late:
        raise TransferTimeoutError(
            f"the output was not read in {timeout_s} s, so the command was ended; read faster"
        )
    return running.result()
