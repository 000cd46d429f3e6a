"""The head's end of the connections: it listens, admits nodes that have a token, and notices which
are lost.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress

import attrs
from aiohttp import WSMsgType, web

import hyperruntime
from hyperruntime.cluster.hello import (
    Facts,
    Hello,
    HelloAnswer,
    OtherVersionError,
    parse_hello,
)
from hyperruntime.cluster.keys import make_keys
from hyperruntime.errors import ClusterError, NodeLostError
from hyperruntime.logs import get_logger
from hyperruntime.ports.http_connection import serving_app
from hyperruntime.wire.channel import LARGEST_MESSAGE_BYTES
from hyperruntime.wire.checks import Line
from hyperruntime.wire.messages import PeerFaultError
from hyperruntime.wire.peer import Answer, Call, Handler, Peer
from hyperruntime.wire.tokens import bearer_token, is_token, new_token

log = get_logger(__name__)

PATH = "/node"
HELLO_S = 10.0  # for a client to send its request, and then its hello
MOST_CONNECTIONS = 1 << 14
CLOSE_S = 1.0  # for the other side to answer the end of a connection, which may be dead
HEAD_ENDED = "the head ended"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MOST_NODES = 1 << 14


@attrs.frozen
class Invitation:
    """Address of the head, with the node's token: secret.

    Attributes:
        name: of the node.
        addresses: of the head, as ``host:port``; the node tries them in turn.
        certificate: of the head, PEM.
        token: of this node.
        heartbeat_s: seconds between two heartbeats.
        patience_s: seconds that a connection may be away.
    """

    name: str
    addresses: tuple[str, ...]
    certificate: str
    token: str = attrs.field(repr=False)
    heartbeat_s: float
    patience_s: float


@attrs.frozen(kw_only=True)
class _Leaving:
    """The arguments of ``leaving``: why a node takes no new work.

    Attributes:
        why: in words.
        in_time: whether what runs there may be finished: only the node server got a signal.
    """

    why: str = attrs.field(validator=Line(500))
    in_time: bool = False


class Node:
    """A node as the head knows it.

    Attributes:
        name: its name, given by the head.
        peer: calls it.
        facts: what it reported about itself.
        joined: set when it has connected, or is lost; waits with :meth:`asyncio.Event.wait`.
        lost: the reason why it is gone; None while it is there, or may come back.
        leaving: why it takes no new work: it was told to end, or its time is nearly over; "" if it
            does.
        dismissed: whether the head told it to end.
        job_ends_at: when the batch system told its job to end, by the event loop's clock; None if
            it did not. Processes in containers may have got SIGTERM too, so their results are not
            valid from then on.
        uses: how much work it has, see :meth:`in_use`.
        idle_since: when it last became idle, by the event loop's clock.
        ended: whether it is lost for good.
        is_ready: whether it has all that it needs for work.
        job_began: when its job began, by the event loop's clock.
    """

    def __init__(self, name: str, token: str, handlers: Mapping[str, Handler]) -> None:
        """Expect a node."""
        self.name = name
        self.peer = Peer(name, handlers, self._on_fault)
        self.facts = Facts()
        self.joined = asyncio.Event()
        self.lost: NodeLostError | None = None
        self.leaving = ""
        self.dismissed = False
        self.uses = 0
        self.idle_since = 0.0
        self.ended = asyncio.Event()
        self.is_ready = False
        self.job_ends_at: float | None = None
        self.job_began = 0.0
        self._on_leaving: list[Callable[[], None]] = []
        self._token = token
        self._session = ""
        self._connections = 0
        self._away: asyncio.TimerHandle | None = None
        self._on_lost: list[Callable[[NodeLostError], None]] = []
        self._was_refused = False

    def has_token(self, token: str) -> bool:
        """Return whether a token is this node's."""
        return is_token(token, self._token)

    def is_known_as(self, session: str) -> bool:
        """Return whether a session is that of the process that connected first; the first call sets
        it.
        """
        self._session = self._session or session
        return session == self._session

    async def carry(
        self, connection: web.WebSocketResponse, received: int, patience_s: float
    ) -> None:
        """Carry messages over a connection until it ends; the node is then away, and lost after
        ``patience_s``.

        A node that the head has told to end is lost at once.

        Args:
            connection: after the hello.
            received: the number of the last frame that the node has.
            patience_s: how long it may be away.
        """
        if self._away is not None:
            self._away.cancel()
        self._connections += 1
        mine = self._connections
        log.info("node connected", node=self.name, host=self.facts.host, again=self.joined.is_set())
        self.job_began = asyncio.get_running_loop().time() - self.facts.age_s
        self.joined.set()
        await self.peer.carry(connection, received)
        if mine == self._connections and self.dismissed:
            self.lose("it has ended")
        elif mine == self._connections and self.lost is None:
            why = f"no connection for {patience_s:g} s"
            self._away = asyncio.get_running_loop().call_later(patience_s, self.lose, why)
            log.info("node away", node=self.name, patience_s=patience_s)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the node from being given back as idle during a block."""
        self.uses += 1
        try:
            yield
        finally:
            self.uses -= 1
            self.idle_since = asyncio.get_running_loop().time()

    def leave(self, why: str) -> None:
        """Give it no new work from now on; running work may finish in the time that is left."""
        if not self.leaving:
            self.leaving = why
            log.info("node leaving", node=self.name, why=why)
            for function in self._on_leaving:
                function()

    def on_leaving(self, function: Callable[[], None]) -> None:
        """Call a function once when the node takes no new work; at once if it does not."""
        if self.leaving:
            function()
        else:
            self._on_leaving.append(function)

    def on_lost(self, function: Callable[[NodeLostError], None]) -> None:
        """Call a function once when the node is lost; at once if it is."""
        if self.lost is not None:
            function(self.lost)
        else:
            self._on_lost.append(function)

    def refuse(self, fault: PeerFaultError) -> None:
        """Log why a connection with this node's token was refused; the first time as a warning."""
        level = log.debug if self._was_refused else log.warning
        self._was_refused = True
        level("node refused", node=self.name, why=str(fault))

    def _on_fault(self, fault: PeerFaultError) -> None:
        self.lose(f"it sent an invalid message: {fault}")

    def lose(self, why: str) -> None:
        """Mark the node as lost: its calls fail, and it may not come back."""
        if self.lost is None:
            self.lost = NodeLostError(
                f"node {self.name} ({self.facts.host or 'not joined'}) is lost: {why}"
            )
            level = (
                log.warning
                if self.joined.is_set() and not self.dismissed and why != HEAD_ENDED
                else log.info
            )
            level("node lost", node=self.name, host=self.facts.host, why=why)
            if self._away is not None:
                self._away.cancel()
            self.peer.close(self.lost)
            for function in self._on_lost:
                function(self.lost)
            self.joined.set()
            self.ended.set()


