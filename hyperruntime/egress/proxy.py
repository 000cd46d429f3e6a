"""The proxy of one container: HTTP and tunnels for TLS, to the servers of its list."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import closing
from functools import partial
from typing import Any, cast

import attrs
import h11

from hyperruntime.egress.client_hello import ClientHello
from hyperruntime.egress.servers import RefusedError, Server, Servers, Target, check, target_of
from hyperruntime.host.process import overload
from hyperruntime.logs import get_logger
from hyperruntime.network.egress import Egress

log = get_logger(__name__)

MOST_CONNECTIONS = 256
_CHUNK = 128 * 1024
_HEAD_S = 30.0
_REFUSAL_S = 0.05  # before the answer: who asks again at once fills no log
_GONE = (OSError, h11.ProtocolError, TimeoutError)
# Source: RFC 9110, section 7.6.1, and what clients of proxies send besides.
_OF_ONE_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization proxy-authenticate te upgrade".split()
)


@attrs.define(kw_only=True)
class Connection:
    """What one connection, or one request of plain HTTP, was.

    Attributes:
        container: the container's name.
        host: name or address that the client asked for.
        port: port that it asked for.
        address: address that was reached; "" if none was.
        sent_bytes: bytes to the server.
        received_bytes: bytes from the server.
        duration_s: seconds from its begin to its end.
        refused: why it was refused or ended; "" if it was not.
        time: Unix time in seconds of its begin.

    Example:
        >>> Connection(container="c", host="pypi.org", port=443).refused
        ''
    """

    container: str
    host: str = ""
    port: int = 0
    address: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0
    duration_s: float = 0.0
    refused: str = ""
    time: float = attrs.field(factory=time.time)


class Proxy:
    """Serves the clients of one container, in an event loop."""

    def __init__(
        self, listener: socket.socket, egress: Egress, who: str, ended: Callable[[Connection], None]
    ) -> None:
        """Serve until :meth:`close`.

        Args:
            listener: a listening socket, non-blocking; it is closed at the end.
            egress: the list.
            who: the container's name.
            ended: called with each connection that has ended, or was refused.
        """
        self._listener = listener
        self._who = who
        self._ended = ended
        self._servers = Servers()
        self._places = asyncio.Semaphore(MOST_CONNECTIONS)
        self._clients: dict[asyncio.Task[None], Target] = {}
        self.set(egress)
        self._serving = asyncio.create_task(self._serve())

    def set(self, egress: Egress) -> None:
        """Use another list; connections that it does not have end, and the counts begin anew."""
        self.egress = egress
        self._bytes = 0
        self._connections = 0
        self._until = None if egress.limit_s is None else time.monotonic() + egress.limit_s
        for task, target in list(self._clients.items()):
            try:
                if target.host:
                    check(egress, target)
            except RefusedError:
                task.cancel("the list has changed")
        if egress.limit_s is not None:
            asyncio.get_running_loop().call_later(egress.limit_s, self._end_late)

    async def close(self) -> None:
        """End all connections, and stop listening."""
        tasks = (self._serving, *self._clients)
        for task in tasks:
            task.cancel("the container has ended")
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        self._servers.close()

    def _end_late(self) -> None:
        if self._until is not None and time.monotonic() >= self._until:
            for task in [task for task, target in self._clients.items() if target.host]:
                task.cancel(self._used_up())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._places.acquire()
            try:
                client, _ = await loop.sock_accept(self._listener)
            except OSError:  # no descriptor is left, or the client has gone
                self._places.release()
                await asyncio.sleep(_REFUSAL_S)
                continue
            client.setblocking(False)
            task = asyncio.create_task(self._client(client))
            self._clients[task] = Target("", 0)
            task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        del self._clients[task]
        self._places.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("egress failed", container=self._who, error=repr(error))

    async def _client(self, client: socket.socket) -> None:
        with closing(client):
            peer = _Peer(client, h11.Connection(h11.SERVER))
            try:
                while await self._request(peer):
                    peer.http.start_next_cycle()
            except _GONE:
                pass

    async def _request(self, client: _Peer) -> bool:
        """Serve one request; return whether another one may follow."""
        note = Connection(container=self._who)
        started = time.monotonic()
        try:
            async with asyncio.timeout(_HEAD_S * overload()):
                request = await client.next_event()
        except h11.RemoteProtocolError as error:
            await _refuse(client, RefusedError(f"this is no request of HTTP: {error}", 400))
            return False
        if not isinstance(request, h11.Request):
            return False
        try:
            try:
                return await self._answer(client, request, note)
            except RefusedError as error:
                note.refused = str(error)
                await asyncio.sleep(_REFUSAL_S)
                await _refuse(client, error)
                return False
            except asyncio.CancelledError as error:
                note.refused = note.refused or str(error)
                raise
        finally:
            note.duration_s = time.monotonic() - started
            self._clients[cast("asyncio.Task[None]", asyncio.current_task())] = Target("", 0)
            log.debug("egress", **attrs.asdict(note))
            self._ended(note)

    async def _answer(self, client: _Peer, request: h11.Request, note: Connection) -> bool:
        tunnel = request.method == b"CONNECT"
        text = request.target.decode("latin-1")
        path = ""
        if not tunnel:
            text, path = _parts(text)
            named = {name for name, _ in request.headers}
            if {b"content-length", b"transfer-encoding"} <= named:
                raise RefusedError("a request has its length twice", 400)
        target = target_of(text, None if tunnel else 80)
        note.host = target.host
        note.port = target.port
        check(self.egress, target)
        self._connections += 1
        if why := self._used_up():
            raise RefusedError(why)
        self._clients[cast("asyncio.Task[None]", asyncio.current_task())] = target
        server = await self._servers.connect(self.egress, target, tunnel=tunnel)
        with closing(server.socket):
            note.address = server.address
            if tunnel:
                await self._tunnel(client, server, target, note)
                return False
            return await self._plain(client, server, request, target, path, note)

    def _used_up(self) -> str:
        egress = self.egress
        if self._until is not None and time.monotonic() >= self._until:
            return f"its {egress.limit_s:g} s are over"
        if egress.limit_bytes is not None and self._bytes >= egress.limit_bytes:
            return f"its {egress.limit_bytes} bytes are used up"
        if egress.limit_connections is not None and self._connections > egress.limit_connections:
            return f"its {egress.limit_connections} connections are used up"
        return ""

    def _count(self, note: Connection, direction: str, size: int) -> None:
        """Count bytes.

        Raises:
            RefusedError: there may be no more.
        """
        setattr(note, direction, getattr(note, direction) + size)
        self._bytes += size
        limit = self.egress.limit_bytes
        if limit is not None and self._bytes > limit:
            note.refused = f"its {limit} bytes are used up"
            raise ConnectionAbortedError(note.refused)

    async def _tunnel(
        self, client: _Peer, server: Server, target: Target, note: Connection
    ) -> None:
        loop = asyncio.get_running_loop()
        await client.send(
            h11.Response(status_code=200, headers=[], reason=b"Connection established")
        )
        first, _ = client.http.trailing_data
        hello = ClientHello()
        why = hello.feed(first) if first else ""
        try:
            async with asyncio.timeout(_HEAD_S * overload()):
                while not why and not hello.is_read:
                    piece = await loop.sock_recv(client.socket, _CHUNK)
                    first += piece
                    why = hello.feed(piece) if piece else "it closed before it named a server"
        except TimeoutError:
            why = "it did not name a server in time"
        if not why:
            why = _other_name(hello.name, target)
        if why:
            note.refused = f"the TLS client of {target}: {why}"
            if hello.is_read:
                await loop.sock_sendall(client.socket, hello.alert)
            return
        await loop.sock_sendall(server.socket, first)
        self._count(note, "sent_bytes", len(first))
        await _both(
            self._copy(client.socket, server.socket, partial(self._count, note, "sent_bytes")),
            self._copy(server.socket, client.socket, partial(self._count, note, "received_bytes")),
        )

    async def _copy(
        self, source: socket.socket, sink: socket.socket, count: Callable[[int], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(source, _CHUNK):
            count(len(data))
            await loop.sock_sendall(sink, data)
            await asyncio.sleep(0)  # others' turn: neither call waits while there is data
        sink.shutdown(socket.SHUT_WR)

    async def _plain(
        self,
        client: _Peer,
        server: Server,
        request: h11.Request,
        target: Target,
        path: str,
        note: Connection,
    ) -> bool:
        """Send one request on, on a connection of its own, and its answer back."""
        host = target.host if target.port == 80 else str(target)
        headers = [
            (b"Host", host.encode()),
            *_kept(request.headers, b"host"),
            (b"Connection", b"close"),
        ]
        if server.proxy is not None:
            path = f"http://{target}{path}"
            if server.login:
                headers.append((b"Proxy-Authorization", server.login.encode()))
        origin = _Peer(server.socket, h11.Connection(h11.CLIENT))
        await origin.send(h11.Request(method=request.method, target=path, headers=headers))
        upload = _relay(client, origin, partial(self._count, note, "sent_bytes"))
        download = _relay(origin, client, partial(self._count, note, "received_bytes"))
        try:
            await _both(upload, download, ends_with_answer=True)
        except h11.RemoteProtocolError as error:
            if client.http.our_state is not h11.SEND_RESPONSE:
                raise
            raise RefusedError(f"{target} sent no HTTP: {error}", 502) from error
        return client.http.our_state is h11.DONE and client.http.their_state is h11.DONE


class _Peer:
    """One side of HTTP: a socket, and its state."""

    def __init__(self, sock: socket.socket, http: h11.Connection) -> None:
        self.socket = sock
        self.http = http

    async def next_event(self) -> Any:  # noqa: ANN401 - of h11
        loop = asyncio.get_running_loop()
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await loop.sock_recv(self.socket, _CHUNK))
        return event

    async def send(self, event: h11.Event) -> None:
        if data := self.http.send(event):
            await asyncio.get_running_loop().sock_sendall(self.socket, data)
        await asyncio.sleep(0)


async def _relay(source: _Peer, sink: _Peer, count: Callable[[int], None]) -> None:
    """Send a message on: a body, or an answer and its body."""
    while True:
        event = await source.next_event()
        if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
            return
        if isinstance(event, h11.Data):
            count(len(event.data))
            event = h11.Data(data=event.data)
        elif isinstance(event, h11.Response | h11.InformationalResponse):
            event = type(event)(
                status_code=event.status_code, headers=_kept(event.headers), reason=event.reason
            )
        elif isinstance(event, h11.EndOfMessage):
            await sink.send(h11.EndOfMessage())  # without trailers, which a known length excludes
            return
        await sink.send(event)


def _parts(url: str) -> tuple[str, str]:
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


def _kept(headers: Iterable[tuple[bytes, bytes]], *more: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers that go on: not those of one hop, nor those that ``Connection`` names."""
    dropped = _OF_ONE_HOP | set(more)
    for name, value in headers:
        if name == b"connection":
            dropped |= {word.strip().lower() for word in value.split(b",")} - {b"host"}
    return [(name, value) for name, value in headers if name not in dropped]


