"""Serve one seat: check a request, send it to an upstream, relay the answer, count the usage."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, cast

from aiohttp import web

from hyperruntime.errors import GatewayError
from hyperruntime.gateway.config.values import ModelRule, Upstream
from hyperruntime.gateway.formats import ENDPOINTS, format_of
from hyperruntime.gateway.log.exchange import Exchange
from hyperruntime.gateway.relay import Relay
from hyperruntime.gateway.request.body import SLOW_KIND, BodyReader
from hyperruntime.gateway.request.pace import Pace, accept_connections
from hyperruntime.gateway.request.parse import (
    MODELS_PATH,
    ModelRequest,
    RequestRefusedError,
    client_token,
    error_body,
    parse_call,
)
from hyperruntime.gateway.request.parse_pool import PoolShare
from hyperruntime.gateway.seat import Seat
from hyperruntime.gateway.shared import Shared
from hyperruntime.ports.http_connection import BoundedConnection, Connections
from hyperruntime.wire.tokens import is_token

_SERVER_FAULT = 500
_IDLE_S = 3600.0  # BoundedConnection has its own limit
_PATIENCE_S = 0.05  # for running requests when their seat is closed


class Service:
    """Answers the requests of one seat."""

    def __init__(self, seat: Seat, shared: Shared) -> None:
        """Create the service of a seat.

        Args:
            seat: the seat; it hears of refusals by a budget, and of the outage of each request that
                was sent on.
            shared: the objects that all seats share.
        """
        self._seat = seat
        self._shared = shared
        limits = shared.config.limits
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._bodies = BodyReader(limits)
        self._refusals = Pace(limits.refusals_per_s, 2 * limits.refusals_per_s)
        self._share = PoolShare(shared.pool)
        replays = any(upstream.replay for upstream in shared.config.upstreams)
        self._keyed = replays or shared.record is not None

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, and log it.

        Raises:
            CancelledError: the client closed its connection, or the seat is closed.
            ConnectionResetError: the client closed its connection, or does not read its stream.
            GatewayError: an internal error; its text holds no key.
        """
        exchange = Exchange(seat=self._seat.name, path=request.path[:200])
        connection = cast(BoundedConnection, request.protocol)
        connection.serve_request()
        try:
            return await self._answer(request, exchange)
        except (asyncio.CancelledError, ConnectionResetError):
            exchange.error = exchange.error or "client_gone: the client closed its connection"
            raise
        except Exception as error:  # noqa: BLE001 - redacts the text of any error
            why = self._shared.redactor.clean_text(repr(error))  # may quote an answer
            exchange.error = exchange.error or f"internal: {why}"
            raise GatewayError(f"a request failed in the gateway: {why}") from None
        finally:
            exchange.duration_s = time.monotonic() - exchange.started
            if exchange.attempts and exchange.status:
                self._seat.sent(exchange.outage)
            if self._shared.log is not None:  # after the seat: who reads the line may check it
                self._shared.log.write(exchange.to_json())
            connection.wait_for_head()

    async def _answer(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        try:
            async with asyncio.timeout(self._shared.config.deadline_s) as deadline:
                return await self._serve(request, exchange, deadline)
        except RequestRefusedError as error:
            refusal = error
        except TimeoutError:
            if exchange.status:  # a stream has begun, and the client does not read
                exchange.error = "slow_client: the client did not read its stream"
                cast(BoundedConnection, request.protocol).drop()
                raise ConnectionResetError from None
            why = "the request was not answered within its deadline"
            # else the answer may be as long as the client asked for
            failed_before = exchange.attempts > 1
            refusal = RequestRefusedError(
                504, "upstream_timeout" if failed_before else "deadline_exceeded", why
            )
        said = self._shared.redactor.clean_text(refusal.message)
        exchange.status = refusal.status
        exchange.error = f"{refusal.kind}: {said}"
        if refusal.status < _SERVER_FAULT:
            await self._refusals.take()
            if refusal.kind != SLOW_KIND:
                await self._bodies.drain(request)
        response = web.Response(
            status=refusal.status,
            body=error_body(request.path, RequestRefusedError(refusal.status, refusal.kind, said)),
            content_type="application/json",
        )
        if not request.content.at_eof():
            response.force_close()  # the rest of the body is unread, and may never come
        return response

    async def _serve(
        self, request: web.BaseRequest, exchange: Exchange, deadline: asyncio.Timeout
    ) -> web.StreamResponse:
        if not is_token(client_token(request.headers), self._seat.token):
            raise RequestRefusedError(
                401, "wrong_token", "the token does not belong to this container"
            )
        self._check_endpoint(request)
        if request.path == MODELS_PATH:
            exchange.status = 200
            return web.json_response(self._models())
        async with self._slots, self._bodies.read(request) as body:
            exchange.request_bytes = len(body.data)
            call = await self._share.run(
                body.cost,
                parse_call,
                request.path,
                body.data,
                format_of(request.path).headers_of(request.headers),
                keyed=self._keyed,
            )
            exchange.model = call.model
            exchange.stream = call.stream
            rule, upstream = self._rule(call)
            exchange.upstream = upstream.name
            exchange.sent_as = rule.send_as or call.model
            async with self._shared.slots:
                self._admit()
                relay = Relay(call, exchange, self._shared, self._share)
                with ExitStack() as after:
                    after.callback(self._charge, rule, exchange, relay)
                    answer = await self._shared.sender.send(call, rule, upstream, exchange, relay)
                    after.callback(answer.close)
                    if answer.screened is not None:
                        return await relay.whole(answer, answer.screened)
                    return await relay.stream(request, answer, deadline)

    def _check_endpoint(self, request: web.BaseRequest) -> None:
        expected = "GET" if request.path == MODELS_PATH else "POST"
        if request.path != MODELS_PATH and request.path not in ENDPOINTS:
            known = ", ".join((MODELS_PATH, *ENDPOINTS))
            raise RequestRefusedError(
                404, "unknown_endpoint", f"unknown endpoint; the gateway has {known}"
            )
        if request.method != expected:
            raise RequestRefusedError(405, "wrong_method", f"use {expected} for {request.path}")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise RequestRefusedError(
                415, "compressed_body", "send the body without Content-Encoding"
            )

    def _rule(self, call: ModelRequest) -> tuple[ModelRule, Upstream]:
        found = self._shared.config.rule_for(call.model, format_of(call.path).name)
        if found is None:
            raise RequestRefusedError(
                403,
                "model_not_allowed",
                f"model {call.model!r} is not allowed at {call.path}; see GET {MODELS_PATH}",
            )
        return found

    def _admit(self) -> None:
        """Count the request for both the run and the seat; if a budget refuses it, count it for
        neither.
        """
        why = self._shared.meter.admit()
        if not why and (why := self._seat.meter.admit()):
            self._shared.meter.give_back()
        if why:
            self._seat.refuse(why)
            # not 429, which clients retry by themselves
            raise RequestRefusedError(403, "budget_exceeded", why)

    def _charge(self, rule: ModelRule, exchange: Exchange, relay: Relay) -> None:
        tokens = relay.used()
        exchange.money = tokens.cost(rule.input_price, rule.output_price)
        exchange.tokens = tokens
        for meter in (self._shared.meter, self._seat.meter):
            meter.charge(tokens, exchange.money)

    def _models(self) -> dict[str, object]:
        """Return the models of the rules, without rules that are patterns."""
        names = [rule.name for rule in self._shared.config.models if not rule.is_pattern]
        models = [
            {"id": name, "object": "model", "created": 0, "owned_by": "gateway"}
            for name in dict.fromkeys(names)
        ]
        return {"object": "list", "data": models}


async def serve_seat(
    seat: Seat, shared: Shared, listener: socket.socket
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Serve the connections of a seat; return the function that stops listening and closes all of
    them.

    Args:
        seat: the seat.
        shared: the objects that all seats share.
        listener: the seat's socket, listening and non-blocking; closed at the end.
    """
    limits = shared.config.limits
    # a client that leaves ends its request at the upstream, which would bill it to the end
    server = web.Server(Service(seat, shared), handler_cancellation=True)
    connections = Connections(limits.connections, limits.client_s)
    options: dict[str, Any] = {
        "access_log": None,
        "keepalive_timeout": _IDLE_S,
        "lingering_time": 0.0,  # a hostile client would use it to hold its connection
    }
    # a small compressed body may stand for gigabytes; the sockets are Unix sockets
    options |= {"auto_decompress": False, "tcp_keepalive": False}
    accepting = asyncio.create_task(
        accept_connections(
            listener,
            lambda: BoundedConnection(connections, server, **options),
            Pace(limits.connections_per_s, 2 * limits.connections),
        )
    )

    async def stop() -> None:
        connections.limit = 0  # also for those that are accepted but not made yet
        accepting.cancel()
        await asyncio.wait([accepting])
        listener.close()
        left = [
            connection
            for connection in server.connections
            if isinstance(connection, BoundedConnection)
        ]
        await server.shutdown(_PATIENCE_S)
        for connection in left:
            connection.drop()

    return stop