class Head:
    """Listens for nodes, from :meth:`start` to :meth:`stop`. All methods run on one event loop.

    Attributes:
        nodes: all nodes that were expected, by name.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler] | None = None,
        *,
        heartbeat_s: float = 5.0,
        patience_s: float = 30.0,
    ) -> None:
        """Listen nowhere yet.

        Args:
            handlers: what nodes may call.
            heartbeat_s: seconds between two heartbeats on a connection.
            patience_s: seconds that a node may be away before it is lost.
        """
        self.nodes: dict[str, Node] = {}
        self._handlers = {**(handlers or {}), "leaving": self._leaving}
        self._heartbeat_s = heartbeat_s
        self._patience_s = patience_s
        self._serving = AsyncExitStack()
        self._open_token = ""
        self._on_guest: Callable[[Node], None] = lambda _: None
        self._addresses: tuple[str, ...] = ()
        self._certificate = ""

    def connected(self) -> list[Node]:
        """Return the nodes that are there, also those that take no new work."""
        return [node for node in self.nodes.values() if node.joined.is_set() and node.lost is None]

    async def start(self, host: str, port: int = 0) -> None:
        """Make keys and listen.

        Args:
            host: address of this machine that nodes can reach.
            port: 0 means any free one.

        Raises:
            ClusterError: no keys can be made, or the address cannot be used.
        """
        self._certificate, context = await asyncio.to_thread(make_keys)
        app = web.Application()
        app.router.add_get(PATH, self._connected)
        try:
            listener = await _listen(host, port)
        except OSError as error:
            step = "name another address or port"
            raise ClusterError(
                f"the head cannot listen on {host}:{port}: {error.strerror or error}; {step}"
            ) from error
        self._addresses = (f"{host}:{listener.getsockname()[1]}",)
        serving = serving_app(
            app,
            listener,
            most=MOST_CONNECTIONS,
            client_s=HELLO_S,
            shutdown_s=CLOSE_S,
            may_upgrade=True,
            tls=context,
            keepalive_timeout=0.0,
        )
        await self._serving.enter_async_context(serving)
        log.info("head listens", addresses=self._addresses)

    async def stop(self) -> None:
        """Close all connections; nodes that are there are lost. May be called again."""
        for node in self.nodes.values():
            node.lose(HEAD_ENDED)
        await self._serving.aclose()

    def serve(self, handlers: Mapping[str, Handler]) -> None:
        """Let all nodes call more methods, connected ones too.

        Args:
            handlers: by names that are not in use.
        """
        self._handlers.update(handlers)

    def stop_serving(self, handlers: Mapping[str, Handler]) -> None:
        """Remove methods that :meth:`serve` added."""
        for name in handlers:
            self._handlers.pop(name, None)

    def invite(self, name: str) -> Invitation:
        """Expect a node, and return its invitation, with which it may connect again and again until
        it is lost.
        """
        token = new_token()
        self.nodes[name] = Node(name, token, self._handlers)
        return self._invitation(name, token)

    def invite_all(self, on_guest: Callable[[Node], None]) -> Invitation:
        """Return an invitation for any number of nodes, each under a name of its own choice.

        Args:
            on_guest: called with each new one.
        """
        self._open_token = new_token()
        self._on_guest = on_guest
        return self._invitation("", self._open_token)

    def _invitation(self, name: str, token: str) -> Invitation:
        return Invitation(
            name, self._addresses, self._certificate, token, self._heartbeat_s, self._patience_s
        )

    def _guest(self, name: str, token: str) -> Node | None:
        """Return a new node with the invitation for all; None if it has another token."""
        is_known = self._open_token and is_token(token, self._open_token)
        if not is_known or not _NAME.fullmatch(name) or len(self.nodes) >= _MOST_NODES:
            return None
        node = self.nodes[name] = Node(name, token, self._handlers)
        self._on_guest(node)
        return node

    async def _leaving(self, call: Call) -> Answer:
        node = self.nodes[call.caller]
        leaving = call.values(_Leaving)
        if not leaving.in_time:
            node.job_ends_at = node.job_ends_at or asyncio.get_running_loop().time()
        node.leave(leaving.why)
        return Answer()

    async def _connected(self, request: web.Request) -> web.StreamResponse:
        name = request.headers.get("X-Node", "")
        token = bearer_token(request.headers.get("Authorization", ""))
        node = self.nodes.get(name) or self._guest(name, token)
        if node is None or not node.has_token(token):
            raise web.HTTPUnauthorized
        if node.lost is not None:
            raise web.HTTPGone(text=str(node.lost))
        connection = web.WebSocketResponse(
            heartbeat=self._heartbeat_s,
            max_msg_size=LARGEST_MESSAGE_BYTES,
            compress=False,
            timeout=CLOSE_S,
            autoping=False,  # the channel answers pings, and counts them
        )
        await connection.prepare(request)
        hello = None
        # it closed the connection, or said nothing in time; a node dials again
        with suppress(OSError):
            hello = await self._hello(node, connection)
        if hello is not None:
            node.facts = hello.facts
            await node.carry(connection, hello.received, self._patience_s)
        return connection

    async def _hello(self, node: Node, connection: web.WebSocketResponse) -> Hello | None:
        """Exchange what each side has; return the node's hello, or None if it is refused."""
        message = await connection.receive(HELLO_S)
        if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
            return None
        channel = node.peer.channel
        try:
            hello = parse_hello(message.data, hyperruntime.__version__)
            if not node.is_known_as(hello.session):
                raise PeerFaultError("another process has this node's token")
            channel.check_received(hello.received)
        except OtherVersionError as error:
            node.lose(str(error))
            refused = HelloAnswer(refused=f"{error}; install the same version on both")
        except PeerFaultError as error:
            node.refuse(error)
            refused = HelloAnswer(refused=str(error))
        else:
            await connection.send_str(HelloAnswer(received=channel.received).to_json())
            return hello
        await connection.send_str(refused.to_json())
        await connection.close()
        return None


async def _listen(host: str, port: int) -> socket.socket:
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, address = found[0]
    return socket.create_server(address, family=family)


def own_address() -> str:
    """Return the address of the interface with the default route, or 127.0.0.1 if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; a documentation address (RFC 5737)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
