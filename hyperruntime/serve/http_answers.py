"""Turn answers of handlers into HTTP answers: JSON, bytes, streams at the pace of their reader, and
errors, which have one table of status codes.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import web

from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    EngineUnavailableError,
    ExecLostError,
    ExecStartError,
    HyperRuntimeError,
    ImageNotFoundError,
    ImagePullError,
    SpecError,
    TransferError,
    TransferTimeoutError,
    UnsupportedOptionError,
    WorkdirNotFoundError,
)
from hyperruntime.logs import get_logger
from hyperruntime.remote.requests import CommandEnd, Stream, facts_of
from hyperruntime.remote.service_errors import (
    CapacityError,
    InputNotReadError,
    NotAllowedError,
    RequestError,
    ResourceNotFoundError,
)
from hyperruntime.serve.models import ErrorAnswer, ExecEvent
from hyperruntime.serve.openapi import BYTES, NDJSON, TAR
from hyperruntime.serve.routes import Route
from hyperruntime.settings.reader import fields_of, to_json
from hyperruntime.transfer.file_errors import (
    FileTooLargeError,
    PathIsDirectoryError,
    PathNotDirectoryError,
    PathNotFoundError,
    PathPermissionError,
)
from hyperruntime.wire.peer import Answer

log = get_logger(__name__)

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
STATUS: Mapping[type[HyperRuntimeError], int] = {
    SpecError: 400,
    NotAllowedError: 403,
    PathPermissionError: 403,
    ResourceNotFoundError: 404,
    ImageNotFoundError: 404,
    PathNotFoundError: 404,
    WorkdirNotFoundError: 404,
    ContainerStateError: 409,
    ExecStartError: 409,
    InputNotReadError: 409,
    PathIsDirectoryError: 409,
    PathNotDirectoryError: 409,
    ContainerLostError: 410,
    ExecLostError: 410,
    FileTooLargeError: 413,
    TransferError: 422,
    UnsupportedOptionError: 422,
    CapacityError: 429,
    ImagePullError: 502,
    EngineUnavailableError: 503,
    TransferTimeoutError: 504,
}
"""The status of each error; of others that of their nearest base, else 500."""

Emit = Callable[[Answer], Awaitable[None]]
Run = Callable[[Emit], Awaitable[Answer]]
_HEADERS_S = 1.0  # after which a stream without output begins, for clients that wait for headers


async def answer_with(
    route: Route, request: web.Request, args: Mapping[str, Any], run: Run
) -> web.StreamResponse:
    """Call a handler and return its answer in the form of the route.

    Args:
        route: the route of the request.
        request: the request.
        args: the arguments of the call.
        run: calls the handler; its argument is called with the handler's events.

    Raises:
        HyperRuntimeError: as the handler, before the answer has begun.
        ConnectionError: the client is gone.
    """
    encoding = str(args.get("encoding", "text"))
    if route.sends == "archive":
        return await _archive(request, run)
    if route.sends == "command" and args.get("stream"):
        return await _Events(request, encoding).send(run)
    answer = await run(_drop)
    if route.sends == "nothing":
        return web.Response(status=route.status, headers=HEADERS)
    if route.sends == "bytes":
        return web.Response(body=answer.body, content_type=BYTES, headers=HEADERS)
    value = answer.value if route.sends == "json" else _with_output(answer, route, encoding)
    return _json_response(value, route.status)


async def _drop(_: Answer) -> None:
    return


def _with_output(answer: Answer, route: Route, encoding: str) -> dict[str, Any]:
    assert route.answer is not None
    cut = int(answer.value["stdout_bytes"])
    streams = {
        "stdout": _encoded(answer.body[:cut], encoding),
        "stderr": _encoded(answer.body[cut:], encoding),
    }
    return {
        name: value
        for name, value in {**answer.value, **streams}.items()
        if name in fields_of(route.answer)
    }


def _encoded(data: bytes, encoding: str) -> str:
    return data.decode(errors="replace") if encoding == "text" else base64.b64encode(data).decode()


def _json_response(
    value: object, status: int, headers: Mapping[str, str] = HEADERS
) -> web.Response:
    body = json.dumps(value).encode()
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def status_of(error: HyperRuntimeError) -> int:
    """Return the status of an error."""
    if isinstance(error, RequestError):
        return error.status
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def error_response(error: HyperRuntimeError) -> web.Response:
    """Return the answer for an error."""
    status = status_of(error)
    headers = {**HEADERS, "WWW-Authenticate": "Bearer"} if status == 401 else HEADERS  # RFC 6750
    return _json_response(to_json(ErrorAnswer(error=facts_of(error))), status, headers)


class _StreamedAnswer:
    """An answer that begins with its first bytes."""

    def __init__(self, request: web.Request, content_type: str) -> None:
        self._request = request
        self._lock = asyncio.Lock()
        self.response = web.StreamResponse(headers={**HEADERS, "Content-Type": content_type})

    async def begin(self) -> None:
        async with self._lock:
            if not self.response.prepared:
                await self.response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        await self.begin()
        await self.response.write(data)

    async def end(self) -> web.StreamResponse:
        await self.begin()
        await self.response.write_eof()
        return self.response

    def break_off(self) -> None:
        """End the connection, so that the client sees that the answer is not complete."""
        if self._request.transport is not None:
            self._request.transport.abort()

    def break_off_if_begun(self) -> None:
        """End the connection if the answer has begun: a second answer would be read as a part of
        the first.
        """
        if self.response.prepared:
            self.break_off()


async def _archive(request: web.Request, run: Run) -> web.StreamResponse:
    stream = _StreamedAnswer(request, TAR)

    async def emit(event: Answer) -> None:
        await stream.write(event.body)

    try:
        await run(emit)
    except HyperRuntimeError as error:
        if not stream.response.prepared:
            raise
        log.warning("archive not complete", error=str(error))
        stream.break_off()
        return stream.response
    except BaseException:
        stream.break_off_if_begun()
        raise
    return await stream.end()


class _Events:
    """The events of a command, one JSON object in each line."""

    def __init__(self, request: web.Request, encoding: str) -> None:
        self._stream = _StreamedAnswer(request, NDJSON)
        self._encoding = encoding
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": make("replace"), "stderr": make("replace")}

    async def send(self, run: Run) -> web.StreamResponse:
        beginning = asyncio.ensure_future(self._begin_soon())
        try:
            answer = await run(self._emit)
        except HyperRuntimeError as error:
            if not self._stream.response.prepared:
                raise
            log.debug("stream ended by an error", status=status_of(error))
            await self._write(ExecEvent(event="error", error=facts_of(error)))
            return await self._stream.end()
        except BaseException:
            self._stream.break_off_if_begun()
            raise
        finally:
            beginning.cancel()
        await self._flush()
        facts = {name: answer.value[name] for name in fields_of(CommandEnd)}
        end = CommandEnd(**{**facts, "truncated": False})  # all of it was emitted
        await self._write(ExecEvent(event="end", result=end))
        return await self._stream.end()

    async def _begin_soon(self) -> None:
        await asyncio.sleep(_HEADERS_S)
        with suppress(ConnectionError):
            await self._stream.begin()

    async def _emit(self, event: Answer) -> None:
        stream: Stream = event.value["stream"]
        if self._encoding == "base64":
            data = base64.b64encode(event.body).decode()
        else:
            data = self._decoders[stream].decode(event.body)
        if data:
            await self._write(ExecEvent(event="output", stream=stream, data=data))

    async def _flush(self) -> None:
        """Write what is left of characters that the command did not finish."""
        streams: tuple[Stream, ...] = ("stdout", "stderr")
        for stream in streams:
            if rest := self._decoders[stream].decode(b"", final=True):
                await self._write(ExecEvent(event="output", stream=stream, data=rest))

    async def _write(self, event: ExecEvent) -> None:
        await self._stream.write(json.dumps(to_json(event)).encode() + b"\n")
