"""Sessions over streamable HTTP: a client opens one with ``initialize``, and names it in each
request.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.logs import get_logger
from hyperruntime.ports.http_connection import BoundedProtocol
from hyperruntime.wire.tokens import bearer_token, is_token
from hyperruntime_mcp.slot_session import SlotSession

log = get_logger(__name__)
_PATH = "/mcp"
_BODY_BYTES = 16 * 1024**2


class HttpSessions:
    """The ASGI application: checks the token, and passes each request to its session."""

    def __init__(
        self, server: Server[SlotSession], token: str, hosts: Sequence[str], idle_timeout_s: float
    ) -> None:
        """Make an application without sessions; the arguments are those of
        :func:`hyperruntime_mcp.serve`.
        """
        self._server = server
        self._token = token
        self._idle_timeout_s = idle_timeout_s
        names = [
            name
            for host in ("127.0.0.1", "localhost", "[::1]", *hosts)
            for name in (host, f"{host}:*")
        ]
        origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in names]
        self._security = TransportSecuritySettings(allowed_hosts=names, allowed_origins=origins)
        self._limited: ASGIApp = RequestBodyLimitMiddleware(self._handle, _BODY_BYTES)
        self._sessions: dict[str, StreamableHTTPServerTransport] = {}
        self._tasks = BackgroundTasks("the server")

    async def serve(self, listener: socket.socket) -> None:
        """Serve clients until this is cancelled; then all sessions end."""
        web = _WebServer(
            uvicorn.Config(
                self,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=3,
            )
        )
        serving = asyncio.create_task(web.serve(sockets=[listener]))
        try:
            await asyncio.shield(serving)
        finally:
            self._tasks.cancel()
            await self._tasks.wait()
            web.should_exit = True
            with suppress(asyncio.CancelledError):
                await serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. The body of a request without the token is not read."""
        if not self._may(scope):
            refused = {"error": "the bearer token is missing or wrong"}
            await JSONResponse(refused, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
        elif scope["path"] != _PATH:
            await JSONResponse({"error": f"the only path is {_PATH}"}, 404)(scope, receive, send)
        else:
            await self._limited(scope, receive, send)

    def _may(self, scope: Scope) -> bool:
        return is_token(bearer_token(Headers(scope=scope).get("authorization", "")), self._token)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        version = headers.get("mcp-protocol-version")
        name = headers.get("mcp-session-id")
        # its client then begins with initialize
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            why = (
                f"protocol version {version!r} has no sessions; use one of "
                f"{', '.join(HANDSHAKE_PROTOCOL_VERSIONS)}"
            )
            await _refusal(400, -32022, why, supported=HANDSHAKE_PROTOCOL_VERSIONS)(
                scope, receive, send
            )
        elif name is None:
            await self._open(scope, receive, send)
        elif name in self._sessions:
            await self._sessions[name].handle_request(scope, receive, send)
        else:
            await _refusal(404, -32600, "this session has ended; initialize a new one")(
                scope, receive, send
            )

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a session, which ends at once if the request is not a valid ``initialize``."""
        session = StreamableHTTPServerTransport(
            uuid.uuid4().hex, security_settings=self._security, idle_timeout=self._idle_timeout_s
        )
        status = 500
        connected = asyncio.Event()

        async def watch(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        self._tasks.start(self._run(session, connected))
        try:
            await connected.wait()
            await session.handle_request(scope, receive, watch)
        finally:
            if status >= 400:
                await session.terminate()

    async def _run(self, session: StreamableHTTPServerTransport, connected: asyncio.Event) -> None:
        """Run one session until its client ends it, or has been away for too long."""
        name = str(session.mcp_session_id)
        self._sessions[name] = session
        try:
            async with session.connect() as (received, sent):
                assert session.idle_scope is not None, "there is an idle timeout"
                connected.set()
                with session.idle_scope:
                    await self._server.run(
                        received, sent, self._server.create_initialization_options()
                    )
        except Exception as error:  # noqa: BLE001 - one session must not end the others
            log.warning("session failed", session=name, why=str(error))
        finally:
            self._sessions.pop(name, None)
            await session.terminate()


def _refusal(status: int, code: int, why: str, **data: object) -> JSONResponse:
    return JSONResponse(
        {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": why, "data": data}},
        status,
    )


class _WebServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield


class Connection(BoundedProtocol, AutoHTTPProtocol):  # type: ignore[valid-type,misc]
    """A connection of a client."""
