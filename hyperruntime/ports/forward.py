"""Let programs on the host reach ports of a container that has no network.

Design: docs/design/exec.md#files-and-ports.
"""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import resources

import attrs

from hyperruntime.concurrency.blocking import STREAMS, blocking
from hyperruntime.errors import (
    ContainerStateError,
    ExecStartError,
    HyperRuntimeError,
    SpecError,
    StorageError,
    UnsupportedOptionError,
)
from hyperruntime.exec.options import ExecOptions
from hyperruntime.host.process import overload
from hyperruntime.logs import get_logger
from hyperruntime.ports.forwarder import GO, IDLE, TOKEN, advance, pipe
from hyperruntime.ports.listeners import listen_in
from hyperruntime.run_as import RunAs
from hyperruntime.spec import ExecResult, Mount
from hyperruntime.wire.tokens import is_token

log = get_logger(__name__)

Waits = Iterator[tuple[socket.socket, int]]
Run = Callable[[list[str], ExecOptions], ExecResult]

PYTHON_ARGS = ("python3", "-I", "-S", "-")
_START_S = 20.0
_END_S = 5.0
# clients for which the forwarder has no connection yet; further ones wait in the kernel's queue
_MOST_WAITING = 64
# connections from the container that no client uses: the container is not trusted
_MOST_TUNNELS = 2 * IDLE
# for such a connection to send the token; before a retry when no descriptor is left
_GREET_S = 5.0
_PAUSE_S = 0.2
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_TOKEN_BYTES = 32
_MAX_PORT = 65535


def forwarder_program() -> bytes:
    """Return the program that runs in the container, for the standard input of its Python."""
    return resources.files("hyperruntime.ports").joinpath("forwarder.py").read_bytes()


class Forwards:
    """The forwarded ports of one container; safe to use from many threads."""

    def __init__(self, engine: str, run: Run) -> None:
        """Prepare; nothing listens yet.

        Args:
            engine: the engine's name, for errors.
            run: runs a command in the container.
        """
        self._engine = engine
        self._run = run
        self._lock = threading.Lock()
        self._open: dict[tuple[int, str, str | RunAs | None, str | None], Forward] = {}
        self._closed = False

    def open(self, port: int, host: str, exchange: Mount, options: ExecOptions) -> tuple[str, int]:
        """Return the address on the host that leads to a port of the container.

        Args:
            port: the port.
            host: address of the host on which to listen.
            exchange: the exchange directory.
            options: user and group of the forwarder.

        Raises the errors of :meth:`Container.forward`.
        """
        _check_port(port)
        key = (port, host, options.user, options.group)
        with self._lock:
            if self._closed:
                raise ContainerStateError("the container is closed; start another one")
            known = self._open.get(key)
            if known is None or known.has_ended:
                known = self._open[key] = Forward(
                    self._engine, self._run, port, host, exchange, options
                )
            return known.address

    def close(self) -> None:
        """Stop listening and end all connections. Idempotent."""
        with self._lock:
            self._closed = True
            forwards = tuple(self._open.values())
            self._open.clear()
        for forward in forwards:
            forward.close()


class ContainerPorts:
    """Forwards ports of a container; see docs/files.md."""

    _forwards: Forwards

    @property
    def exchange(self) -> Mount:
        """The exchange directory."""
        raise NotImplementedError

    def forward(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        user: str | RunAs | None = None,
        group: str | None = None,
    ) -> tuple[str, int]:
        """Listen on the host, connect all clients to a port of the container, and return host and
        port.

        The container needs no network, and the program that listens in it may start later. The
        image needs Python 3. A second call with the same arguments returns the same address. The
        forwarding ends with the container.

        Args:
            port: TCP port on the container's 127.0.0.1 or ::1.
            host: address of this machine on which to listen. Every local user of this machine can
                connect to 127.0.0.1; with another address than the loopback, other machines can
                too.
            user: user of the forwarder in the container; as for :meth:`exec`.
            group: as for :meth:`exec`.

        Raises:
            UnsupportedOptionError: the image has no Python 3.
            SpecError: ``port`` or ``host`` is invalid.
            HyperRuntimeError: as :meth:`exec`.
        """
        return self._forwards.open(port, host, self.exchange, ExecOptions(user=user, group=group))

    async def aforward(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        user: str | RunAs | None = None,
        group: str | None = None,
    ) -> tuple[str, int]:
        """Do what :meth:`forward` does without blocking the event loop."""
        return await blocking(
            STREAMS, lambda: self.forward(port, host=host, user=user, group=group)
        )


