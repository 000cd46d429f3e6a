"""A command in a slot of a node: its streams go over the connection in pieces, at the pace of their
reader.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import pickle
import select
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar

import attrs

from hyperruntime.cluster.hello import Within
from hyperruntime.concurrency.blocking import STREAMS, blocking
from hyperruntime.concurrency.exhaustion import too_many_files
from hyperruntime.concurrency.loop_streams import LoopStreams
from hyperruntime.errors import PoolError
from hyperruntime.exec.execution import CancelledExecError
from hyperruntime.exec.options import ExecOptions, OutputCallback, Stream
from hyperruntime.spec import ExecResult
from hyperruntime.wire.channel import LARGEST_FRAME_BYTES
from hyperruntime.wire.messages import PeerFaultError
from hyperruntime.wire.peer import Answer, Call, Handler, checked

STREAM_BYTES = 1 << 20  # of input in one message; larger inputs are asked for in pieces
_numbers = itertools.count(1)
T = TypeVar("T")
Sink = Callable[[Stream, bytes], Awaitable[None]]
HeadCall = Callable[[str, Mapping[str, Any], bytes], Awaitable[Answer]]


@attrs.define(eq=False)
class _Streams:
    """The input of one command, and what takes its output, on the head; only its node may use
    them.
    """

    node: str
    source: BinaryIO | None
    on_output: OutputCallback | None
    sink: Sink | None
    error: BaseException | None = None


class RemoteExecs:
    """The commands that a head runs on nodes.

    Attributes:
        handlers: what nodes call for the streams of commands: ``exec.input`` and ``exec.output``,
            with a suffix.
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
        *,
        node: str,
        sink: Sink | None = None,
    ) -> ExecResult:
        """Run a command.

        Args:
            call: calls the node's method, with JSON values and bytes.
            args: the command.
            options: keyword arguments of the exec.
            node: the name of the node.
            sink: takes the output on the event loop, in place of the ``on_output`` of the options.

        Raises:
            HyperRuntimeError: as the exec, or the call.
            Exception: the error that ``on_output`` or the input raised.
        """
        values = dict(options)
        source = values.get("input")
        on_output = values.pop("on_output", None)
        if isinstance(source, bytes) and len(source) > STREAM_BYTES:
            source = io.BytesIO(source)
        streams = _Streams(
            node, None if source is None or isinstance(source, bytes) else source, on_output, sink
        )
        if streams.source is not None:
            values["input"] = None
        number = next(_numbers)
        told = {}
        writes = on_output is not None or sink is not None
        if streams.source is not None or writes:
            self._open[number] = streams
            told = {
                "streams": number,
                "suffix": self._suffix,
                "reads": streams.source is not None,
                "writes": writes,
            }
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
        if streams.source is None:
            raise PeerFaultError("it asked for an input that its command does not have")
        # `read1` does not wait for all of it
        read = getattr(streams.source, "read1", streams.source.read)
        return Answer(body=await self._guarded(streams, read, STREAM_BYTES))

    async def _output(self, call: Call) -> Answer:
        streams = self._find(call)
        stream = call.values(_StreamArgs).stream
        if streams.sink is not None:
            await streams.sink(stream, call.body)
        elif streams.on_output is None:
            raise PeerFaultError("it sent output of a command whose output it keeps")
        else:
            await self._guarded(streams, streams.on_output, stream, call.body)
        return Answer()

    def _find(self, call: Call) -> _Streams:
        streams = self._open.get(call.values(_StreamArgs).streams)
        if streams is None or streams.node != call.caller:
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
    """Return a function that runs a command from a thread, as copies need it; a cancellation ends
    the command.

    Args:
        run: runs a command on the event loop, with the keyword arguments of an exec in a slot.
        loop: the event loop.
    """

    def run_here(args: Sequence[str], options: ExecOptions) -> ExecResult:
        given = {
            name: getattr(options, name)
            for name in ("timeout_s", "input", "on_output", "output_limit_bytes")
        }

        async def exec_() -> ExecResult:
            return await run(args, **given)

        return wait_cancellable(exec_(), loop, options.cancel_fd)

    return run_here


