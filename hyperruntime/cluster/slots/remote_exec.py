"""A command in a slot of a node: its streams go over the connection piece by piece, at the pace of who reads them."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import pickle
import select
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, cast

import attrs

from hyperruntime.cluster.peer import Answer, Call, Handler
from hyperruntime.concurrency.blocking import STREAMS, blocking
from hyperruntime.concurrency.loop_streams import LoopStreams
from hyperruntime.errors import PoolError
from hyperruntime.exec.execution import CancelledExecError
from hyperruntime.exec.options import ExecOptions, OutputCallback, Stream
from hyperruntime.spec import ExecResult

STREAM_BYTES = 1 << 20  # of input in one message; larger inputs are asked for in pieces
_numbers = itertools.count(1)


@attrs.define(eq=False)
class _Streams:
    """The input and the callback of one command, on the head."""

    source: BinaryIO | None
    on_output: OutputCallback | None
    error: BaseException | None = None


class RemoteExecs:
    """The commands that a head runs on nodes.

    Attributes:
        handlers: what nodes call for the streams of commands: ``exec.input`` and ``exec.output``, with a suffix.
    """

    def __init__(self, name: str) -> None:
        """Run nothing yet.

        Args:
            name: distinguishes the handlers from those of other pools.
        """
        self._suffix = f":{name}"
        self.handlers: Mapping[str, Handler] = {
            f"exec.input{self._suffix}": self._input,
            f"exec.output{self._suffix}": self._output,
        }
        self._open: dict[int, _Streams] = {}

    async def run(
        self,
        call: Callable[[dict[str, Any], bytes], Awaitable[Answer]],
        args: Sequence[str | bytes],
        options: Mapping[str, Any],
    ) -> ExecResult:
        """Run a command.

        Args:
            call: calls the node's method, with JSON values and bytes.
            args: the command.
            options: keyword arguments of the exec.

        Raises:
            HyperRuntimeError: as the exec, or the call.
            BaseException: what ``on_output`` or the input raised.
        """
        values = dict(options)
        source, on_output = values.get("input"), values.pop("on_output", None)
        if isinstance(source, bytes) and len(source) > STREAM_BYTES:
            source = io.BytesIO(source)
        streams = _Streams(None if source is None or isinstance(source, bytes) else source, on_output)
        if streams.source is not None:
            values["input"] = None
        number, told = next(_numbers), {}
        if streams.source is not None or on_output is not None:
            self._open[number] = streams
            told = {"streams": number, "suffix": self._suffix, "reads": streams.source is not None}
            told["writes"] = on_output is not None
        try:
            answer = await call(told, pickle.dumps((list(args), values)))
        except Exception:
            if streams.error is not None:
                raise streams.error from None
            raise
        finally:
            self._open.pop(number, None)
        if streams.error is not None:
            raise streams.error
        return result_of(answer)

    async def _input(self, call: Call) -> Answer:
        streams = self._find(call)
        assert streams.source is not None
        return Answer(body=await self._guarded(streams, streams.source.read, STREAM_BYTES))

    async def _output(self, call: Call) -> Answer:
        streams = self._find(call)
        assert streams.on_output is not None
        await self._guarded(streams, streams.on_output, cast(Stream, str(call.args["stream"])), call.body)
        return Answer()

    def _find(self, call: Call) -> _Streams:
        streams = self._open.get(call.args["streams"])
        if streams is None:
            raise PoolError("the command has ended")
        return streams

    async def _guarded(self, streams: _Streams, work: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401
        try:
            return await blocking(STREAMS, lambda: work(*args))
        except Exception as error:
            streams.error = error
            raise


def run_for_copy(
    run: Callable[..., Awaitable[ExecResult]], loop: asyncio.AbstractEventLoop
) -> Callable[[Sequence[str], ExecOptions], ExecResult]:
    """Return a function that runs a command from a thread, as copies need it; a cancellation ends the command.

    Args:
        run: runs a command on the event loop, with the keyword arguments of an exec in a slot.
        loop: the event loop.
    """

    def run_here(args: Sequence[str], options: ExecOptions) -> ExecResult:
        given = {name: getattr(options, name) for name in ("timeout_s", "input", "on_output", "output_limit_bytes")}

        async def exec_() -> ExecResult:
            return await run(args, **given)

        future = asyncio.run_coroutine_threadsafe(exec_(), loop)
        if options.cancel_fd is None:
            return future.result()
        done = os.eventfd(0)
        try:
            future.add_done_callback(lambda _: os.eventfd_write(done, 1))
            poll = select.poll()
            for descriptor in (done, options.cancel_fd):
                poll.register(descriptor, select.POLLIN)
            poll.poll()
            if not future.done():
                future.cancel()
                raise CancelledExecError
            return future.result()
        finally:
            with suppress(BaseException):
                future.result()
            os.close(done)

    return run_here


async def exec_for_head(
    call: Call, head_call: Callable[..., Awaitable[Answer]], run: Callable[..., Awaitable[ExecResult]]
) -> Answer:
    """Run a command for the head, on a node.

    Args:
        call: the head's call.
        head_call: calls the head.
        run: runs the command, with the keyword arguments of an exec in a slot.
    """
    args, options = pickle.loads(call.body)  # noqa: S301 - of the head, which this node trusts
    if (number := call.args.get("streams")) is not None:
        suffix = call.args["suffix"]

        async def ask(method: str, more: Mapping[str, Any], body: bytes) -> Answer:
            return await head_call(f"{method}{suffix}", {"streams": number, **more}, body)

        async def read() -> bytes:
            return (await ask("exec.input", {}, b"")).body

        async def write(stream: Stream, chunk: bytes) -> None:
            await ask("exec.output", {"stream": stream}, chunk)

        streams = LoopStreams()
        if call.args["reads"]:
            options["input"] = streams.input(read)
        if call.args["writes"]:
            options["on_output"] = streams.output(write)
    return answer_of(await run(args, **options))


def answer_of(result: ExecResult) -> Answer:
    """Return the result of a command as an answer, whose body is its standard output and then its standard error."""
    facts = {name: value for name, value in _facts(result).items() if name not in ("stdout", "stderr")}
    return Answer({**facts, "stdout_bytes": len(result.stdout)}, result.stdout + result.stderr)


def _facts(result: ExecResult) -> dict[str, Any]:
    return {field.name: getattr(result, field.name) for field in attrs.fields(ExecResult)}


def result_of(answer: Answer) -> ExecResult:
    """Return the result of :func:`answer_of`."""
    facts = dict(answer.value)
    cut = int(facts.pop("stdout_bytes"))
    args = tuple(facts.pop("args"))
    return ExecResult(args=args, stdout=answer.body[:cut], stderr=answer.body[cut:], **facts)