class Forward:
    """One forwarded port: it listens on the host, and a forwarder in the container connects the
    clients.

    Attributes:
        address: host and port on which it listens.
    """

    def __init__(
        self, engine: str, run: Run, port: int, host: str, exchange: Mount, options: ExecOptions
    ) -> None:
        """Listen, and wait until the forwarder runs.

        Args:
            engine: the engine's name, for errors.
            run: runs a command in the container.
            port: the port in the container.
            host: address of the host on which to listen.
            exchange: the exchange directory.
            options: user and group of the forwarder.

        Raises the errors of :meth:`Container.forward`.
        """
        self._token = secrets.token_hex(_TOKEN_BYTES // 2)
        self._name = f"forward-{secrets.token_hex(8)}"
        self._socket = os.path.join(exchange.source, self._name)
        self._listener = listen(host)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        try:
            self._tunnels = listen_in(exchange.source, self._name)
        except OSError as error:
            self._listener.close()
            why = f"cannot create a socket in {exchange.source}: {error}; use a local directory"
            raise StorageError(why) from error
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0)
        self._lock = threading.Lock()
        self._idle: deque[socket.socket] = deque()
        self._waiting: deque[socket.socket] = deque()
        # with the time until which each may send the token
        self._greeting: dict[socket.socket, float] = {}
        self._paused_until = 0.0
        self._started = threading.Event()
        self._closing = False
        self._error: HyperRuntimeError | None = None
        args = [*PYTHON_ARGS, posixpath.join(exchange.target, self._name), "to", str(port)]
        self._threads = (
            threading.Thread(target=self._serve, name="hyperruntime-forward", daemon=True),
            threading.Thread(target=self._exec, args=(engine, run, args, options), daemon=True),
        )
        for thread in self._threads:
            thread.start()
        start_s = _START_S * overload()
        self._started.wait(start_s)
        if (failure := self._failure(start_s)) is not None:
            self.close()
            raise failure

    def _failure(self, start_s: float) -> HyperRuntimeError | None:
        if self._error is None and not self._started.is_set():
            return ExecStartError(
                f"the forwarder of {self.address} did not start within {start_s:g} s; retry"
            )
        return self._error

    @property
    def has_ended(self) -> bool:
        """Whether it has stopped listening."""
        return self._closing

    def close(self) -> None:
        """Stop listening and end all connections; the forwarder then ends. Idempotent."""
        with self._lock:
            if not self._closing:
                self._closing = True
                os.eventfd_write(self._wake, 1)
        if threading.current_thread() not in self._threads:
            self._threads[0].join(_END_S)

    def _exec(self, engine: str, run: Run, args: list[str], options: ExecOptions) -> None:
        try:
            result = run(
                args, attrs.evolve(options, input=forwarder_program(), env={TOKEN: self._token})
            )
        except HyperRuntimeError as error:
            self._error = error
        else:
            tail = result.stderr.decode(errors="replace").strip()[-300:]
            self._error = ExecStartError(
                f"the forwarder ended with exit code {result.exit_code}: {tail}"
            )
            if result.not_executed:
                why = (
                    "the image has no python3, which the forwarder needs; use one that has it, "
                    "such as the base image"
                )
                self._error = UnsupportedOptionError(engine, "forward", why)
        self._started.set()
        if not self._closing:
            log.debug("forwarder ended", why=str(self._error))
            self.close()

    def _serve(self) -> None:
        selector = self._selector
        selector.register(self._wake, selectors.EVENT_READ)
        selector.register(self._tunnels, selectors.EVENT_READ)
        selector.register(self._listener, selectors.EVENT_READ)
        try:
            while not self._closing:
                for key, _ in selector.select(self._wait_s()):
                    if key.fileobj is self._tunnels:
                        self._accept(
                            self._tunnels, lambda tunnel: advance(selector, self._greet(tunnel))
                        )
                    elif key.fileobj is self._listener:
                        self._accept(self._listener, self._waiting.append)
                    elif key.fileobj != self._wake:
                        selector.unregister(key.fileobj)
                        advance(selector, key.data)
                self._drop_silent()
                self._match()
                self._choose_listeners()
        finally:
            self._end()

    def _accept(self, listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
        try:
            client, _ = listener.accept()
        # the client has gone, or no descriptor is left: then the listener stays readable
        except OSError as error:
            if error.errno in _FULL:
                self._paused_until = time.monotonic() + _PAUSE_S
            return
        client.setblocking(False)
        take(client)

    def _wait_s(self) -> float | None:
        """Return the seconds until something is due, or None."""
        due = [*self._greeting.values(), *((self._paused_until,) if self._paused_until else ())]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _drop_silent(self) -> None:
        """Close the connections from the container that did not send the token in time."""
        now = time.monotonic()
        for tunnel in [tunnel for tunnel, until in self._greeting.items() if until <= now]:
            self._selector.unregister(tunnel).data.close()

    def _choose_listeners(self) -> None:
        """Accept clients only while few wait, and connections from the container only while few are
        unused.
        """
        paused = time.monotonic() < self._paused_until
        if not paused:
            self._paused_until = 0.0
        accepts = {
            self._listener: len(self._waiting) < _MOST_WAITING,
            self._tunnels: len(self._greeting) + len(self._idle) < _MOST_TUNNELS,
        }
        for listener, has_room in accepts.items():
            wanted = has_room and not paused
            registered = listener in self._selector.get_map()
            if registered and not wanted:
                self._selector.unregister(listener)
            elif wanted and not registered:
                self._selector.register(listener, selectors.EVENT_READ)

    def _greet(self, tunnel: socket.socket) -> Waits:
        """Take a connection of the forwarder if it knows the token; other programs in the container
        do not.
        """
        said = b""
        self._greeting[tunnel] = time.monotonic() + _GREET_S
        try:
            while len(said) < _TOKEN_BYTES:
                yield tunnel, selectors.EVENT_READ
                said += tunnel.recv(_TOKEN_BYTES - len(said)) or bytes(_TOKEN_BYTES)
        except OSError:
            said = b""
        except GeneratorExit:
            tunnel.close()
            raise
        finally:
            del self._greeting[tunnel]
        if not is_token(said[:_TOKEN_BYTES], self._token):
            tunnel.close()
            return
        self._idle.append(tunnel)
        self._started.set()

    def _match(self) -> None:
        """Give waiting clients the idle connections."""
        while self._waiting and self._idle:
            client = self._waiting.popleft()
            tunnel = self._idle.popleft()
            try:
                tunnel.send(GO)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = pipe(tunnel.dup(), client.dup())
            except OSError:  # the forwarder ended, or no descriptor is left
                client.close()
                tunnel.close()
                continue
            advance(self._selector, pipe(client, tunnel))
            advance(self._selector, back)

    def _end(self) -> None:
        with self._lock:
            self._closing = True
            os.close(self._wake)
        copying = [key.data for key in self._selector.get_map().values() if key.data is not None]
        self._selector.close()
        for end in (self._listener, self._tunnels, *self._idle, *self._waiting):
            end.close()
        for one in copying:
            one.close()
        with suppress(OSError):
            os.unlink(self._socket)


def _check_port(port: object) -> None:
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port <= _MAX_PORT:
        raise SpecError("port", port, f"a port, 1 to {_MAX_PORT}")


def listen(host: str) -> socket.socket:
    """Return a listening socket on a free port of an address of this machine, non-blocking.

    Raises:
        SpecError: nothing can listen there.
    """
    if not host:
        raise SpecError("host", host, "an address; 0.0.0.0 listens on all of this machine")
    try:
        listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except (OSError, TypeError, UnicodeError) as error:
        raise SpecError(
            "host", host, f"an address of this machine on which it can listen ({error})"
        ) from error
    listener.setblocking(False)
    return listener
