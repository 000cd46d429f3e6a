"""The server of a live page: one page, its events and its details, for those who know the token.

Each path begins with the token. A request must name this machine as its host, so that a page of
another site whose name points here reaches nothing (DNS rebinding). There are no cookies, which
other ports of the machine would get. Events are server-sent events. Source: WHATWG HTML, 9.2.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
from aiohttp import web

from hyperruntime.logs import get_logger
from hyperruntime.ports.http_connection import serving_app
from hyperruntime.ports.listeners import names_this_machine
from hyperruntime.report.live.followed import FollowedRun
from hyperruntime.report.page.page import live_page
from hyperruntime.wire.tokens import is_token

log = get_logger(__name__)
T = TypeVar("T")
Version = tuple[int, int]  # of the run: how often it was replaced, and its own
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_SHUTDOWN_S = 1.0
_LOOK_S = 1.0  # between two looks at the journal
_LOOK_EACH_S = 0.04  # more for each viewer: a change costs one message for each
# between two comments on a quiet stream; a failed write shows that the viewer is gone
_ALIVE_S = 15.0
_MOST_VIEWERS = 1000
_MOST_DETAILS = 64  # of entries, kept for the next viewer
_MOST_EVENTS = 64  # for viewers at different positions, kept for the next viewer
_STALE_ROWS = 500  # the cached page is rendered again when it lacks more rows; events bring fewer
_STALE_S = 25.0  # or when it is older and lacks any: without JavaScript a page reloads every 30 s
_FIXED_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@attrs.frozen
class Event:
    """An event for the viewers at one position.

    Attributes:
        data: the event as bytes.
        position: the next position of the viewer; "" if it must load the page again.
        version: of the run.
    """

    data: bytes
    position: str
    version: Version


class LiveServer:
    """Serves the page of one run, and follows the run."""

    def __init__(self, open_run: Callable[[], FollowedRun], token: str) -> None:
        """Make the server; await :meth:`start` before the first request, and run :meth:`follow`
        concurrently.

        Args:
            open_run: returns the run, unread; called again if another run is in the directory.
            token: the first part of every path.
        """
        self._open_run = open_run
        self._token = token
        self._run = open_run()
        self._run_number = 0
        self._lock = asyncio.Lock()  # the run is used by one thread at a time
        self._changed = asyncio.Condition()
        self._events: dict[tuple[str, Version], Event] = {}  # by the position of the viewer
        self._details: dict[str, bytes] = {}
        self._page: tuple[bytes, str] | None = None
        self._page_version = self._viewers = 0
        self._page_made_s = 0.0
        self._told = self._version  # the viewers were told of this one
        self._is_over = False

    def app(self) -> web.Application:
        """Return the application."""
        made = web.Application(middlewares=[self._guard])
        made.router.add_get("/{token}/", self._send_page, allow_head=False)
        made.router.add_get("/{token}/events", self._send_events, allow_head=False)
        made.router.add_get("/{token}/details", self._send_details, allow_head=False)
        return made

    async def start(self) -> None:
        """Read the run for the first time.

        Raises:
            ArchiveError: the run cannot be read.
        """
        await self._with_run(self._run.read_new)

    async def follow(self) -> None:
        """Follow the run until this is cancelled; a run that cannot be read for a moment is read
        later.
        """
        while True:
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001 - or all pages stay as they are, and say that they are live
                log.warning("run not read", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(_LOOK_S + _LOOK_EACH_S * self._viewers)

    async def end(self) -> None:
        """Read the run a last time; all streams then send the last changes and the event
        ``end``.
        """
        try:
            await self._look()
        except Exception as error:  # noqa: BLE001 - the viewers must be told of the end
            log.warning("run not read", error=f"{type(error).__name__}: {error}")
        async with self._changed:
            self._is_over = True
            self._changed.notify_all()

    @property
    def _version(self) -> Version:
        return self._run_number, self._run.version

    async def _look(self) -> None:
        def read() -> None:
            if self._run.was_replaced():
                self._run, self._run_number = self._open_run(), self._run_number + 1
                self._page = None
            self._run.read_new()

        await self._with_run(read)
        if self._version == self._told:
            return
        self._told = self._version
        self._events.clear()
        self._details.clear()
        async with self._changed:
            self._changed.notify_all()

    async def _with_run(self, call: Callable[[], T]) -> T:
        async with self._lock:
            return await asyncio.to_thread(call)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not names_this_machine(request.headers.get("Host", "")):
            return _refusal(
                403, "this server answers only to localhost; open the address that it printed"
            )
        token = request.path.split("/")[1] if request.path.startswith("/") else ""
        if not is_token(token, self._token):
            return _refusal(
                404, "the token is missing or wrong; open the address that `hyperrun watch` printed"
            )
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _refusal(error.status, error.reason)

    async def _send_page(self, request: web.Request) -> web.StreamResponse:
        def make() -> tuple[bytes, str]:
            behind = self._run.version - self._page_version
            age_s = time.monotonic() - self._page_made_s
            if self._page is None or behind > _STALE_ROWS or (behind and age_s >= _STALE_S):
                self._page_version = self._run.version
                self._page_made_s = time.monotonic()
                self._page = live_page(self._run.facts(), self._run.position)
            return self._page

        page, policy = await self._with_run(make)
        headers = {**_FIXED_HEADERS, "Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
        return web.Response(body=page, content_type="text/html", charset="utf-8", headers=headers)

    async def _send_details(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("id", "")
        body = self._details.get(name)
        version = self._version
        if body is None:
            found = await self._with_run(lambda: self._run.details(name))
            if found is None:
                return _refusal(404, "there is no such entry")
            body = await asyncio.to_thread(
                lambda: json.dumps(found, ensure_ascii=False).encode(errors="replace")
            )
            if version == self._version:
                self._details[name] = body
            while len(self._details) > _MOST_DETAILS:
                del self._details[next(iter(self._details))]
        return web.Response(
            body=body, content_type="application/json", charset="utf-8", headers=_FIXED_HEADERS
        )

    async def _send_events(self, request: web.Request) -> web.StreamResponse:
        if self._viewers >= _MOST_VIEWERS:
            return _refusal(503, f"{_MOST_VIEWERS} viewers are connected; close one")
        position = request.headers.get("Last-Event-ID") or request.query.get("after", "0-0")
        response = web.StreamResponse(
            headers={**_FIXED_HEADERS, "Content-Type": "text/event-stream"}
        )
        self._viewers += 1
        try:
            await response.prepare(request)
            await response.write(b"retry: 1000\n\n")
            await self._stream(response, position)
        except ConnectionError:
            pass  # the viewer is gone
        finally:
            self._viewers -= 1
        return response

    async def _stream(self, response: web.StreamResponse, position: str) -> None:
        """Send events until the viewer is gone or the server ends."""
        seen: Version | None = None
        while True:
            if seen != self._version:
                event = await self._event(position)
                seen = event.version
                position = event.position
                await response.write(event.data)
                if not position:
                    return
            if self._is_over:
                await response.write(b"event: end\ndata: {}\n\n")
                return
            if not await self._has_changed(seen):
                await response.write(b": alive\n\n")

    async def _has_changed(self, seen: Version | None) -> bool:
        """Wait for news; return whether there are some."""
        async with self._changed:
            try:
                is_news = lambda: seen != self._version or self._is_over  # noqa: E731 - of this call
                await asyncio.wait_for(self._changed.wait_for(is_news), _ALIVE_S)
            except TimeoutError:
                return False
        return True

    async def _event(self, position: str) -> Event:
        """Return the event for a viewer at a position; viewers at the same one share it."""
        if (known := self._events.get((position, self._version))) is not None:
            return known

        def make() -> Event:
            news = self._run.news(position)
            if news is None:
                return Event(b"event: again\ndata: {}\n\n", "", self._version)
            text = json.dumps(news, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            data = f"id: {self._run.position}\nevent: news\ndata: {text}\n\n".encode(
                errors="replace"
            )
            return Event(data, self._run.position, self._version)

        made = await self._with_run(make)
        self._events[position, made.version] = made
        while len(self._events) > _MOST_EVENTS:
            del self._events[next(iter(self._events))]
        return made


@asynccontextmanager
async def serving(server: LiveServer, listener: socket.socket) -> AsyncIterator[None]:
    """Serve on a listening socket, and follow the run, inside the block."""
    async with serving_app(server.app(), listener, most=2 * _MOST_VIEWERS, shutdown_s=_SHUTDOWN_S):
        following = asyncio.create_task(server.follow())
        try:
            yield
        finally:
            following.cancel()


def _refusal(status: int, why: str) -> web.Response:
    return web.Response(status=status, text=f"{why}\n", headers=_FIXED_HEADERS)
