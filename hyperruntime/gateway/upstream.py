"""Send a request to an upstream, with retries."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import AsyncIterator
from functools import cached_property
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
import attrs

from hyperruntime.concurrency.retry import RETRIED_STATUSES, SHOULD_RETRY, with_retries
from hyperruntime.gateway.answer.headers import STREAM_TYPE, answer_headers, request_id, retry_after
from hyperruntime.gateway.answer.judgement import USABLE, Judgement, broken, judge_event
from hyperruntime.gateway.answer.screen import Screened
from hyperruntime.gateway.answer.sse import EventSplitter, event_data
from hyperruntime.gateway.answer.usage import asks_for_tokens, usage_of
from hyperruntime.gateway.config.values import GatewayConfig, ModelRule, Upstream
from hyperruntime.gateway.formats import FORMATS
from hyperruntime.gateway.log.budget import Tokens
from hyperruntime.gateway.log.exchange import Exchange
from hyperruntime.gateway.replay import Replay
from hyperruntime.gateway.request.parse import ModelRequest, RequestRefusedError
from hyperruntime.ports.site_proxy import site_proxy
from hyperruntime.secrets.redact import Redactor
from hyperruntime.units import KIB

_OK = 200
_CONNECT_S = 15.0
_LARGE_BYTES = 256 * KIB
_TRANSPORT = (aiohttp.ClientError, TimeoutError, OSError)
# Content-Encodings that aiohttp decodes on every platform
_DECODED = ("", "identity", "gzip", "deflate")


@attrs.define(kw_only=True)
class Answer:
    """An upstream's answer; its body may not be complete yet.

    Attributes:
        status: the HTTP status.
        headers: the headers for the client, see
            :func:`~hyperruntime.gateway.answer.headers.answer_headers`.
        body: the pieces of the body as they arrive.
        retry_s: seconds that the upstream asks to wait before the next attempt.
        response: the response to close; None if there is no open connection.
        data: the whole body; empty for a stream.
        screened: the screened body; None for a stream.
        judgement: whether the answer is usable; for a stream, whether its first event is.
        reported: the usage that it reports; for a stream, that its first event reports; None if it
            reports none.
    """

    status: int
    headers: dict[str, str]
    body: AsyncIterator[bytes]
    retry_s: float = 0.0
    response: aiohttp.ClientResponse | None = None
    data: bytes = b""
    screened: Screened | None = None
    judgement: Judgement = USABLE
    reported: Tokens | None = None

    @property
    def has_events(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.status == _OK and self.headers["Content-Type"] == STREAM_TYPE

    def close(self) -> None:
        """Return the connection to its pool if the answer was read to its end; otherwise close
        it.
        """
        if self.response is not None:
            self.response.release() if self.response.content.at_eof() else self.response.close()


class Reader(Protocol):
    """Reads the answers to one request, and counts their usage."""

    async def screen(self, answer: Answer, data: bytes) -> Screened:
        """Return the screened body of an answer that is not a stream."""
        ...

    def drop(self, answer: Answer | None) -> None:
        """Hear that another attempt follows, after this answer; None if the attempt got none."""
        ...


class Sender:
    """Sends requests to all upstreams of a gateway; used in the gateway's event loop."""

    def __init__(self, config: GatewayConfig, redactor: Redactor) -> None:
        """Load the keys and the recorded exchanges, and give the keys to the redactor.

        Raises:
            GatewayError: a key or a file of recorded exchanges cannot be loaded.
        """
        self._config = config
        self._redactor = redactor
        self._keys = {upstream.name: upstream.load_key() for upstream in config.upstreams}
        self._replays = {
            upstream.name: Replay(upstream.replay)
            for upstream in config.upstreams
            if upstream.replay
        }
        for key in self._keys.values():
            redactor.add(key)
        self._proxies = {
            upstream.name: site_proxy(upstream.url) if upstream.proxy is None else upstream.proxy
            for upstream in config.upstreams
        }
        for proxy in self._proxies.values():
            redactor.add(urlsplit(proxy or "").password or "")

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        """The connection pool; made in the event loop, on first use."""
        # a stream may last as long as the deadline of its request
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_S, sock_read=self._config.stall_s
        )
        connector = aiohttp.TCPConnector(limit=self._config.concurrency)
        return aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            # a cookie from the answer to one container would go with the requests of others
            cookie_jar=aiohttp.DummyCookieJar(),
            # only text can be searched for keys
            headers={"User-Agent": "hyperruntime", "Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def send(
        self,
        call: ModelRequest,
        rule: ModelRule,
        upstream: Upstream,
        exchange: Exchange,
        reader: Reader,
    ) -> Answer:
        """Return the first answer that is not worth a retry, or the last answer.

        Args:
            call: the client's request.
            rule: the model rule that matches the request.
            upstream: the upstream of the rule.
            exchange: log entry of the request; its attempts and identifiers are filled in.
            reader: screens the body of an answer that is not a stream, and hears of each attempt
                that is repeated.

        Raises:
            RequestRefusedError: no attempt got an answer; the answer is malformed, too large or a
                redirect; no answer to the request was recorded; or the reader raises it.
        """
        if upstream.replay:
            return await self._played(call, upstream, exchange, reader)
        extra = asks_for_tokens(call, ids=upstream.token_ids) if self._config.tokens else {}
        body = call.encode(rule.send_as, extra)
        deadline = exchange.started + self._config.deadline_s

        try:
            answer = await with_retries(
                lambda: self._attempt(call, upstream, body, exchange, reader),
                first_s=self._config.backoff_s,
                longest_s=self._config.backoff_max_s,
                errors=_TRANSPORT,
                asked_s=lambda answer: answer.retry_s if answer.judgement.retry else None,
                gives_up=lambda made, next_at: made > self._config.retries or next_at > deadline,
                before_wait=lambda outcome, *_: _drop(outcome, reader),
            )
        except _TRANSPORT as error:
            raise _unreachable(upstream, error) from None
        if answer.judgement.retry or answer.status in RETRIED_STATUSES:
            # the retries of the client would multiply ours
            answer.headers[SHOULD_RETRY] = "false"
        return answer

    async def _played(
        self, call: ModelRequest, upstream: Upstream, exchange: Exchange, reader: Reader
    ) -> Answer:
        """Return the next recorded answer.

        Raises:
            RequestRefusedError: the request was not recorded, or the reader raises it.
        """
        recorded = self._replays[upstream.name].play(call)
        headers = answer_headers({"Content-Type": recorded.content_type}, self._redactor)
        answer = Answer(status=recorded.status, headers=headers, body=_once(recorded.body))
        return (
            answer
            if call.stream and answer.has_events
            else await self._read(answer, exchange, reader)
        )

    async def _attempt(
        self,
        call: ModelRequest,
        upstream: Upstream,
        body: bytes,
        exchange: Exchange,
        reader: Reader,
    ) -> Answer:
        """Send the request once; return the judged answer.

        Raises:
            RequestRefusedError: see :meth:`send`.
            ClientError: the connection was lost.
            TimeoutError: the upstream stalled.
        """
        exchange.attempts += 1
        exchange.pending = True
        try:
            answer = await self._ask(call, upstream, body, exchange)
            exchange.id = request_id(answer.headers)
            if call.stream and answer.has_events:
                answer = await self._begun(answer, call.path)
            else:
                answer = await self._read(answer, exchange, reader)
        except _TRANSPORT:
            exchange.pending = False
            raise
        exchange.pending = False
        return answer

    async def _ask(
        self, call: ModelRequest, upstream: Upstream, body: bytes, exchange: Exchange
    ) -> Answer:
        headers = {**call.headers, "Content-Type": "application/json", **self._auth(upstream)}
        response = await self._session.post(
            FORMATS[upstream.wire].url(upstream.url, call.path),
            data=payload(body),
            headers=headers,
            proxy=self._proxies[upstream.name] or None,
            allow_redirects=False,  # the key would go to the other address too
        )
        if 300 <= response.status < 400:
            response.close()
            raise RequestRefusedError(
                502, "upstream_redirect", f"upstream {upstream.name!r} redirects; correct its URL"
            )
        encodings = ",".join(response.headers.getall("Content-Encoding", [])).strip().lower()
        if encodings not in _DECODED or not 200 <= response.status < 600:
            response.close()
            fault = (
                f"an invalid status or an unknown Content-Encoding (status {response.status}); "
                "check its URL"
            )
            raise RequestRefusedError(
                502, "upstream_malformed", f"upstream {upstream.name!r} sent {fault}"
            )
        exchange.upstream_id = request_id(response.headers)
        return Answer(
            status=response.status,
            headers=answer_headers(response.headers, self._redactor),
            body=response.content.iter_any(),
            retry_s=retry_after(response.headers.get("Retry-After", "")),
            response=response,
        )

    async def _begun(self, answer: Answer, path: str) -> Answer:
        """Return a stream whose first event was judged, so that a failure before it can be retried.

        Raises:
            ClientError: the connection was lost.
            TimeoutError: the upstream stalled.
        """
        splitter = EventSplitter(sys.maxsize)
        pieces: list[bytes] = []
        events: list[bytes] = []
        size = 0
        try:
            async for piece in answer.body:
                pieces.append(piece)
                size += len(piece)
                events = splitter.feed(piece)
                if events or size > self._config.limits.answer_bytes:
                    break
        except BaseException:
            answer.close()
            raise
        held = b"".join(pieces)
        # what came before an event may be the whole answer of a broken server
        message = event_data(events[0] if events else held)
        judgement = judge_event(path, message).fault or USABLE
        if not held.strip():
            judgement = broken("the stream has no events")
        return attrs.evolve(
            answer,
            body=_after(held, answer.body),
            judgement=judgement,
            reported=usage_of(path, message),
        )

    async def _read(self, answer: Answer, exchange: Exchange, reader: Reader) -> Answer:
        """Return the answer with its whole body, screened, so that a broken connection can be
        retried.

        Raises:
            RequestRefusedError: the answer is too large, or the reader raises it.
            ClientError: the connection was lost.
            TimeoutError: the upstream stalled.
        """
        limit = self._config.limits.answer_bytes
        size = 0
        pieces: list[bytes] = []
        try:
            async for piece in answer.body:
                exchange.first_byte_s = exchange.first_byte_s or time.monotonic() - exchange.started
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    raise RequestRefusedError(
                        502, "answer_too_large", f"the answer is longer than {limit} bytes"
                    )
        finally:
            answer.close()
        exchange.pending = False
        data = b"".join(pieces)
        screened = await reader.screen(answer, data)
        return attrs.evolve(
            answer,
            data=data,
            screened=screened,
            judgement=screened.judgement,
            reported=screened.used if answer.status == _OK else None,
            response=None,
        )

    def _auth(self, upstream: Upstream) -> dict[str, str]:
        key = self._keys[upstream.name]
        return FORMATS[upstream.wire].key_headers(key) if key else {}


def _drop(outcome: Answer | Exception, reader: Reader) -> None:
    """End an attempt that is repeated."""
    answer = outcome if isinstance(outcome, Answer) else None
    reader.drop(answer)
    if answer is not None:
        answer.close()


def _unreachable(upstream: Upstream, error: Exception) -> RequestRefusedError:
    if isinstance(error, TimeoutError):
        return RequestRefusedError(
            504, "upstream_timeout", f"upstream {upstream.name!r} sent nothing in time"
        )
    return RequestRefusedError(
        502,
        "upstream_unreachable",
        f"upstream {upstream.name!r} cannot be reached: {describe(error)}",
    )


def payload(data: bytes) -> bytes | io.BytesIO:
    """Return a body in a form that aiohttp sends in pieces, without copying it whole."""
    return data if len(data) <= _LARGE_BYTES else io.BytesIO(data)


def describe(error: Exception) -> str:
    """Return a description of a connection error, without any text that the upstream sent."""
    return str(error) if isinstance(error, OSError) else type(error).__name__


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _after(data: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield data
    async for piece in others:
        yield piece
