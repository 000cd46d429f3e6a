"""The requests about one sandbox to its peer, from the event loop and from threads."""

from __future__ import annotations

import asyncio
import io
import os
import select
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import attrs

from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.concurrency.blocking import STREAMS, blocking
from hyperruntime.concurrency.exhaustion import too_many_files
from hyperruntime.errors import HyperRuntimeError, PoolClosedError, PoolError
from hyperruntime.exec.execution import CancelledExecError
from hyperruntime.exec.options import Stream
from hyperruntime.remote.requests import CommandEnd
from hyperruntime.spec import ExecResult, check_env
from hyperruntime.wire.channel import LARGEST_FRAME_BYTES
from hyperruntime.wire.checks import Within
from hyperruntime.wire.peer import Answer, Peer, Streams, checked

T = TypeVar("T")
Sink = Callable[[Stream, bytes], Awaitable[None]]
STREAM_BYTES = 1 << 20  # of input in one message; larger inputs are asked for in pieces
_ON_LOOP = (
    "this event loop carries the connection to the node, so it cannot wait for the node's "
    "answer; await the method's twin, such as asignal, aclose or arun, or call it in a thread"
)


@attrs.frozen(kw_only=True)
class _Chunk:
    """What output an event has.

    Attributes:
        stream: which one.
    """

    stream: Stream


@attrs.frozen(kw_only=True)
class _Ended(CommandEnd):
    """An answer about a command that has ended.

    Attributes:
        args: argv.
        exit_code: 0-255.
        stdout_bytes: how much of the answer's body is standard output.
    """

    args: tuple[str, ...]
    exit_code: int = attrs.field(validator=Within(0, 255))
    stdout_bytes: int = attrs.field(validator=Within(0, LARGEST_FRAME_BYTES))


class Calls:
    """Asks a peer about one sandbox.

    Attributes:
        loop: the event loop of the connection.
    """

    def __init__(self, peer: Peer, name: str) -> None:
        """Ask nothing yet; on the event loop.

        Args:
            peer: has the sandbox.
            name: by which the peer finds it.
        """
        self.loop = asyncio.get_running_loop()
        self._peer = peer
        self._name = name
        self._beside = BackgroundTasks("a slot")

    async def call(
        self,
        verb: str,
        body: bytes = b"",
        *,
        streams: Streams | None = None,
        **fields: Any,  # noqa: ANN401 - JSON
    ) -> Answer:
        """Ask for a verb of the sandbox.

        Args:
            verb: a name in :data:`~hyperruntime.remote.handlers.VERBS`.
            body: bytes beside the request.
            streams: of the request.
            fields: of the request.

        Raises:
            StaleLeaseError: the slot was released, or its lease expired.
            SandboxLostError: the slot's container or node ended.
        """
        return await self._peer.call(
            verb, {"container": self._name, **fields}, body, streams=streams or Streams()
        )

    async def run(
        self,
        verb: str,
        command: Sequence[str | bytes],
        options: Mapping[str, Any],
        *,
        text: bytes | None = None,
        sink: Sink | None = None,
        on_started: Callable[[Answer], None] | None = None,
        **fields: Any,  # noqa: ANN401 - JSON
    ) -> ExecResult:
        """Ask for a verb that runs a command; its streams go in pieces, at the pace of their
        reader.

        Args:
            verb: as of :meth:`call`.
            command: the command.
            options: keyword arguments of the exec.
            text: a text of a shell, beside the request; the input is then a stream.
            sink: takes the output on the event loop, in place of the ``on_output`` of the options.
            on_started: called with the event that says that it has started.
            fields: as of :meth:`call`.

        Raises:
            HyperRuntimeError: as the exec, or the call.
            Exception: the error that ``on_output`` or the input raised.
        """
        given = {name: value for name, value in options.items() if value is not None}
        source = given.pop("input", None)
        if on_output := given.pop("on_output", None):
            sink = sink or in_thread(on_output)
        fields |= {**given, "stream": sink is not None, "has_input": source is not None}
        if "env" in given:
            fields["env"] = plain_env(given["env"])
        if isinstance(source, bytes) and (text is not None or len(source) > STREAM_BYTES):
            source = io.BytesIO(source)
        is_whole = source is None or isinstance(source, bytes)
        body = text if text is not None else source if isinstance(source, bytes) else b""
        streams = Streams(
            None if is_whole else _reader(source),
            None if sink is None else _writer(sink, on_started),
        )
        words = [os.fsdecode(word) for word in command]
        answer = await self.call(verb, body, streams=streams, args=words, **fields)
        with self._peer.reading():
            return _result_of(answer)

    def wait(self, verb: str, **fields: Any) -> Answer:  # noqa: ANN401 - JSON
        """Ask from a thread, and wait.

        Raises:
            PoolError: this thread runs the event loop of the connection.
            HyperRuntimeError: as :meth:`call`.
        """
        return self.wait_for(lambda: self.call(verb, **fields))

    def wait_for(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a coroutine that ``work`` makes; see :meth:`wait`."""
        self.check_thread()
        if self.loop.is_closed():
            raise PoolClosedError("the cluster is closed, and with it its slots")
        future = asyncio.run_coroutine_threadsafe(work(), self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # if this thread was interrupted
            raise

    def check_thread(self) -> None:
        """Raise PoolError if this thread runs the event loop of the connection."""
        with suppress(RuntimeError):  # no event loop runs here
            if asyncio.get_running_loop() is self.loop:
                raise PoolError(_ON_LOOP)

    def soon(self, verb: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Ask without waiting, from any thread; errors are ignored."""

        async def quiet() -> None:
            with suppress(HyperRuntimeError):
                await self.call(verb, **fields)

        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(lambda: self.keep(quiet()))

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work in the background, on the event loop."""
        return self._beside.start(work)


def plain_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables as a JSON object.

    Raises:
        SpecError: one of them cannot be passed to a process, as on this machine.
    """
    check_env("env", env)
    return dict(env)


def _result_of(answer: Answer) -> ExecResult:
    """Return the result of a command from its answer.

    Raises:
        PeerFaultError: it is not one.
    """
    ended = checked(_Ended, answer.value, "the end of a command")
    facts = attrs.asdict(ended, recurse=False)
    cut = facts.pop("stdout_bytes")
    return ExecResult(stdout=answer.body[:cut], stderr=answer.body[cut:], **facts)


def in_thread(on_output: Callable[[Stream, bytes], object]) -> Sink:
    """Return a sink that gives output to a function that may block."""

    async def sink(stream: Stream, chunk: bytes) -> None:
        await blocking(STREAMS, lambda: on_output(stream, chunk))

    return sink


def _reader(source: Any) -> Callable[[], Awaitable[bytes]]:  # noqa: ANN401 - a binary file
    # `read1` does not wait for all of it
    read = getattr(source, "read1", source.read)

    async def next_piece() -> bytes:
        piece: bytes = await blocking(STREAMS, lambda: read(STREAM_BYTES))
        return piece

    return next_piece


def _writer(
    sink: Sink, on_started: Callable[[Answer], None] | None
) -> Callable[[Answer], Awaitable[None]]:
    has_started = on_started is None

    async def write(event: Answer) -> None:
        nonlocal has_started
        is_start = isinstance(event.value, dict) and "name" in event.value
        if is_start and not has_started and on_started is not None:
            has_started = True
            on_started(event)
        else:
            stream = checked(_Chunk, event.value, "the output of a command").stream
            await sink(stream, event.body)

    return write


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
