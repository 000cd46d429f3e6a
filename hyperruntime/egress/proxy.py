"""The proxy of one container: HTTP and tunnels for TLS, to the servers of its list."""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import attrs
import h11

from hyperruntime.egress.client_hello import ClientHello
from hyperruntime.egress.peer import CHUNK, Peer, both, copy, end_of, kept, parts_of, relay
from hyperruntime.egress.servers import RefusedError, Server, Servers, Target, check, target_of
from hyperruntime.host.process import overload
from hyperruntime.logs import get_logger
from hyperruntime.network.egress import Egress

log = get_logger(__name__)

MOST_CONNECTIONS = 256
_HEAD_S = 30.0
_ENDED_S = 60.0  # without bytes, after one side has sent its end
# Of one container: a request each, and a refusal each. So no container takes the loop from others,
# and none fills a log.
_REQUEST_S = 0.004
_REFUSAL_S = 0.05
_BURST = MOST_CONNECTIONS
_GONE = (OSError, h11.ProtocolError, TimeoutError)


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


@attrs.define(eq=False)
class _Client:
    """A client of the proxy, and what it does now; without a target, nothing.

    Attributes:
        peer: its side.
        target: the server that it asked for.
        server: the connection to it.
        note: the record of its request.
        idle: ends the request when nothing comes after the end of one side.
        has_end: whether one side has sent its end.
    """

    peer: Peer
    target: Target | None = None
    server: Server | None = None
    note: Connection | None = None
    idle: asyncio.Timeout = attrs.field(factory=lambda: asyncio.timeout(None))
    has_end: bool = False

    def one_has_ended(self) -> None:
        """From now on, the other side must send."""
        self.has_end = True
        self.idle.reschedule(asyncio.get_running_loop().time() + _ENDED_S)


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
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        places = MOST_CONNECTIONS if files < 0 else max(8, min(MOST_CONNECTIONS, files // 16))
        self._places = asyncio.Semaphore(places)
        self._clients: dict[asyncio.Task[None], _Client] = {}
        self._late: asyncio.TimerHandle | None = None
        self._refusing = asyncio.Lock()
        self._next = 0.0
        self.set(egress)
        self._serving = asyncio.create_task(self._serve())

    def set(self, egress: Egress) -> None:
        """Use another list; connections that it does not have end, and the counts begin anew."""
        self.egress = egress
        self._bytes = 0
        self._connections = 0
        self._until = None if egress.limit_s is None else time.monotonic() + egress.limit_s
        for task, client in list(self._clients.items()):
            try:
                if client.target is not None:
                    check(egress, client.target, client.server)
            except RefusedError:
                task.cancel("the list has changed")
        if self._late is not None:
            self._late.cancel()
        if egress.limit_s is not None:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(egress.limit_s, self._end_all, self._over(egress))

    async def close(self) -> None:
        """End all connections, and stop listening."""
        if self._late is not None:
            self._late.cancel()
        tasks = (self._serving, *self._clients)
        for task in tasks:
            task.cancel("the container has ended")
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        self._servers.close()

    def _end_all(self, why: str) -> None:
        for task, client in list(self._clients.items()):
            if client.target is not None:
                task.cancel(why)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._places.acquire()
            try:
                made, _ = await loop.sock_accept(self._listener)
            except OSError:  # no descriptor is left, or the client has gone
                self._places.release()
                await asyncio.sleep(_REFUSAL_S)
                continue
            made.setblocking(False)
            client = _Client(Peer(made, h11.Connection(h11.SERVER)))
            task = asyncio.create_task(self._client(client))
            self._clients[task] = client
            task.add_done_callback(partial(self._left, client))

    def _left(self, client: _Client, task: asyncio.Task[None]) -> None:
        del self._clients[task]
        client.peer.socket.close()  # also if the task was cancelled before it began
        self._places.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("egress failed", container=self._who, kind=type(error).__name__)

    async def _client(self, client: _Client) -> None:
        try:
            while await self._request(client):
                client.peer.http.start_next_cycle()
        except _GONE:
            pass

    async def _request(self, client: _Client) -> bool:
        """Serve one request; return whether another one may follow."""
        refusal: RefusedError | None = None
        event: Any = None
        try:
            async with asyncio.timeout(_HEAD_S * overload()):
                event = await client.peer.next_event()
        except h11.RemoteProtocolError as error:
            refusal = RefusedError(f"this is no request of HTTP: {error}", 400)
        if refusal is None and not isinstance(event, h11.Request):
            return False
        await self._take_turn()
        note = client.note = Connection(container=self._who)
        client.idle = asyncio.timeout(None)
        client.has_end = False
        started = time.monotonic()
        try:
            if refusal is not None:
                raise refusal
            return await self._answer(client, event)
        except RefusedError as error:
            note.refused = str(error)
            async with self._refusing:
                await asyncio.sleep(_REFUSAL_S)
            await client.peer.refuse(error)
            return False
        except asyncio.CancelledError as error:
            note.refused = note.refused or str(error)
            raise
        except _GONE as error:
            if client.server is not None:
                note.refused = note.refused or f"the connection broke off ({type(error).__name__})"
            raise
        finally:
            note.duration_s = time.monotonic() - started
            client.target = None
            client.server = None
            log.debug("egress", **attrs.asdict(note))
            self._ended(note)

    async def _take_turn(self) -> None:
        """Wait until the container may make another request."""
        now = time.monotonic()
        self._next = max(self._next, now - _BURST * _REQUEST_S) + _REQUEST_S
        if self._next > now:
            await asyncio.sleep(self._next - now)

    async def _answer(self, client: _Client, request: h11.Request) -> bool:
        tunnel = request.method == b"CONNECT"
        text = request.target.decode("latin-1")
        path = ""
        if not tunnel:
            text, path = parts_of(text)
            named = {name for name, _ in request.headers}
            if {b"content-length", b"transfer-encoding"} <= named:
                raise RefusedError("a request has its length twice", 400)
        target = target_of(text, None if tunnel else 80)
        assert client.note is not None
        client.note.host = target.host
        client.note.port = target.port
        egress = self.egress
        check(egress, target)
        self._connections += 1
        if why := self._used_up():
            raise RefusedError(why)
        client.target = target
        server = await self._servers.connect(egress, target, tunnel=tunnel)
        with closing(server.socket):
            client.server = server
            client.note.address = server.address
            if self.egress is not egress:
                check(self.egress, target, server)
            if tunnel:
                await self._tunnel(client, server, target)
                return False
            return await self._plain(client, server, request, target, path)

    @staticmethod
    def _over(egress: Egress) -> str:
        return f"its {egress.limit_s:g} s are over"

    def _used_up(self) -> str:
        egress = self.egress
        if self._until is not None and time.monotonic() >= self._until:
            return self._over(egress)
        if egress.limit_bytes is not None and self._bytes >= egress.limit_bytes:
            return f"its {egress.limit_bytes} bytes are used up"
        if egress.limit_connections is not None and self._connections > egress.limit_connections:
            return f"its {egress.limit_connections} connections are used up"
        return ""

    def _count(self, client: _Client, size: int, *, sent: bool) -> None:
        """Count bytes to or from a server.

        Raises:
            RefusedError: there may be no more.
        """
        note = client.note
        assert note is not None
        if sent:
            note.sent_bytes += size
        else:
            note.received_bytes += size
        if client.has_end:
            client.one_has_ended()
        self._bytes += size
        limit = self.egress.limit_bytes
        if limit is not None and self._bytes > limit:
            raise RefusedError(f"its {limit} bytes are used up")

    async def _tunnel(self, client: _Client, server: Server, target: Target) -> None:
        peer = client.peer
        await peer.next_event()  # the end of the request
        done = h11.Response(status_code=200, headers=[], reason=b"Connection established")
        await peer.send(done)
        first = await _first_message(peer, target)
        count = partial(self._count, client)
        count(len(first), sent=True)
        await asyncio.get_running_loop().sock_sendall(server.socket, first)

        async def to_server() -> None:
            await copy(peer.socket, server.socket, partial(count, sent=True))
            client.one_has_ended()

        async def from_server() -> None:
            await copy(server.socket, peer.socket, partial(count, sent=False))
            client.one_has_ended()

        async with client.idle:
            await both(to_server(), from_server(), is_plain=False)

    async def _plain(
        self, client: _Client, server: Server, request: h11.Request, target: Target, path: str
    ) -> bool:
        """Send one request on, on a connection of its own, and its answer back."""
        host = target.host if target.port == 80 else str(target)
        headers = [(b"Host", host.encode()), *kept(request.headers, b"host")]
        headers.append((b"Connection", b"close"))
        if server.proxy is not None:
            path = f"http://{target}{path}"
            if server.login:
                headers.append((b"Proxy-Authorization", server.login.encode()))
        count = partial(self._count, client)
        origin = Peer(
            server.socket,
            h11.Connection(h11.CLIENT),
            partial(count, sent=True),
            partial(count, sent=False),
        )
        await origin.send(h11.Request(method=request.method, target=path, headers=headers))

        async def upload() -> None:
            await relay(client.peer, origin)
            await end_of(client.peer.socket)
            client.one_has_ended()

        http = client.peer.http
        try:
            async with client.idle:
                await both(upload(), relay(origin, client.peer), is_plain=True)
        except (h11.RemoteProtocolError, OSError) as error:
            if http.our_state is not h11.SEND_RESPONSE:
                raise
            raise RefusedError(f"{target} broke the connection off: {error}", 502) from error
        return http.our_state is h11.DONE and http.their_state is h11.DONE


async def _first_message(client: Peer, target: Target) -> bytes:
    """Return the first message of a TLS client that names the target.

    Raises:
        RefusedError: it names another server, or none.
    """
    loop = asyncio.get_running_loop()
    first, _ = client.http.trailing_data
    hello = ClientHello()
    why = hello.feed(first) if first else ""
    try:
        async with asyncio.timeout(_HEAD_S * overload()):
            while not why and not hello.is_read:
                piece = await loop.sock_recv(client.socket, CHUNK)
                first += piece
                why = hello.feed(piece) if piece else "it closed before it named a server"
    except TimeoutError:
        why = "it did not name a server in time"
    if not why and target.address is None:
        is_same = (hello.name or "").lower().removesuffix(".") == target.host
        named = "no server" if hello.name is None else repr(hello.name)
        why = "" if is_same else f"it names {named}"
    elif not why and hello.name is not None:
        why = f"it names {hello.name!r}"
    if why:
        if hello.is_read:
            await loop.sock_sendall(client.socket, hello.alert)
        raise RefusedError(f"the TLS client of {target}: {why}")
    return first
