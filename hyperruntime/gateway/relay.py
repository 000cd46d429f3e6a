"""Relay an upstream's answer to the client, and read its usage."""

from __future__ import annotations

import asyncio
import time

import aiohttp
from aiohttp import web

from hyperruntime.gateway.answer.headers import JSON_TYPE
from hyperruntime.gateway.answer.judgement import Judgement, Kind, judge_end
from hyperruntime.gateway.answer.screen import Event, Screened, StreamGuard, screen, screen_event
from hyperruntime.gateway.answer.sse import EventSplitter
from hyperruntime.gateway.answer.usage import GeneratedTokens, StreamUsage, estimate
from hyperruntime.gateway.log.budget import Tokens
from hyperruntime.gateway.log.exchange import BROKEN, Exchange
from hyperruntime.gateway.replay import Recorded, exchange_line
from hyperruntime.gateway.request.parse import ModelRequest, RequestRefusedError, error_event
from hyperruntime.gateway.request.parse_pool import PoolShare
from hyperruntime.gateway.shared import Shared
from hyperruntime.gateway.upstream import Answer, describe, payload

_OK = 200
_BYTES_PER_VALUE = 4  # an answer is searched for keys too, so it costs more than a request
_TURN_S = 0.002  # then the event loop serves other seats
_GRACE_S = 2.0  # for the client to read the error event after the deadline


class Relay:
    """Relays the answer to one request."""

    def __init__(
        self, call: ModelRequest, exchange: Exchange, shared: Shared, share: PoolShare
    ) -> None:
        """Create a relay.

        Args:
            call: the client's request.
            exchange: log entry of the request; the relay fills in the fields about the answer.
            shared: the objects that all seats share.
            share: parses and screens large answers of the seat.
        """
        self._call = call
        self._exchange = exchange
        self._share = share
        self._redactor = shared.redactor
        self._record = shared.record
        self._limit_bytes = shared.config.limits.answer_bytes
        self._recorded = bytearray()
        self._came_bytes = 0  # of a stream; the guard may still hold some of them
        self._usage = StreamUsage()
        self._guard = StreamGuard(shared.redactor)
        self._generated = (
            GeneratedTokens() if shared.config.tokens and call.endpoint.asks_tokens else None
        )
        self._dropped = Tokens()  # what earlier attempts report: the upstream bills them too
        self._tokens: Tokens | None = None  # of the last attempt, if it is not a stream
        self._streaming = self._complete = self._ended = False
        self._fault: Judgement | None = None

    def used(self) -> Tokens:
        """Return the usage of the exchange so far; zero if the upstream refused the request.

        An attempt that was repeated counts as it reports. If the client left before the answer
        came, the request counts by its size, so that leaving early is not free.
        """
        if self._generated is not None and self._exchange.generated is None:
            self._exchange.generated = self._generated.to_json()
        return self._dropped + self._last()

    def _last(self) -> Tokens:
        """Return the usage of the last attempt."""
        exchange = self._exchange
        if self._streaming:
            return self._usage.total(
                complete=self._complete,
                request_bytes=exchange.request_bytes,
                answer_bytes=self._came_bytes,
            )
        if self._tokens is not None:
            return self._tokens
        return estimate(exchange.request_bytes, 0) if exchange.pending else Tokens()

    def drop(self, answer: Answer | None) -> None:
        """Count an attempt that is repeated by what its answer reports; None if there was no
        answer.
        """
        if answer is not None and answer.reported is not None and not self._call.endpoint.is_free:
            self._dropped += answer.reported
        self._tokens = None

    async def screen(self, answer: Answer, data: bytes) -> Screened:
        """Return the screened body of an answer that is not a stream.

        Args:
            answer: the answer.
            data: its whole body.

        Raises:
            RequestRefusedError: the answer holds a key that cannot be cut out, is not UTF-8 or is
                nested too deeply; or a parse worker was lost.
        """
        is_charged = answer.status == _OK and not self._call.endpoint.is_free
        self._tokens = estimate(self._exchange.request_bytes, len(data)) if is_charged else Tokens()
        return await self._share.run(
            len(data) // _BYTES_PER_VALUE,
            screen,
            data,
            self._redactor,
            path=self._call.path,
            status=answer.status,
            is_json=answer.headers["Content-Type"] == JSON_TYPE,
            tokens=self._generated is not None,
        )

    async def whole(self, answer: Answer, screened: Screened) -> web.Response:
        """Return the response for an answer that is not a stream.

        Args:
            answer: the answer; the sender has read it.
            screened: its screened body.
        """
        exchange = self._exchange
        data = answer.data if screened.body is None else screened.body
        exchange.status = answer.status
        exchange.answer_bytes = len(data)
        if answer.status == _OK and not self._call.endpoint.is_free:
            is_broken = screened.judgement.kind is Kind.BROKEN
            self._tokens = screened.used or (Tokens() if is_broken else self._tokens)
            exchange.generated = screened.generated
        self._note(screened.judgement)
        await self._keep(answer, data)
        return web.Response(status=answer.status, body=payload(data), headers=answer.headers)

    def _note(self, judgement: Judgement) -> None:
        """Write the fault of an answer into the log entry."""
        if judgement.kind is not Kind.USABLE:
            word = BROKEN if judgement.kind is Kind.BROKEN else "upstream_error"
            self._exchange.error = f"{word}: {self._redactor.clean_text(judgement.why)}"

    async def stream(
        self, request: web.BaseRequest, answer: Answer, deadline: asyncio.Timeout
    ) -> web.StreamResponse:
        """Relay a stream, event by event; a failure or the deadline ends it with an error event.

        Args:
            request: the client's request.
            answer: the upstream's answer.
            deadline: deadline of the request; moved by a grace period, in which the client can read
                the error event.

        Raises:
            ClientConnectionResetError: the client closed its connection.
        """
        end = deadline.when() or 0.0
        deadline.reschedule(end + _GRACE_S)
        response = web.StreamResponse(
            status=answer.status, headers={**answer.headers, "Cache-Control": "no-cache"}
        )
        self._exchange.status = answer.status
        self._streaming = True
        await response.prepare(request)
        try:
            async with asyncio.timeout_at(end):
                await self._events(response, answer)
            self._complete = True
            self._note(self._fault or judge_end(self._call.path, ended=self._ended))
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
        """Screen events and send those that are safe; yield to other seats every few
        milliseconds.
        """
        ready: list[bytes] = []
        turn_ends = time.monotonic() + _TURN_S
        for event in events:
            seen = await self._seen(event)
            # the client did not ask for the usage event
            if not (seen.usage_alone and self._call.adds_usage):
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
        wants_tokens = self._generated is not None
        seen = await self._share.run(
            cost, screen_event, event, self._redactor, path=self._call.path, tokens=wants_tokens
        )
        self._usage.see(seen.used)
        self._ended = self._ended or seen.sign.ended
        self._fault = self._fault or seen.sign.fault
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
        await response.write(self._redactor.clean(error_event(self._call.path, error)))

    async def _keep(self, answer: Answer, data: bytes) -> None:
        if self._record is not None:
            kept = Recorded(
                status=answer.status, content_type=answer.headers["Content-Type"], body=data
            )
            cost = (len(data) + self._exchange.request_bytes) // _BYTES_PER_VALUE
            self._record.add(
                await self._share.run(cost, exchange_line, self._call, kept, self._redactor)
            )
