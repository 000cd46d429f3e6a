"""The HTTP server of a service of containers: who may ask, and which handler answers.

A request must name this machine as its host (against DNS rebinding), must not come from a web page
(``Origin``), and must have the token. There are no cookies. See
docs/design/interfaces.md#containers-over-http.
"""

from __future__ import annotations

import json
import socket
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from hyperruntime.cluster.node_services import NodeService
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.logs import get_logger
from hyperruntime.ports.http_connection import serving_app
from hyperruntime.ports.listeners import names_this_machine
from hyperruntime.remote.service_errors import RequestError
from hyperruntime.serve.http_answers import HEADERS, Emit, answer_with, error_response
from hyperruntime.serve.http_requests import (
    BodyLimits,
    RequestBudget,
    RequestLimits,
    call_parts,
    piece_reader,
)
from hyperruntime.serve.openapi import document
from hyperruntime.serve.routes import ROUTES, Route
from hyperruntime.wire.peer import Answer, Call, Handler
from hyperruntime.wire.tokens import bearer_token, is_token

log = get_logger(__name__)
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]

DOCUMENT = "/v1/openapi.json"
_MOST_LINE_BYTES = 32 * 1024  # a percent-encoded path of 4095 bytes, and more
_SHUTDOWN_S = 1.0
_KEEP_ALIVE_S = 75.0


class HttpServer:
    """Serves the handlers of a service over HTTP."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        token: str | None,
        *,
        limits: BodyLimits | None = None,
        most: RequestLimits | None = None,
    ) -> None:
        """Make the server.

        Args:
            handlers: by the names in the table of routes.
            token: what requests must have; None answers everybody who reaches the listening socket.
            limits: how much of a request is read; None means the defaults.
            most: what all requests may have at once; None means the defaults.
        """
        self._handlers = handlers
        self._token = token
        self._limits = limits or BodyLimits()
        self._budget = RequestBudget(most or RequestLimits())
        self._document = json.dumps(document(has_token=token is not None)).encode()

    def app(self) -> web.Application:
        """Return the application."""
        made = web.Application(middlewares=[self._guard])
        made.router.add_get(DOCUMENT, self._send_document, allow_head=False)
        for route in ROUTES:
            made.router.add_route(route.method, route.path, self._handle(route))
        return made

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handle) -> web.StreamResponse:
        try:
            self._check(request)
            return await handler(request)
        except HyperRuntimeError as error:
            return error_response(error)
        except web.HTTPException as error:
            why = f"{request.method} {request.path}: {error.reason}; {DOCUMENT} lists what there is"
            answer = error_response(RequestError(error.status, why))
            answer.headers.update(
                {name: error.headers[name] for name in ("Allow",) if name in error.headers}
            )
            return answer
        except ConnectionError:
            raise  # the client is gone
        except Exception as error:  # noqa: BLE001 - a bug, which the client must hear of
            log.warning("request failed", path=request.path, traceback=traceback.format_exc())
            return error_response(
                RequestError(500, f"{type(error).__name__}: {error}; please report this bug")
            )

    def _check(self, request: web.Request) -> None:
        """Raise an error if this client may not ask."""
        if not names_this_machine(request.headers.get("Host", "")):
            raise RequestError(
                403, f"host {request.headers.get('Host', '')!r} is not this machine; ask localhost"
            )
        if "Origin" in request.headers:
            raise RequestError(
                403,
                "the service answers no web page; ask from a program, without the header Origin",
            )
        if self._token is None:
            return
        if not is_token(bearer_token(request.headers.get("Authorization", "")), self._token):
            raise RequestError(
                401, "the token is missing or wrong; send the header `Authorization: Bearer TOKEN`"
            )

    async def _send_document(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._document, content_type="application/json", headers=HEADERS)

    def _handle(self, route: Route) -> Handle:
        handler = self._handlers[route.handler]

        async def handle(request: web.Request) -> web.StreamResponse:
            with self._budget.request(runs_command=route.runs_command) as take:
                args, body = await call_parts(route, request, self._limits, take)
                read = piece_reader(request) if route.takes == "archive" else None

                async def run(emit: Emit) -> Answer:
                    answer = await handler(Call("http", args, body, emit, read))
                    take(len(answer.body))
                    return answer

                return await answer_with(route, request, args, run)

        return handle


@asynccontextmanager
async def serving(
    server: HttpServer, service: NodeService, listener: socket.socket
) -> AsyncIterator[None]:
    """Serve on a listening socket inside the block; then end the service and the requests that wait
    for it.
    """
    options: dict[str, Any] = {
        "keepalive_timeout": _KEEP_ALIVE_S,
        "auto_decompress": False,
        "max_line_size": _MOST_LINE_BYTES,
    }
    async with serving_app(
        server.app(), listener, shutdown_s=_SHUTDOWN_S, ends_requests=True, **options
    ) as accepting:
        try:
            yield
        finally:
            accepting.close()
            await service.close()
