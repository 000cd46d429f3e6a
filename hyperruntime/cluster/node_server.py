"""The node's end: it dials the head, serves its calls, and ends itself when the head stays away too
long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil

import hyperruntime
from hyperruntime.cluster.config import JOB_BEGAN
from hyperruntime.cluster.head import CLOSE_S, HELLO_S, PATH, Invitation
from hyperruntime.cluster.hello import Facts, Hello, parse_answer
from hyperruntime.cluster.keys import client_context
from hyperruntime.cluster.node_services import (
    NodeContext,
    NodeService,
    NodeSettings,
    all_services,
    close_services,
)
from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.errors import ClusterError, NodeLostError
from hyperruntime.host.owner import NODE_VARIABLE
from hyperruntime.host.process import overload
from hyperruntime.logs import get_logger
from hyperruntime.wire.channel import LARGEST_MESSAGE_BYTES
from hyperruntime.wire.messages import PeerFaultError
from hyperruntime.wire.peer import Answer, Call, Handler, Peer

log = get_logger(__name__)


class ToldToEndError(NodeLostError):
    """The batch system has told the job to end, and the head is away."""


MakeServices = Callable[[NodeContext], Sequence[NodeService]]
# of Slurm, PBS, LSF and Grid Engine
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
_LEAST_DIAL_S = 0.5
_ALONE_S = 5.0  # after SIGTERM, on an idle machine; batch systems kill the job after 30 s or so
_LOOK_S = 0.1


def node_facts() -> Facts:
    """Return the facts that a node reports."""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    job = next((value for name in _JOB_VARIABLES if (value := os.environ.get(name))), "")
    now = time.time()
    age_s = max(0.0, now - _job_began())
    return Facts(host=host, pid=os.getpid(), time=now, job=job, age_s=age_s)


def _job_began() -> float:
    """Return when this process's job began, in seconds since 1970; if that is unknown, when the
    process began.
    """
    try:
        return float(os.environ[JOB_BEGAN])
    except (KeyError, ValueError):
        return psutil.Process().create_time()


def own_version() -> str:
    """Return the version of this library."""
    return hyperruntime.__version__


class NodeServer:
    """Serves the calls of one head until the head is lost.

    Attributes:
        peer: calls the head.
    """

    def __init__(self, invitation: Invitation, handlers: Mapping[str, Handler]) -> None:
        """Connect to nothing yet; must be called on an event loop.

        Args:
            invitation: from :meth:`hyperruntime.cluster.head.Head.invite`.
            handlers: what the head may call.
        """
        self.peer = Peer("head", handlers, self._on_fault)
        self._invitation = invitation
        self._session = uuid.uuid4().hex
        self._context = client_context(invitation.certificate)
        self._fault: PeerFaultError | None = None

    def _on_fault(self, fault: PeerFaultError) -> None:
        self._fault = fault

    async def serve(self) -> None:
        """Connect, and reconnect after each loss, until the head was away for the invitation's
        ``patience_s``.

        Raises:
            ClusterError: the head refuses this node.
            NodeLostError: the head stayed away.
        """
        patience = self._invitation.patience_s
        pause = FIRST_PAUSE_S
        heard = time.monotonic()
        try:
            async with aiohttp.ClientSession() as session:
                while True:
                    for address in self._invitation.addresses:
                        if await self._carry(session, address, heard + patience):
                            heard = time.monotonic()
                            pause = FIRST_PAUSE_S
                        if self._fault is not None:
                            raise NodeLostError(f"the head sent an invalid message: {self._fault}")
                    if time.monotonic() - heard > patience:
                        raise NodeLostError(
                            f"the head did not answer for {patience:g} s at "
                            f"{self._invitation.addresses}"
                        )
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_S)
        finally:
            self.peer.close(NodeLostError("the node server ended"))

    async def _carry(self, session: aiohttp.ClientSession, address: str, until: float) -> bool:
        """Connect once, and carry messages until the connection breaks; return whether there was
        one.

        Args:
            session: makes the connection.
            address: of the head.
            until: when to give up the connecting, by the monotonic clock.
        """
        invitation = self._invitation
        headers = {"Authorization": f"Bearer {invitation.token}", "X-Node": invitation.name}
        patience_s = min(HELLO_S, max(_LEAST_DIAL_S, until - time.monotonic()))
        try:
            async with asyncio.timeout(patience_s) as connecting:
                async with session.ws_connect(
                    f"https://{address}{PATH}",
                    headers=headers,
                    ssl=self._context,
                    heartbeat=invitation.heartbeat_s,
                    max_msg_size=LARGEST_MESSAGE_BYTES,
                    autoping=False,  # the channel answers pings, and counts them
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
                ) as connection:
                    received = await self._hello(connection)
                    connecting.reschedule(None)
                    log.info("head connected", address=address)
                    await self.peer.carry(connection, received)
                    return True
        except aiohttp.WSServerHandshakeError as error:
            if error.status in (401, 410):
                raise ClusterError(
                    f"the head at {address} does not expect node {invitation.name}"
                ) from error
            return False
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.debug("head not reached", address=address, error=str(error))
            return False

    async def _hello(self, connection: aiohttp.ClientWebSocketResponse) -> int:
        channel = self.peer.channel
        hello = Hello(
            version=own_version(),
            session=self._session,
            received=channel.received,
            facts=node_facts(),
        )
        await connection.send_str(hello.to_json())
        try:
            answer = parse_answer(await connection.receive_str(timeout=HELLO_S))
            if answer.refused:
                raise ClusterError(f"the head refuses this node: {answer.refused}")
            channel.check_received(answer.received)
        except (TypeError, PeerFaultError) as error:
            raise OSError(f"the head ended the connection before its hello: {error}") from error
        return answer.received


async def run_node(
    invitation: Invitation, settings: NodeSettings, make_services: MakeServices = all_services
) -> None:
    """Serve a head with all services until it is lost, or says ``end``; then end what the services
    started.

    After SIGTERM (a batch system's notice, such as before a preemption) the head gives this node no
    new work. Running work goes on until the job is killed, or the head says ``end``, or the head is
    away. SIGUSR1 does the same, and results stay valid: nothing in a container got it.

    Args:
        invitation: from the head.
        settings: from the cluster's configuration.
        make_services: makes the services.

    Raises:
        ClusterError: the head refuses this node.
        NodeLostError: the head stayed away, or was away after SIGTERM.
    """
    os.environ[NODE_VARIABLE] = invitation.name
    if settings.logs:
        _log_to(Path(settings.logs, f"{invitation.name}.log"))
    context = NodeContext(settings)
    services = make_services(context)
    ended = asyncio.Event()

    async def end(_: Call) -> Answer:
        ended.set()
        return Answer()

    handlers = {name: handler for service in services for name, handler in service.handlers.items()}
    server = NodeServer(invitation, {**handlers, "end": end})
    context.head = server.peer
    with _noticing_signals(server.peer, context.told_to_end):
        serving = asyncio.ensure_future(server.serve())
        ending = asyncio.ensure_future(ended.wait())
        leaving = asyncio.ensure_future(_leave_alone(server.peer, context.told_to_end))
        ends: set[asyncio.Future[Any]] = {serving, ending, leaving}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            leaving.cancel()
            await close_services(services, context)
            serving.cancel()  # last: while services end, they still report to the head
    with suppress(asyncio.CancelledError):
        await serving
    if leaving.done() and not leaving.cancelled():
        leaving.result()


async def _leave_alone(head: Peer, noticed: asyncio.Event) -> None:
    """Wait until the head is away after SIGTERM: then nobody takes results, or says when to end.

    Raises:
        ToldToEndError: always.
    """
    await noticed.wait()
    heard = time.monotonic()
    while time.monotonic() - heard < _ALONE_S * overload():
        await asyncio.sleep(_LOOK_S)
        if head.channel.is_connected:
            heard = time.monotonic()
    raise ToldToEndError("the batch system ends the job, and the head is away")


def _log_to(path: Path) -> None:
    logger = logging.getLogger("hyperruntime")
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


@contextmanager
def _noticing_signals(head: Peer, noticed: asyncio.Event) -> Iterator[None]:
    """Report SIGTERM to the head once, and set an event; report SIGUSR1, which only this process
    gets (``sbatch --signal=B:USR1@300``). Does nothing outside the main thread.
    """
    telling = BackgroundTasks("the node server")

    def tell() -> None:
        if not noticed.is_set():
            noticed.set()
            telling.start(head.call("leaving", {"why": "the batch system ends its job"}))

    def tell_early() -> None:
        if not telling:
            why = "the batch system sent SIGUSR1, and ends its job soon"
            telling.start(head.call("leaving", {"why": why, "in_time": True}))

    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGTERM, tell)
        loop.add_signal_handler(signal.SIGUSR1, tell_early)
    except (RuntimeError, ValueError):  # not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGUSR1)
        telling.cancel()
