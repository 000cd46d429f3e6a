"""HTTP on a socket: h11 reads and writes it, and a message goes from one side to the other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

import attrs
import h11

from hyperruntime.egress.servers import RefusedError

CHUNK = 128 * 1024
# Source: RFC 9110, section 7.6.1, and what clients of proxies send besides.
_OF_ONE_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization proxy-authenticate te upgrade".split()
)


def _nothing(size: int) -> None:
    pass


@attrs.frozen
class Peer:
    """One side of HTTP.

    Attributes:
        socket: its socket, non-blocking.
        http: its state.
        sent: called with the number of bytes that were sent.
        received: called with the number of bytes that came.
    """

    socket: socket.socket
    http: h11.Connection
    sent: Callable[[int], None] = _nothing
    received: Callable[[int], None] = _nothing

    async def next_event(self) -> Any:  # noqa: ANN401 - of h11
        """Return the next event."""
        loop = asyncio.get_running_loop()
        while (event := self.http.next_event()) is h11.NEED_DATA:
            data = await loop.sock_recv(self.socket, CHUNK)
            self.received(len(data))
            self.http.receive_data(data)
        return event

    async def send(self, event: h11.Event) -> None:
        """Send an event."""
        if data := self.http.send(event):
            self.sent(len(data))
            await asyncio.get_running_loop().sock_sendall(self.socket, data)
        await asyncio.sleep(0)  # others' turn

    async def refuse(self, error: RefusedError) -> None:
        """Answer with an error, if no answer has begun; the connection ends then."""
        if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        text = f"hyperruntime: {error}"
        body = f"{text}\n".encode()
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
        headers.append(("Connection", "close"))
        # most clients show the reason, and not the body
        reason = "".join(letter if " " <= letter <= "~" else "?" for letter in text[:300]).encode()
        await self.send(h11.Response(status_code=error.status, headers=headers, reason=reason))
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())


async def relay(source: Peer, sink: Peer) -> None:
    """Send a message on: a body, or an answer and its body."""
    while True:
        event = await source.next_event()
        if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
            return
        if isinstance(event, h11.Data):
            event = h11.Data(data=event.data)
        elif isinstance(event, h11.Response | h11.InformationalResponse):
            event = type(event)(
                status_code=event.status_code, headers=kept(event.headers), reason=event.reason
            )
        elif isinstance(event, h11.EndOfMessage):
            await sink.send(h11.EndOfMessage())  # without trailers, which a known length excludes
            return
        await sink.send(event)


async def copy(source: socket.socket, sink: socket.socket, count: Callable[[int], None]) -> None:
    """Copy bytes until the end of one side."""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, CHUNK):
        count(len(data))
        await loop.sock_sendall(sink, data)
        await asyncio.sleep(0)  # others' turn: neither call waits while there is data
    with suppress(OSError):  # it has gone
        sink.shutdown(socket.SHUT_WR)


async def end_of(client: socket.socket) -> None:
    """Wait until a client sends its end; what it sends before stays unread."""
    loop = asyncio.get_running_loop()
    while True:
        readable = asyncio.Event()
        loop.add_reader(client, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(client)
        if not client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            return
        await asyncio.sleep(1)  # the next request is there already


async def both(
    upload: Coroutine[Any, Any, None], download: Coroutine[Any, Any, None], *, is_plain: bool
) -> None:
    """Await both directions; the first that fails ends the other one.

    Args:
        upload: to the server.
        download: from the server.
        is_plain: whether the end of the download ends the upload.
    """
    tasks = [asyncio.ensure_future(upload), asyncio.ensure_future(download)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await asyncio.gather(*tasks[1:] if is_plain else tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def kept(headers: Iterable[tuple[bytes, bytes]], *more: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers that go on: not those of one hop, nor those that ``Connection`` names."""
    dropped = _OF_ONE_HOP | set(more)
    for name, value in headers:
        if name == b"connection":
            named = {word.strip().lower() for word in value.split(b",")}
            dropped |= named - {b"host", b"content-length", b"transfer-encoding"}
    return [(name, value) for name, value in headers if name not in dropped]


def parts_of(url: str) -> tuple[str, str]:
    """Return the authority and the rest of a URL.

    Raises:
        RefusedError: it is none of plain HTTP.
    """
    scheme, _, rest = url.partition("://")
    if scheme.lower() != "http":
        raise RefusedError(f"{url[:200]!r} is no URL with http://", 400)
    end = next((place for place, letter in enumerate(rest) if letter in "/?#"), len(rest))
    path = rest[end:].partition("#")[0]
    return rest[:end], path if path.startswith("/") else f"/{path}"