def _other_name(name: str | None, target: Target) -> str:
    if target.address is None:
        is_same = name is not None and name.lower().removesuffix(".") == target.host
        return "" if is_same else f"it names {'no server' if name is None else repr(name)}"
    return "" if name is None else f"it names {name!r}"


async def _refuse(client: _Peer, error: RefusedError) -> None:
    if client.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    text = f"hyperruntime: {error}"
    body = f"{text}\n".encode()
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
    headers.append(("Connection", "close"))
    # most clients show the reason, and not the body
    reason = "".join(letter if " " <= letter <= "~" else "?" for letter in text[:300])
    await client.send(
        h11.Response(status_code=error.status, headers=headers, reason=reason.encode())
    )
    await client.send(h11.Data(data=body))
    await client.send(h11.EndOfMessage())


async def _both(
    upload: Coroutine[Any, Any, None],
    download: Coroutine[Any, Any, None],
    *,
    ends_with_answer: bool = False,
) -> None:
    """Await both directions; the first that fails ends the other one.

    Args:
        upload: to the server.
        download: from the server.
        ends_with_answer: whether what is sent on after the answer is cut.
    """
    tasks = [asyncio.ensure_future(upload), asyncio.ensure_future(download)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await asyncio.gather(*tasks[1:] if ends_with_answer else tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
