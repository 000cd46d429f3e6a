"""Turn HTTP requests into the arguments and the body of a call, and limit the memory that all
requests hold.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl

import aiohttp
import attrs
from aiohttp import web
from aiohttp.web_protocol import _ErrInfo

from hyperruntime.errors import SpecError
from hyperruntime.json_values import ValueCounter, parse_json
from hyperruntime.remote.service_errors import CapacityError, RequestError
from hyperruntime.serve.routes import Route
from hyperruntime.settings.reader import read
from hyperruntime.settings.texts import read_text

Take = Callable[[int], None]

_STALLED_S = 60.0
_LOOK_S = 0.5
_MOST_FIELDS = 32
_BYTES_PER_VALUE = 100  # of a parsed JSON value


@attrs.frozen(kw_only=True)
class BodyLimits:
    """How much of a request is read.

    Attributes:
        file_bytes: largest file; archives have no limit.
        json_bytes: largest JSON body.
        json_values: most values in one, because each takes more memory than its text.
    """

    file_bytes: int = 100 * 1024**2
    json_bytes: int = 16 * 1024**2
    json_values: int = 500_000


@attrs.frozen(kw_only=True)
class RequestLimits:
    """Limits of all requests of a server together.

    Attributes:
        held_bytes: bodies and answers in memory.
        commands: requests that run a command; each keeps one of the 1024 threads of this process
            for commands.
    """

    held_bytes: int = 512 * 1024**2
    commands: int = 512


class RequestBudget:
    """Counts what all requests of a server hold; used on one event loop."""

    def __init__(self, most: RequestLimits) -> None:
        """Hold nothing yet."""
        self._most = most
        self._held = 0
        self._commands = 0

    @contextmanager
    def request(self, *, runs_command: bool) -> Iterator[Take]:
        """Yield a function that counts bytes of a request; they no longer count after the block.

        The function raises a CapacityError if all requests together hold too much.

        Raises:
            CapacityError: it would run a command, and too many requests do.
        """
        if runs_command and self._commands >= self._most.commands:
            raise CapacityError(f"{self._most.commands} requests run commands now; retry later")
        self._commands += runs_command
        held = 0

        def take(size: int) -> None:
            nonlocal held
            most = self._most.held_bytes
            if self._held + size > most:
                raise CapacityError(
                    f"the requests hold more than {most} bytes together; retry later"
                )
            self._held += size
            held += size

        try:
            yield take
        finally:
            self._commands -= runs_command
            self._held -= held


async def call_parts(
    route: Route, request: web.Request, limits: BodyLimits, take: Take
) -> tuple[dict[str, Any], bytes]:
    """Return the arguments and the body of the call that a request asks for; the body of an archive
    is not read.

    Args:
        route: the route of the request.
        request: the request.
        limits: how much is read.
        take: counts what the request holds in memory.

    Raises:
        CapacityError: all requests together hold too much.
        SpecError: a field is unknown, missing, given twice or of another type.
        RequestError: the body is too large, of another type, not JSON, or stalls.
    """
    args: dict[str, Any] = {**_query_of(route, request), **request.match_info}
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise RequestError(
            415, "bodies are not decompressed here; send the body without Content-Encoding"
        )
    if route.takes != "json":
        read(route.request, args)
        return args, await _whole_body(
            request, limits.file_bytes, take
        ) if route.takes == "bytes" else b""
    if request.content_type != "application/json":
        raise RequestError(
            415,
            f"the body is {request.content_type}; send JSON with `Content-Type: application/json`",
        )
    body = await _whole_body(request, limits.json_bytes, take, limits.json_values)
    args = {**_json_of(body, args), **args}
    read(route.request, args)
    return args, bytes_of(args.pop("input", ""), args.get("encoding", "text"))


def _query_of(route: Route, request: web.Request) -> dict[str, Any]:
    try:
        pairs = parse_qsl(
            request.rel_url.raw_query_string,
            keep_blank_values=True,
            errors="surrogateescape",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError as error:
        raise RequestError(400, f"the query cannot be read: {error}") from error
    args: dict[str, Any] = {}
    for name, text in pairs:
        if name not in route.query:
            raise SpecError(
                name, text, f"no such field in the query; known: {', '.join(route.query) or 'none'}"
            )
        if name in args:
            raise SpecError(name, text, "give it only once")
        args[name] = read_text(route.request, name, text)
    return args


def _json_of(body: bytes, taken: dict[str, Any]) -> dict[str, Any]:
    try:
        value = parse_json(body, finite=True)
    except ValueError as error:  # UnicodeDecodeError is one too
        raise RequestError(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestError(400, "the body is not a JSON object; send one, such as {}")
    if twice := sorted(value.keys() & taken.keys()):
        raise SpecError(twice[0], value[twice[0]], "given in the path, so not in the body")
    return value


def bytes_of(text: str, encoding: str) -> bytes:
    """Return the bytes of an input.

    Args:
        text: the input, as it is in the request.
        encoding: its form: ``text`` or ``base64``.

    Raises:
        SpecError: it has another form.
    """
    try:
        return text.encode() if encoding == "text" else base64.b64decode(text, validate=True)
    except UnicodeEncodeError:
        raise SpecError(
            "input", text, "text without lone surrogates; use the encoding base64 for other bytes"
        ) from None
    except (binascii.Error, ValueError):
        raise SpecError("input", text, "base64 (RFC 4648), as `encoding` says") from None


def piece_reader(request: web.Request) -> Callable[[], Coroutine[Any, Any, bytes]]:
    """Return a function that reads the next piece of a body, and returns b"" at its end.

    The function raises a RequestError if the client sends nothing for a minute, or disconnects.
    """

    async def next_piece() -> bytes:
        for _ in range(round(_STALLED_S / _LOOK_S)):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    return await _piece_of(request)
            if _is_malformed(request):
                # aiohttp does not report it. With the body ended, it answers at once and closes the
                # connection.
                request.content.feed_eof()
                request.protocol.close()
                raise RequestError(
                    400,
                    "the body is not valid HTTP: a chunk is malformed; correct the chunked form",
                )
        raise RequestError(408, f"nothing of the body came for {_STALLED_S:g} s")

    return next_piece


async def _piece_of(request: web.Request) -> bytes:
    try:
        return await request.content.readany()
    except (web.RequestPayloadError, aiohttp.ClientPayloadError) as error:
        raise RequestError(400, f"the body ended early: {str(error)[:100]}") from None


def _is_malformed(request: web.Request) -> bool:
    """Return whether the parser has given up on the connection: its error waits behind this
    request.
    """
    waiting = getattr(request.protocol, "_messages", ())
    return any(isinstance(message, _ErrInfo) for message, _ in waiting)


async def _whole_body(
    request: web.Request, most_bytes: int, take: Take, most_values: int | None = None
) -> bytes:
    too_large = RequestError(
        413, f"the body has more than {most_bytes} bytes; send less, or files as an archive"
    )
    if (request.content_length or 0) > most_bytes:
        raise too_large
    pieces = []
    size = 0
    next_piece = piece_reader(request)
    counter = ValueCounter()
    values = 0
    while piece := await next_piece():
        size += len(piece)
        if size > most_bytes:
            raise too_large
        take(len(piece))
        if most_values is not None:
            before, values = values, counter.feed(piece)
            if values > most_values:
                raise RequestError(
                    413, f"the body has more than {most_values} JSON values; send fewer at once"
                )
            take((values - before) * _BYTES_PER_VALUE)
        pieces.append(piece)
    return b"".join(pieces)
