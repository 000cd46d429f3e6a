"""Relay an upstream's answer to the client, and read its usage."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from hyperruntime.gateway.answer.headers import JSON_TYPE
from hyperruntime.gateway.answer.screen import Event, screen, screen_event
from hyperruntime.gateway.answer.sse import EventSplitter
from hyperruntime.gateway.answer.stream_guard import StreamGuard
from hyperruntime.gateway.answer.usage import GeneratedTokens, StreamUsage, estimate
from hyperruntime.gateway.log.budget import Tokens
from hyperruntime.gateway.log.exchange import Exchange
from hyperruntime.gateway.replay import Recorded, exchange_line
from hyperruntime.gateway.request.parse import COUNT_PATH, ModelRequest, RequestRefusedError, error_event
from hyperruntime.gateway.request.parse_pool import PoolShare
from hyperruntime.gateway.upstream import Answer, describe, payload

if TYPE_CHECKING:
    from hyperruntime.gateway.service import Shared

_OK = 200
_BYTES_PER_VALUE = 4  # an answer is searched for keys too, so it costs more than a request
_TURN_S = 0.002
_GRACE_S = 2.0  # for the client to read the error event after the deadline


class Relay:
    """Relays the answer to one request."""

    def __init__(self, call: ModelRequest, exchange: Exchange, shared: Shared, share: PoolShare) -> None:
        """Create a relay.

        Args:
            call: the client's request.
            exchange: log entry of the request; the relay fills in the fields about the answer.
            shared: the objects that all seats share.
            share: parses and screens large answers of the seat.
        """
        self._call, self._exchange, self._share = call, exchange, share
        self._redactor, self._record = shared.redactor, shared.record
        self._limit_bytes = shared.config.limits.answer_bytes
        self._recorded = bytearray()
        self._came_bytes = 0  # of a stream; the guard may still hold some of them
        self._usage = StreamUsage()
        self._guard = StreamGuard(shared.redactor)
        self._generated = GeneratedTokens() if shared.config.tokens and call.wire == "openai" else None
        self._tokens: Tokens | None = None
        self._streaming = self._complete = False

    def used(self) -> Tokens:
        """Return the usage of the exchange so far; zero if the upstream refused the request.

        If the client left before the answer came, the request counts by its size, so that leaving early is not free.
        """
        exchange = self._exchange
        if self._generated is not None and exchange.generated is None:
            exchange.generated = self._generated.to_json()
        if self._tokens is not None:
            return self._tokens
        if self._streaming:
            return self._usage.total(
                complete=self._complete, request_bytes=exchange.request_bytes, answer_bytes=self._came_bytes
            )
        return estimate(exchange.request_bytes, 0) if exchange.pending else Tokens()

    async def whole(self, answer: Answer) -> web.Response:
        """Return the response for an answer that is not a stream; the sender has read it.

        Raises:
            RequestRefusedError: the answer holds a key that cannot be cut out, is not UTF-8 or is nested too deeply;
                or a parse worker was lost.
        """
        exchange = self._exchange
        data = b"".join([piece async for piece in answer.body])
        if answer.status == _OK and self._call.path != COUNT_PATH:
            self._tokens = estimate(exchange.request_bytes, len(data))
        screened = await self._share.run(
            len(data) // _BYTES_PER_VALUE,
            screen,
            data,
            self._redactor,
            is_json=answer.headers["Content-Type"] == JSON_TYPE,
            tokens=self._generated is not None,
        )
        data = data if screened.body is None else screened.body
        exchange.status, exchange.answer_bytes = answer.status, len(data)
        if answer.status == _OK:
            self._tokens = Tokens() if self._call.path == COUNT_PATH else screened.used or self._tokens
            exchange.generated = screened.generated
        else:
            exchange.error = f"upstream_error: {data[:300].decode(errors='replace')}"
        await self._keep(answer, data)
        return web.Response(status=answer.status, body=payload(data), headers=answer.headers)

    async def stream(self, request: web.BaseRequest, answer: Answer, deadline: asyncio.Timeout) -> web.StreamResponse:
        """Relay a stream, event by event; a failure or the deadline ends it with an error event.

        Args:
            request: the client's request.
            answer: the upstream's answer.
            deadline: deadline of the request; moved by a grace period, in which the client can read the error event.

        Raises:
            ClientConnectionResetError: the client closed its connection.
        """
        end = deadline.when() or 0.0
        deadline.reschedule(end + _GRACE_S)
        response = web.StreamResponse(status=answer.status, headers={**answer.headers, "Cache-Control": "no-cache"})
        self._exchange.status = answer.status
        self._streaming = True
        await response.prepare(request)
        try:
            async with asyncio.timeout_at(end):
                await self._events(response, answer)
            self._complete = True
            await self._keep(answer, bytes(self._recorded))
        except RequestRefusedError as error:
            await self._broken(response, error)
        except aiohttp.ClientConnectionResetError:
            self._exchange.error = "client_gone: the client did not read its stream to the end"
            raise
        except (aiohttp.ClientError, TimeoutError) as error:
            why = f"the stream broke off: {describe(error) or 'its deadline passed'}"
            await self._broken(response, RequestRefusedError(502, "upstream_lost", why))
        return response  # the server sends its end, after the usage is counted

    async def _events(self, response: web.StreamResponse, answer: Answer) -> None:
        splitter = EventSplitter(self._limit_bytes)
        async for piece in answer.body:
            exchange = self._exchange
            exchange.first_byte_s = exchange.first_byte_s or time.monotonic() - exchange.started
            await self._send(response, splitter.feed(piece))
        if rest := splitter.rest():
            await self._send(response, [rest])
        await self._write(response, self._guard.rest())

    async def _send(self, response: web.StreamResponse, events: list[bytes]) -> None:
        """Screen events and send those that are safe; yield to other seats every few milliseconds."""
        ready: list[bytes] = []
        turn_ends = time.monotonic() + _TURN_S
        for event in events:
            seen = await self._seen(event)
            if not (seen.usage_alone and self._call.adds_usage):  # the client did not ask for the usage event
                ready += self._guard.feed(seen)
            if time.monotonic() > turn_ends:
                await self._write(response, ready)
                ready = []
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + _TURN_S
        await self._write(response, ready)

    async def _seen(self, event: bytes) -> Event:
        """Return a screened event, and record its usage and tokens."""
        cost = len(event) // _BYTES_PER_VALUE
        seen = await self._share.run(cost, screen_event, event, self._redactor, tokens=self._generated is not None)
        self._usage.see(seen.used)
        self._came_bytes += len(seen.cleaned)
        if self._generated is not None:
            self._generated.see(seen.message)
        if self._record is not None:
            self._recorded += seen.cleaned
        return seen

    async def _write(self, response: web.StreamResponse, events: list[bytes]) -> None:
        if data := b"".join(events):
            self._exchange.answer_bytes += len(data)
            await response.write(data)

    async def _broken(self, response: web.StreamResponse, error: RequestRefusedError) -> None:
        """Send an error event in the client's format; the HTTP status is sent already."""
        self._exchange.error = f"{error.kind}: {error.message}"
        await response.write(self._redactor.clean(error_event(self._call.wire, error)))

    async def _keep(self, answer: Answer, data: bytes) -> None:
        if self._record is not None:
            kept = Recorded(status=answer.status, content_type=answer.headers["Content-Type"], body=data)
            cost = (len(data) + self._exchange.request_bytes) // _BYTES_PER_VALUE
            self._record.add(await self._share.run(cost, exchange_line, self._call, kept, self._redactor))
