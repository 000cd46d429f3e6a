"""Calls between the head and a node, in both directions, many at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

import attrs

from hyperruntime.errors import HyperRuntimeError, NodeLostError, SpecError
from hyperruntime.json_values import is_integer
from hyperruntime.settings.reader import read
from hyperruntime.wire.channel import Channel
from hyperruntime.wire.messages import PeerFaultError, error_of_json, error_to_json, pack, unpack

T = TypeVar("T")

MOST_CALLS = 1 << 14  # of the other side that run at once
MOST_CALL_BYTES = 1 << 29  # of those calls together; more than the largest frame
_MOST_NUMBER = 1 << 63
_READ = "stream.read"
_WRITE = "stream.write"
_KINDS = frozenset({"call", "cancel", "answer", "event", "error"})


@attrs.frozen
class Answer:
    """Result of a call.

    Attributes:
        value: a JSON value.
        body: bytes beside it.
    """

    value: Any = None
    body: bytes = b""


OnEvent = Callable[[Answer], None]


@attrs.frozen
class Streams:
    """The streams of a call, at its caller. One piece of each is on its way at a time, so a slow
    side holds back the other one.

    Attributes:
        read: returns the next piece of the input, and b"" at its end; None without input.
        write: takes the events of the call; the handler waits until it has returned.
    """

    read: Callable[[], Awaitable[bytes]] | None = None
    write: Callable[[Answer], Awaitable[None]] | None = None


_NO_STREAMS = Streams()


@attrs.frozen
class Call:
    """A call of the other side, for its handler.

    Attributes:
        caller: the name of the other side.
        args: a JSON object.
        body: bytes beside it.
        emit: sends an event to the caller before the answer; waits until the caller has taken it,
            or else while the channel is full.
        read: returns the next piece of a body that comes after the call, and b"" at its end; None
            without such a body.
    """

    caller: str
    args: Mapping[str, Any]
    body: bytes
    emit: Callable[[Answer], Awaitable[None]]
    read: Callable[[], Coroutine[Any, Any, bytes]] | None = None

    def values(self, kind: type[T]) -> T:
        """Return the arguments as an instance of an attrs class.

        Raises:
            PeerFaultError: an argument is unknown, missing or not valid.
        """
        return checked(kind, self.args, "the arguments of its call")


def checked(kind: type[T], value: Any, where: str) -> T:  # noqa: ANN401 - JSON, not trusted
    """Return a JSON value of the other side as an instance of an attrs class.

    Args:
        kind: the class.
        value: the value.
        where: its name, for errors.

    Raises:
        PeerFaultError: a field is unknown, missing or not valid.
    """
    try:
        return read(kind, value, where)
    except SpecError as error:
        raise PeerFaultError(f"{where} cannot be read: {error}") from error


Handler = Callable[[Call], Awaitable[Answer]]


@attrs.define
class _Waiting:
    answer: asyncio.Future[Answer]
    on_event: OnEvent | None
    streams: Streams
    error: Exception | None = None  # of a stream


@attrs.define
class _Running:
    task: asyncio.Task[None]
    size: int


class Peer:
    """The other side. All methods run on the event loop of the channel.

    Attributes:
        channel: carries the messages.
        name: the name of the other side.
    """

    def __init__(
        self,
        name: str,
        handlers: Mapping[str, Handler],
        on_fault: Callable[[PeerFaultError], None] = lambda _: None,
    ) -> None:
        """Make a peer with a new channel.

        Args:
            name: the name of the other side.
            handlers: for each method that the other side may call. A handler is cancelled if the
                caller's task is.
            on_fault: called if the other side sent an invalid message; the channel is closed then.
        """
        self.channel = Channel(self._on_frame)
        self.name = name
        self._handlers = handlers
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._running: dict[int, _Running] = {}
        self._running_bytes = 0
        self._on_fault = on_fault

    async def carry(self, socket: Any, peer_received: int) -> None:  # noqa: ANN401 - aiohttp's server and client sockets
        """Send and receive over a connection until it ends; see :meth:`Channel.carry`."""
        try:
            await self.channel.carry(socket, peer_received)
        except PeerFaultError as error:
            self.refuse(error)

    def refuse(self, fault: PeerFaultError) -> None:
        """End the channel, because the other side sent an invalid message."""
        self._on_fault(fault)
        self.close(NodeLostError(f"{self.name} sent an invalid message: {fault}"))

    async def ask(
        self,
        kind: type[T],
        method: str,
        args: Mapping[str, Any] | None = None,
        body: bytes = b"",
        on_event: OnEvent | None = None,
    ) -> T:
        """Call a method of the other side and return its answer as an instance of an attrs class.

        Args:
            kind: the class.
            method: as of :meth:`call`.
            args: as of :meth:`call`.
            body: as of :meth:`call`.
            on_event: as of :meth:`call`.

        Raises:
            NodeLostError: the channel was closed, or the answer cannot be read, which closes it.
            HyperRuntimeError: the error of the handler.
        """
        return self.checked(kind, (await self.call(method, args, body, on_event)).value, method)

    def checked(self, kind: type[T], value: Any, method: str) -> T:  # noqa: ANN401 - JSON, not trusted
        """Return the value of an answer as an instance of an attrs class.

        Args:
            kind: the class.
            value: the value.
            method: the method that was called.

        Raises:
            NodeLostError: the value cannot be read; the channel is closed now.
        """
        with self.reading():
            return checked(kind, value, f"the answer of {method}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Close the channel, and raise NodeLostError, if the block raises PeerFaultError about an
        answer.
        """
        try:
            yield
        except PeerFaultError as fault:
            self.refuse(fault)
            assert self.channel.error is not None, "it is closed now"
            raise self.channel.error from fault

    async def call(
        self,
        method: str,
        args: Mapping[str, Any] | None = None,
        body: bytes = b"",
        on_event: OnEvent | None = None,
        streams: Streams = _NO_STREAMS,
    ) -> Answer:
        """Call a method of the other side and return its answer.

        Args:
            method: a name in its handlers.
            args: a JSON object.
            body: bytes beside it.
            on_event: called with each event before the answer; must not block.
            streams: what gives the handler a longer input, and takes its events at its own pace.

        Raises:
            NodeLostError: the channel was closed before the answer came.
            HyperRuntimeError: the error of the handler.
            Exception: the error of a stream, in place of the handler's.
        """
        number = next(self._numbers)
        waiting = self._waiting[number] = _Waiting(
            asyncio.get_running_loop().create_future(), on_event, streams
        )
        header = {"is": "call", "id": number, "method": method, "args": dict(args or {})}
        if streams.read is not None or streams.write is not None:
            header["streams"] = [streams.read is not None, streams.write is not None]
        try:
            await self.channel.send(pack(header, body))
            answer = await waiting.answer
        except asyncio.CancelledError:
            self.channel.send_soon(pack({"is": "cancel", "id": number}))
            raise
        except HyperRuntimeError as error:
            raise waiting.error or error from None
        finally:
            del self._waiting[number]
        if waiting.error is not None:
            raise waiting.error
        return answer

    def close(self, error: NodeLostError) -> None:
        """End the channel; calls that wait raise the error, handlers that run are cancelled."""
        self.channel.close(error)
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(error)
        for running in self._running.values():
            running.task.cancel()

    def _on_frame(self, frame: bytes) -> None:
        header, body = unpack(frame)
        number = header.get("id")
        kind = header.get("is")
        if (
            not is_integer(number)
            or not 0 <= number < _MOST_NUMBER
            or not isinstance(kind, str)
            or kind not in _KINDS
        ):
            raise PeerFaultError("a message has no valid number and kind")
        if kind == "call":
            self._begin(number, header, body, len(frame))
        elif kind == "cancel":
            if (running := self._running.get(number)) is not None:
                running.task.cancel()
        elif (waiting := self._waiting.get(number)) is not None:
            self._resolve(waiting, kind, header, body)

    def _begin(self, number: int, header: dict[str, Any], body: bytes, size: int) -> None:
        """Run the handler of a call."""
        method = header.get("method")
        args = header.get("args")
        if not isinstance(method, str) or not isinstance(args, dict):
            raise PeerFaultError("a call has no method or no arguments")
        if number in self._running:
            raise PeerFaultError(f"call {number} came twice")
        if len(self._running) >= MOST_CALLS or self._running_bytes + size > MOST_CALL_BYTES:
            most = f"{MOST_CALLS} calls and {MOST_CALL_BYTES} bytes"
            raise PeerFaultError(f"more than {most} of calls wait for their answers")
        call = self._call_of(number, header.get("streams", [False, False]), args, body)
        task = asyncio.ensure_future(self._handle(number, method, call))
        self._running[number] = _Running(task, size)
        self._running_bytes += size
        task.add_done_callback(lambda _: self._end(number))

    def _end(self, number: int) -> None:
        self._running_bytes -= self._running.pop(number).size

    def _resolve(
        self, waiting: _Waiting, kind: object, header: dict[str, Any], body: bytes
    ) -> None:
        if kind == "event":
            if waiting.on_event is not None:
                try:
                    waiting.on_event(Answer(header.get("value"), body))
                except PeerFaultError:
                    raise
                except Exception as error:  # noqa: BLE001 - concerns this call, and not the channel
                    if not waiting.answer.done():
                        waiting.answer.set_exception(error)
        elif waiting.answer.done():
            return
        elif kind == "answer":
            waiting.answer.set_result(Answer(header.get("value"), body))
        else:
            waiting.answer.set_exception(error_of_json(header.get("error")))

    def _call_of(self, number: int, streams: object, args: dict[str, Any], body: bytes) -> Call:
        """Return a call for its handler.

        Args:
            number: of the call.
            streams: whether its caller gives input, and whether it takes each event.
            args: of the call.
            body: of the call.
        """
        if streams not in ([False, False], [False, True], [True, False], [True, True]):
            raise PeerFaultError("a call does not say which streams it has")
        has_input, is_taken = cast(list[bool], streams)

        async def read() -> bytes:
            return (await self.call(_READ, {"call": number})).body

        async def write(event: Answer) -> None:
            await self.call(_WRITE, {"call": number, "value": event.value}, event.body)

        async def emit(event: Answer) -> None:
            await self.channel.send(
                pack({"is": "event", "id": number, "value": event.value}, event.body)
            )

        return Call(self.name, args, body, write if is_taken else emit, read if has_input else None)

    async def _stream(self, method: str, call: Call) -> Answer:
        """Serve a stream of a call of this side."""
        number = call.args.get("call")
        waiting = self._waiting.get(number) if is_integer(number) else None
        if waiting is None:
            raise HyperRuntimeError("the call has ended")
        read = waiting.streams.read
        write = waiting.streams.write
        try:
            if method == _READ and read is not None:
                return Answer(body=await read())
            if method == _WRITE and write is not None:
                await write(Answer(call.args.get("value"), call.body))
                return Answer()
        except PeerFaultError:
            raise
        except Exception as error:
            waiting.error = error
            raise
        raise PeerFaultError("it used a stream that its call does not have")

    async def _handle(self, number: int, method: str, call: Call) -> None:
        try:
            if method in (_READ, _WRITE):
                answer = await self._stream(method, call)
            elif (handler := self._handlers.get(method)) is not None:
                answer = await handler(call)
            else:
                raise HyperRuntimeError(f"the other side knows no method {method[:100]!r}")
            await self.channel.send(
                pack({"is": "answer", "id": number, "value": answer.value}, answer.body)
            )
        except NodeLostError:
            return
        except PeerFaultError as fault:
            self.refuse(fault)
        except (Exception, asyncio.CancelledError) as error:  # the caller gets every error
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # not by something that the handler awaits
            with suppress(NodeLostError):
                await self.channel.send(
                    pack({"is": "error", "id": number, "error": error_to_json(error)})
                )
