"""The egress of one container: its proxy on this machine, and the way to it inside."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Full, Queue
from typing import TYPE_CHECKING

from hyperruntime.concurrency.bridge import Bridge
from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.errors import (
    ContainerStateError,
    HyperRuntimeError,
    SpecError,
    StorageError,
    UnsupportedOptionError,
)
from hyperruntime.logs import get_logger
from hyperruntime.network.egress import Egress
from hyperruntime.ports.forward import Run
from hyperruntime.ports.listeners import listen_in
from hyperruntime.ports.way_out import WayOut
from hyperruntime.spec import ContainerSpec, Mount

if TYPE_CHECKING:
    from hyperruntime.egress.proxy import Connection, Proxy

log = get_logger(__name__)

_CALL_S = 30.0
_loop = PerProcess(
    lambda: Bridge("hyperruntime-egress", lambda why: ContainerStateError(f"the egress {why}"))
)
_GROUP = "hyperruntime-egress"
_MOST_KEPT = 10_000
_AGAIN_S = 30.0  # after a forwarder that did not start
_OWN = "localhost,127.0.0.1,::1"


class ContainerEgress:
    """The part of a container that reaches the servers of a list; see docs/egress.md."""

    spec: ContainerSpec
    _way_out: EgressWay

    @property
    def egress(self) -> Egress | None:
        r"""The servers that it may reach; None means none.

        It may be set while the container runs: connections that the new list does not have end, and
        its limits count anew.

        Raises:
            SpecError: on setting: it is no list, or the container has another network.
            UnsupportedOptionError: on setting: the image has no Python 3.

        Example:
            >>> with runtime.container(spec) as container:
            ...     container.egress = hr.Egress(allow=("pypi.org",))
            ...     container.exec(["sh", "-c", "echo $no_proxy"]).stdout
            b'localhost,127.0.0.1,::1\n'
        """
        return self._way_out.egress

    @egress.setter
    def egress(self, egress: Egress | None) -> None:
        given: object = egress
        if not isinstance(given, Egress | None):
            raise SpecError("egress", given, "an Egress, or None")
        if egress is not None and self.spec.network in ("host", "bridge"):
            allowed = "none; a list is for a container that has no other network"
            raise SpecError("egress", self.spec.network, allowed)
        self._way_out.set(egress)

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The last 10,000 connections through its lists that have ended, or were refused."""
        return tuple(self._way_out.connections)

    def on_connection(self, listener: Callable[[Connection], None]) -> None:
        """Call ``listener`` with each connection through the list when it has ended, or was
        refused.

        It is called in a thread of its own, one connection after another; it may neither change
        the list nor close the container.
        """
        self._way_out.listen(listener)


