"""Calls between the head and a node, in both directions, many at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import attrs

from hyperruntime.cluster.channel import Channel
from hyperruntime.cluster.messages import error_of_json, error_to_json, pack, unpack
from hyperruntime.errors import HyperRuntimeError, NodeLostError
from hyperruntime.logs import get_logger

log = get_logger(__name__)


@attrs.frozen
class Answer:
    """What a call returned.

    Attributes:
        value: a JSON value.
        body: bytes beside it.
    """

    value: Any = None
    body: bytes = b""


OnEvent = Callable[[Answer], None]


@attrs.frozen
class Call:
    """A call of the other side, for its handler.

    Attributes:
        caller: the name of the other side.
        args: a JSON object.
        body: bytes beside it.
        emit: sends an event to the caller before the answer; waits while the channel is full.
        read: returns the next piece of a body that comes after the call, and b"" at its end; None without such a body.
    """

    caller: str
    args: Mapping[str, Any]
    body: bytes
    emit: Callable[[Answer], Awaitable[None]]
    read: Callable[[], Coroutine[Any, Any, bytes]] | None = None


Handler = Callable[[Call], Awaitable[Answer]]


@attrs.define
class _Waiting:
    answer: asyncio.Future[Answer]
    on_event: OnEvent | None


class Peer:
    """The other side. All methods run on the event loop of the channel.

    Attributes:
        channel: carries the messages.
        name: the name of the other side.
    """

    def __init__(self, name: str, handlers: Mapping[str, Handler]) -> None:
        """Make a peer with a new channel.

        Args:
            name: the name of the other side.
            handlers: for each method that the other side may call. A handler is cancelled if the caller's task is.
        """
        self.channel, self.name = Channel(self._on_frame), name
        self._handlers = handlers
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._running: dict[int, asyncio.Task[None]] = {}

    async def call(
        self, method: str, args: Mapping[str, Any] | None = None, body: bytes = b"", on_event: OnEvent | None = None
    ) -> Answer:
        """Call a method of the other side and return its answer.

        Args:
            method: a name in its handlers.
            args: a JSON object.
            body: bytes beside it.
            on_event: called with each event before the answer; must not block.

        Raises:
            NodeLostError: the channel was closed before the answer came.
            HyperRuntimeError: the error of the handler.
        """
        number = next(self._numbers)
        waiting = self._waiting[number] = _Waiting(asyncio.get_running_loop().create_future(), on_event)
        try:
            await self.channel.send(
                pack({"is": "call", "id": number, "method": method, "args": dict(args or {})}, body)
            )
            return await waiting.answer
        except asyncio.CancelledError:
            self.channel.send_soon(pack({"is": "cancel", "id": number}))
            raise
        finally:
            del self._waiting[number]

    def close(self, error: NodeLostError) -> None:
        """End the channel; calls that wait raise the error, handlers that run are cancelled."""
        self.channel.close(error)
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(error)
        for task in self._running.values():
            task.cancel()

    def _on_frame(self, frame: bytes) -> None:
        try:
            header, body = unpack(frame)
            number, kind = int(header["id"]), header["is"]
        except (ValueError, KeyError, TypeError) as error:
            log.warning("message not understood", error=str(error))
            return
        if kind == "call":
            self._running[number] = asyncio.ensure_future(self._handle(number, header, body))
        elif kind == "cancel":
            if (task := self._running.get(number)) is not None:
                task.cancel()
        elif (waiting := self._waiting.get(number)) is not None:
            self._resolve(waiting, kind, header, body)

    def _resolve(self, waiting: _Waiting, kind: object, header: dict[str, Any], body: bytes) -> None:
        if kind == "event":
            if waiting.on_event is not None:
                try:
                    waiting.on_event(Answer(header.get("value"), body))
                except Exception as error:  # noqa: BLE001 - concerns this call, and not the channel
                    if not waiting.answer.done():
                        waiting.answer.set_exception(error)
        elif waiting.answer.done():
            return
        elif kind == "answer":
            waiting.answer.set_result(Answer(header.get("value"), body))
        else:
            waiting.answer.set_exception(error_of_json(header.get("error")))

    async def _handle(self, number: int, header: dict[str, Any], body: bytes) -> None:
        async def emit(event: Answer) -> None:
            await self.channel.send(pack({"is": "event", "id": number, "value": event.value}, event.body))

        try:
            handler = self._handlers.get(header.get("method", ""))
            if handler is None:
                raise HyperRuntimeError(f"the other side knows no method {header.get('method')!r}")
            answer = await handler(Call(self.name, header.get("args") or {}, body, emit))
            await self.channel.send(pack({"is": "answer", "id": number, "value": answer.value}, answer.body))
        except NodeLostError:
            return
        except (Exception, asyncio.CancelledError) as error:  # the caller gets every error
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # not by something that the handler awaits
            self.channel.send_soon(pack({"is": "error", "id": number, "error": error_to_json(error)}))
        finally:
            del self._running[number]