def wait_cancellable(
    work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, cancel_fd: int | None
) -> T:
    """Run work on the event loop and wait for it in this thread.

    Args:
        work: the work.
        loop: the event loop.
        cancel_fd: becomes readable when the work is to be cancelled; None if it never is.

    Raises:
        CancelledExecError: it was cancelled; it may still be ending.
        StorageError: no file descriptor is left; nothing was run.
    """
    if cancel_fd is None:
        return asyncio.run_coroutine_threadsafe(work, loop).result()
    try:
        done = os.eventfd(0)
    except OSError as error:
        work.close()
        raise too_many_files(error) or error from None
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        future.add_done_callback(lambda _: os.eventfd_write(done, 1))
        poll = select.poll()
        for descriptor in (done, cancel_fd):
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


class NodeStreams:
    """The streams of one command on a node, whose other ends are on the head."""

    def __init__(self, call: Call, head_call: HeadCall) -> None:
        """Prepare, on the event loop.

        Args:
            call: the head's call that runs the command.
            head_call: calls the head.
        """
        self._call_args = call.args
        self._head_call = head_call
        self._threads = LoopStreams()

    async def _ask(self, method: str, more: Mapping[str, Any], body: bytes) -> Answer:
        args = {"streams": self._call_args["streams"], **more}
        return await self._head_call(f"{method}{self._call_args['suffix']}", args, body)

    async def read(self) -> bytes:
        """Return the next input; b"" at the end."""
        return (await self._ask("exec.input", {}, b"")).body

    async def write(self, stream: Stream, chunk: bytes) -> None:
        """Send output, and wait until the head has taken it."""
        await self._ask("exec.output", {"stream": stream}, chunk)

    def add_to(self, options: dict[str, Any]) -> dict[str, Any]:
        """Add the streams that the head has to the keyword arguments of an exec, and return
        them.
        """
        if self._call_args.get("reads"):
            options["input"] = self._threads.input(self.read)
        if self._call_args.get("writes"):
            options["on_output"] = self._threads.output(self.write)
        return options

    def close(self) -> None:
        """Raise an error in each thread that waits for the head."""
        self._threads.close()


async def exec_for_head(
    call: Call, head_call: HeadCall, run: Callable[..., Awaitable[ExecResult]]
) -> Answer:
    """Run a command for the head, on a node.

    Args:
        call: the head's call.
        head_call: calls the head.
        run: runs the command, with the keyword arguments of an exec in a slot.
    """
    args, options = pickle.loads(call.body)  # noqa: S301 - of the head, which this node trusts
    return answer_of(await run(args, **NodeStreams(call, head_call).add_to(options)))


@attrs.frozen(kw_only=True)
class _Ended:
    """The facts of an answer about a command that has ended; as of
    :class:`~hyperruntime.spec.ExecResult`.

    Attributes:
        args: argv.
        exit_code: 0-255.
        stdout_bytes: how much of the answer's body is standard output.
        timed_out: whether its deadline passed.
        truncated: whether output was dropped.
        not_executed: whether no program ran.
        duration_s: seconds.
    """

    args: tuple[str, ...]
    exit_code: int = attrs.field(validator=Within(0, 255))
    stdout_bytes: int = attrs.field(validator=Within(0, LARGEST_FRAME_BYTES))
    timed_out: bool = False
    truncated: bool = False
    not_executed: bool = False
    duration_s: float = 0.0


@attrs.frozen(kw_only=True)
class _StreamArgs:
    """The arguments of ``exec.input`` and ``exec.output``.

    Attributes:
        streams: the number of the command's streams.
        stream: which output.
    """

    streams: int
    stream: Stream = "stdout"


def answer_of(result: ExecResult) -> Answer:
    """Return the result of a command as an answer, whose body is its standard output and then its
    standard error.
    """
    facts = {
        name: value for name, value in _facts(result).items() if name not in ("stdout", "stderr")
    }
    return Answer({**facts, "stdout_bytes": len(result.stdout)}, result.stdout + result.stderr)


def _facts(result: ExecResult) -> dict[str, Any]:
    return {field.name: getattr(result, field.name) for field in attrs.fields(ExecResult)}


def result_of(answer: Answer) -> ExecResult:
    """Return the result of :func:`answer_of`.

    Raises:
        PeerFaultError: it is not one.
    """
    ended = checked(_Ended, answer.value, "the end of a command")
    facts = attrs.asdict(ended, recurse=False)
    cut = facts.pop("stdout_bytes")
    return ExecResult(stdout=answer.body[:cut], stderr=answer.body[cut:], **facts)
