"""Relay an upstream's answer to the client, and read on the way what it used. Imports aiohttp and what is below it."""

from __future__ import annotations

import asyncio
import time

import aiohttp
from aiohttp import web

from hyperruntime.gateway import tape
from hyperruntime.gateway.budget import Tokens
from hyperruntime.gateway.exchange import Exchange, LineFile
from hyperruntime.gateway.redact import Redactor
from hyperruntime.gateway.request import COUNT_PATH, Call, RefusedError, error_event
from hyperruntime.gateway.sse import EventSplitter, EventTooLongError
from hyperruntime.gateway.tokens import TokenRecord
from hyperruntime.gateway.upstream import Answer
from hyperruntime.gateway.usage import StreamUsage, estimate, parse_usage

_OK = 200
_GRACE_S = 2.0  # for a client to take the event that says that its time is up


class Relay:
    """One answer on its way."""

    def __init__(
        self,
        call: Call,
        exchange: Exchange,
        *,
        redactor: Redactor,
        limit_bytes: int,
        record: LineFile | None,
        tokens: bool,
    ) -> None:
        """Relay the answer to a call."""
        self._call, self._exchange, self._redactor, self._limit = call, exchange, redactor, limit_bytes
        self._record = record
        self._recorded = bytearray()
        self._usage = StreamUsage()
        self._generated = TokenRecord() if tokens else None
        self._tokens: Tokens | None = None
        self._streaming = self._complete = False

    def used(self) -> Tokens:
        """Return what the exchange used, as far as it went; nothing where the upstream refused it.

        An answer that nobody waited for counts with what it was asked: else a client that leaves early asks for free.
        """
        exchange = self._exchange
        if self._generated is not None:
            exchange.generated = self._generated.to_json()
        if self._tokens is not None:
            return self._tokens
        if self._streaming:
            return self._usage.total(
                complete=self._complete, request_bytes=exchange.request_bytes, answer_bytes=exchange.answer_bytes
            )
        return estimate(exchange.request_bytes, 0) if exchange.pending else Tokens()

    async def whole(self, answer: Answer) -> web.Response:
        """Return an answer that came in one piece; the sender has read it."""
        exchange = self._exchange
        data = self._redactor.clean(b"".join([piece async for piece in answer.body]))
        exchange.status, exchange.answer_bytes = answer.status, len(data)
        if answer.status == _OK:
            asks_model = self._call.path != COUNT_PATH
            self._tokens = parse_usage(data) or estimate(exchange.request_bytes, len(data)) if asks_model else Tokens()
            if self._generated is not None:
                self._generated.see_body(data)
        else:
            exchange.error = f"upstream_error: {data[:300].decode(errors='replace')}"
        self._keep(answer, data)
        return web.Response(status=answer.status, body=data, headers=answer.headers)

    async def stream(self, request: web.BaseRequest, answer: Answer, deadline: asyncio.Timeout) -> web.StreamResponse:
        """Relay a stream, event by event, as they come; at the deadline it ends with an error event."""
        end = deadline.when()
        if end is not None:
            deadline.reschedule(end + _GRACE_S)
        response = web.StreamResponse(status=answer.status, headers={**answer.headers, "Cache-Control": "no-cache"})
        self._exchange.status = answer.status
        self._streaming = True
        await response.prepare(request)
        try:
            async with asyncio.timeout_at(end):
                await self._events(response, answer)
            self._complete = True
            self._keep(answer, bytes(self._recorded))
        except EventTooLongError as error:
            await self._broken(response, RefusedError(502, "answer_too_large", str(error)))
        except aiohttp.ClientConnectionResetError:
            self._exchange.error = "client_gone: the client did not read its stream to the end"
            raise
        except (aiohttp.ClientError, TimeoutError) as error:
            await self._broken(response, RefusedError(502, "upstream_lost", f"the stream broke off: {error!r}"))
        return response  # its end is sent by the server, once it is counted

    async def _events(self, response: web.StreamResponse, answer: Answer) -> None:
        splitter = EventSplitter(self._limit)
        async for piece in answer.body:
            exchange = self._exchange
            exchange.first_byte_s = exchange.first_byte_s or time.monotonic() - exchange.started
            await self._send(response, splitter.feed(piece))
        if rest := splitter.rest():
            await self._send(response, [rest])

    def _hides(self, event: bytes) -> bool:
        """Take in an event's usage and tokens; tell whether the client did not ask for this event."""
        if self._generated is not None:
            self._generated.see_event(event)
        return self._usage.see(event) and self._call.adds_usage

    async def _send(self, response: web.StreamResponse, events: list[bytes]) -> None:
        if self._record is not None:
            self._recorded += self._redactor.clean(b"".join(events))
        data = self._redactor.clean(b"".join([event for event in events if not self._hides(event)]))
        if not data:
            return
        self._exchange.answer_bytes += len(data)
        await response.write(data)

    async def _broken(self, response: web.StreamResponse, error: RefusedError) -> None:
        """Tell the client in its own format that the stream ends here; its status is sent already."""
        self._exchange.error = f"{error.kind}: {error.message}"
        await response.write(self._redactor.clean(error_event(self._call.wire, error)))

    def _keep(self, answer: Answer, data: bytes) -> None:
        if self._record is not None:
            kind = answer.headers.get("Content-Type", "application/json")
            tape.record(self._record, self._call, tape.Recorded(status=answer.status, content_type=kind, body=data))