class EgressWay:
    """What a container's egress is made of; nothing is started before the first list.

    Attributes:
        egress: the list, or None.
        connections: the last ones.
    """

    def __init__(
        self,
        spec: ContainerSpec,
        name: str,
        engine: str,
        run: Run,
        end_group: Callable[[str], bool],
        exchange: Mount,
    ) -> None:
        """Prepare.

        Args:
            spec: the container's spec.
            name: its name.
            engine: the engine's name, for errors.
            run: runs a command in it, without the variables of :meth:`env`.
            end_group: ends the commands of a group in it.
            exchange: its exchange directory.
        """
        self.egress: Egress | None = None
        self._listeners: list[Callable[[Connection], None]] = []
        self.connections: deque[Connection] = deque(maxlen=_MOST_KEPT)
        self._spec = spec
        self._name = name
        self._engine = engine
        self._run = run
        self._end_group = end_group
        self._exchange = exchange
        self._socket = f"egress-{secrets.token_hex(8)}"
        self._lock = threading.Lock()  # of the list and its proxy
        self._starting = threading.Lock()  # of the forwarder
        self._pid = os.getpid()
        self._is_closed = False
        self._port = 0
        self._ended = ""
        self._not_before = 0.0
        self._notes: Queue[Connection | None] | None = None
        self._listening: threading.Thread | None = None
        self._proxy: Proxy | None = None
        self._way: WayOut | None = None

    def set(self, egress: Egress | None) -> None:
        """Use a list; see :attr:`ContainerEgress.egress`."""
        if self._listening is not None and threading.current_thread() is self._listening:
            raise ContainerStateError(
                "a listener of connections cannot change the list; do it in another thread"
            )
        with self._lock:
            if os.getpid() != self._pid or self._is_closed:
                raise ContainerStateError(
                    f"container {self._name} is closed, or belongs to the parent of this process"
                )
            before = self.egress
            self._use(egress)
        if egress is None:
            return
        if not self._start().port:
            with self._lock:
                self._use(before)
            why = f"the forwarder of its list does not run in {self._spec.image!r}: "
            raise UnsupportedOptionError(self._engine, "network", f"{why}{self._ended}")

    def _use(self, egress: Egress | None) -> None:
        if self._proxy is None and egress is not None:
            self._proxy = self._open(egress)
        elif self._proxy is not None:
            _loop.get().run(_set(self._proxy, egress or Egress(allow=())), _CALL_S)
        self.egress = egress

    def env(self) -> Mapping[str, str]:
        """Return the variables of every command, which name the proxy; the forwarder runs then.

        If it cannot be started again, for example because a program in the container has removed
        Python, commands run nevertheless, and reach no server.

        Source: the pages of curl(1), git-config(1), apt.conf(5), pip, npm, cargo, conda and Node.js
        name these variables; curl and apt read ``http_proxy`` in small letters only.
        """
        if self.egress is None:
            return {}
        way = self._way
        if way is None or (way.ended and time.monotonic() >= self._not_before):
            way = self._start()
        proxy = f"http://127.0.0.1:{way.port or self._port}"
        found = {"NODE_USE_ENV_PROXY": "1"}
        own = ",".join((_OWN, *(service.name for service in self._spec.services)))
        for name, value in (("http_proxy", proxy), ("https_proxy", proxy), ("no_proxy", own)):
            found |= {name: value, name.upper(): value}
        return {name: value for name, value in found.items() if name not in self._spec.env}

    def _start(self) -> WayOut:
        """Start the forwarder if it does not run: the container's processes may have ended."""
        with self._starting:
            way = self._way
            if way is not None and not way.ended:
                return way
            if way is not None:
                with suppress(HyperRuntimeError):  # one that was late
                    self._end_group(_GROUP)
            way = self._way = WayOut(self._run, self._exchange, self._socket, group=_GROUP)
            self._port = way.port or self._port
            self._ended = way.ended
            if way.ended:
                self._not_before = time.monotonic() + _AGAIN_S
                log.warning("egress forwarder failed", container=self._name, why=way.ended)
            return way

    def renew(self) -> None:
        """Start the forwarder again with the next command: its processes were ended."""
        self._way = None

    def pause(self) -> None:
        """End the forwarder until the next command, so that no process of ours is left."""
        with self._starting:
            if self._way is not None:
                self._end_group(_GROUP)
            self._way = None

    def close(self) -> None:
        """End all connections, and wait for the listeners. Idempotent."""
        with self._lock:
            self._is_closed = True
            proxy = self._proxy
            self._proxy = None
            self.egress = None
        if os.getpid() != self._pid:
            return
        if proxy is not None:
            with suppress(HyperRuntimeError, TimeoutError):
                _loop.get().run(proxy.close(), _CALL_S)
        notes = self._notes
        self._notes = None
        if notes is not None and self._listening is not None:
            with suppress(Full):  # a listener that blocks is left behind
                notes.put(None, timeout=_CALL_S)
                if self._listening is not threading.current_thread():
                    self._listening.join(_CALL_S)

    def _open(self, egress: Egress) -> Proxy:
        try:
            listener = listen_in(self._exchange.source, self._socket)
        except OSError as error:
            where = os.path.dirname(self._exchange.source)
            why = f"cannot create a socket in {where}: {error}; use a local directory"
            raise StorageError(why) from error

        async def serve() -> Proxy:
            from hyperruntime.egress.proxy import Proxy

            return Proxy(listener, egress, self._name, self._heard)

        return _loop.get().run(serve(), _CALL_S)

    def listen(self, listener: Callable[[Connection], None]) -> None:
        """Call a listener with each connection from now on, in a thread."""
        with self._lock:
            self._listeners.append(listener)
            if self._notes is None:
                self._notes = Queue(_MOST_KEPT)
                self._listening = threading.Thread(
                    target=self._tell, args=(self._notes,), name="hyperruntime-egress", daemon=True
                )
                self._listening.start()

    def _heard(self, connection: Connection) -> None:
        self.connections.append(connection)
        notes = self._notes
        if notes is not None:
            with suppress(Full):  # a listener that blocks loses the rest
                notes.put_nowait(connection)

    def _tell(self, notes: Queue[Connection | None]) -> None:
        failed = False
        while (connection := notes.get()) is not None:
            for listener in tuple(self._listeners):
                try:
                    listener(connection)
                except BaseException as error:  # noqa: BLE001 - of the caller's own function
                    if not failed:
                        log.warning("egress listener failed", error=repr(error))
                    failed = True


async def _set(proxy: Proxy, egress: Egress) -> None:
    proxy.set(egress)
