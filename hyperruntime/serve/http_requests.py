"""Requests of HTTP as the arguments and the body of a call: path, query, JSON, bytes."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from hyperruntime.errors import SpecError
from hyperruntime.json_values import parse_json
from hyperruntime.serve.routes import Route
from hyperruntime.serve.service_errors import RequestError
from hyperruntime.serve.typed_json import read, read_text

_STALLED_S = 60.0
_MOST_FIELDS = 32


async def call_parts(route: Route, request: web.Request, most_bytes: int) -> tuple[dict[str, Any], bytes]:
    """Return the arguments and the body of the call that a request asks for; the body of an archive is not read.

    Args:
        route: the route of the request.
        request: the request.
        most_bytes: largest body.

    Raises:
        SpecError: a field is unknown, missing, given twice or of another type.
        RequestError: the body is too large, of another type, not JSON, or stalls.
    """
    args: dict[str, Any] = {**_query_of(route, request), **request.match_info}
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise RequestError(415, "bodies are not decompressed here; send it without Content-Encoding")
    body = await _whole_body(request, most_bytes) if route.takes in ("json", "bytes") else b""
    if route.takes != "json":
        read(route.request, args)
        return args, body
    if request.content_type != "application/json":
        raise RequestError(415, f"the body is {request.content_type}; send JSON with `Content-Type: application/json`")
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
            raise SpecError(name, text, f"no such field in the query; known: {', '.join(route.query) or 'none'}")
        if name in args:
            raise SpecError(name, text, "given once")
        args[name] = read_text(route.request, name, text)
    return args


def _json_of(body: bytes, taken: dict[str, Any]) -> dict[str, Any]:
    try:
        value = parse_json(body, finite=True)
    except ValueError as error:  # UnicodeDecodeError is one too
        raise RequestError(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestError(400, "the body is not a JSON object")
    if twice := sorted(value.keys() & taken.keys()):
        raise SpecError(twice[0], value[twice[0]], "given in the path, so not in the body")
    return value


def bytes_of(text: str, encoding: str) -> bytes:
    """Return the bytes of an input in the form that its request names.

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
    """Return what reads the next piece of a body, and returns b"" at its end.

    It raises a RequestError if the client sends nothing for a minute.
    """

    async def next_piece() -> bytes:
        try:
            async with asyncio.timeout(_STALLED_S):
                return await request.content.readany()
        except TimeoutError:
            raise RequestError(408, f"nothing of the body came for {_STALLED_S:g} s") from None

    return next_piece


async def _whole_body(request: web.Request, most_bytes: int) -> bytes:
    too_large = RequestError(413, f"the body has more than {most_bytes} bytes; use an archive for more")
    if (request.content_length or 0) > most_bytes:
        raise too_large
    pieces, size, next_piece = [], 0, piece_reader(request)
    while piece := await next_piece():
        size += len(piece)
        if size > most_bytes:
            raise too_large
        pieces.append(piece)
    return b"".join(pieces)
