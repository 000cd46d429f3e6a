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
        return _result_of(answer)

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
        loop, suffix = asyncio.get_running_loop(), call.args["suffix"]

        async def ask(method: str, more: Mapping[str, Any], body: bytes) -> Answer:
            return await head_call(f"{method}{suffix}", {"streams": number, **more}, body)

        def from_thread(method: str, body: bytes = b"", **more: str) -> bytes:
            return asyncio.run_coroutine_threadsafe(ask(method, more, body), loop).result().body

        if call.args["reads"]:
            options["input"] = _Input(lambda: from_thread("exec.input"))
        if call.args["writes"]:
            options["on_output"] = lambda stream, chunk: from_thread("exec.output", chunk, stream=stream)
    result = await run(args, **options)
    facts = {name: value for name, value in _facts(result).items() if name not in ("stdout", "stderr")}
    return Answer({**facts, "stdout_bytes": len(result.stdout)}, result.stdout + result.stderr)


class _Input:
    """An input that the head has, as a file."""

    def __init__(self, ask: Callable[[], bytes]) -> None:
        self._ask, self._left = ask, b""

    def read(self, size: int = -1) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        self._left = self._left or self._ask()
        cut = len(self._left) if size < 0 else size
        part, self._left = self._left[:cut], self._left[cut:]
        return part


def _facts(result: ExecResult) -> dict[str, Any]:
    return {field.name: getattr(result, field.name) for field in attrs.fields(ExecResult)}


def _result_of(answer: Answer) -> ExecResult:
    facts = dict(answer.value)
    cut = int(facts.pop("stdout_bytes"))
    args = tuple(facts.pop("args"))
    return ExecResult(args=args, stdout=answer.body[:cut], stderr=answer.body[cut:], **facts)
