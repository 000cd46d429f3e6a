"""The forwarder: a program that runs inside the container and needs only the image's Python 3.

    python3 - SOCKET [PORT]
    python3 - SOCKET to PORT

The first form listens on 127.0.0.1 and connects each client to a socket of the host, byte for byte,
in one thread. It prints its port as the first line. The second form is for clients on the host,
which cannot reach the container: it keeps idle connections to the host's socket, and connects one
to 127.0.0.1:PORT (or ::1) when the host sends ``GO``.

The container's Python reads the program from standard input; the library imports only ``pipe`` and
``advance``.
"""

import collections.abc
import contextlib
import errno
import os
import resource
import selectors
import socket
import sys

CHUNK = 65536
MOST = 256  # connections
# descriptors of each connection, and of the rest
EACH = 4
SPARE = 16
RETRY_S = 0.02
IDLE = 8  # connections that wait for a client of the host
GO = b"g"
TOKEN = "HYPERRUNTIME_FORWARD_TOKEN"  # noqa: S105 - variable with the word that begins each connection to the host


def pipe(
    source: socket.socket, sink: socket.socket
) -> "collections.abc.Iterator[tuple[socket.socket, int]]":
    """Copy one direction of a connection; yield each socket and event to wait for, and close both
    sockets at the end.

    It holds one piece. The other direction has duplicates of the sockets; it ends too if the
    connection breaks.
    """
    try:
        while True:
            yield source, selectors.EVENT_READ
            data = source.recv(CHUNK)
            if not data:
                sink.shutdown(socket.SHUT_WR)
                break
            while data:
                try:
                    data = data[sink.send(data) :]
                except BlockingIOError:
                    yield sink, selectors.EVENT_WRITE
    except OSError:
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
    finally:
        source.close()
        sink.close()


def advance(
    selector: selectors.BaseSelector, copying: "collections.abc.Iterator[tuple[socket.socket, int]]"
) -> None:
    """Let one direction copy until it must wait or has ended."""
    waits = next(copying, None)
    if waits is not None:
        selector.register(waits[0], waits[1], copying)


def join(selector: selectors.BaseSelector, client: socket.socket, path: str) -> bool:
    """Connect a client to the host's socket; return False if its queue is full."""
    gateway = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    gateway.setblocking(False)
    try:
        gateway.connect(path)
    except BlockingIOError:
        gateway.close()
        return False
    except OSError:
        client.close()
        gateway.close()
        return True
    try:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setblocking(False)
        back = pipe(gateway.dup(), client.dup())
    except OSError:
        client.close()
        gateway.close()
        return True
    advance(selector, pipe(client, gateway))
    advance(selector, back)
    return True


def most_connections() -> int:
    """Return how many connections the limit of descriptors allows."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if limit == resource.RLIM_INFINITY else min(MOST, (limit - SPARE) // EACH)


def main(path: str, port: int = 0) -> None:
    """Print the port, then forward connections until the process is killed."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    print(listener.getsockname()[1], flush=True)
    most = most_connections()
    waiting = None  # a client, while the host's queue is full
    while True:
        for key, _ in selector.select(None if waiting is None else RETRY_S):
            if key.fileobj is not listener:
                selector.unregister(key.fileobj)
                advance(selector, key.data)
                continue
            try:
                client, _ = listener.accept()
            except OSError:
                continue  # the client has gone
            if len(selector.get_map()) >= 2 * most:
                client.close()
            elif not join(selector, client, path):
                waiting = client
                selector.unregister(listener)
        if waiting is not None and join(selector, waiting, path):
            waiting = None
            selector.register(listener, selectors.EVENT_READ)


class Dialer:
    """Keeps idle connections to the host, and connects those that the host uses to a port in the
    container.
    """

    def __init__(self, path: str, port: int) -> None:
        """Connect to the host's socket ``path``; clients are connected to ``port``."""
        self.path = path
        self.port = port
        self.token = os.environ[TOKEN].encode()
        self.selector = selectors.DefaultSelector()
        self.idle = 0
        self.most = most_connections()

    def run(self) -> None:
        """Serve until the host closes its socket."""
        while True:
            while self.idle < IDLE and len(self.selector.get_map()) < 2 * self.most:
                host = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                host.connect(self.path)
                host.sendall(self.token)
                host.setblocking(False)
                self.idle += 1
                advance(self.selector, self.serve(host))
            for key, _ in self.selector.select():
                self.selector.unregister(key.fileobj)
                advance(self.selector, key.data)

    def serve(self, host: socket.socket) -> "collections.abc.Iterator[tuple[socket.socket, int]]":
        """Wait for the host's call, then connect to the port; a failure closes the host's
        connection.
        """
        yield host, selectors.EVENT_READ
        self.idle -= 1
        if host.recv(1) != GO:
            sys.exit()
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            server = None
            try:
                server = socket.socket(family, socket.SOCK_STREAM)
                server.setblocking(False)
                code = server.connect_ex((address, self.port))
                if code == errno.EINPROGRESS:
                    yield server, selectors.EVENT_WRITE
                    code = server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code == 0:
                    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    advance(self.selector, pipe(server.dup(), host.dup()))
                    advance(self.selector, pipe(host, server))
                    return
            except OSError:
                pass  # this machine has no such addresses, or no descriptor is left
            if server is not None:
                server.close()
        host.close()


if __name__ == "__main__":
    if sys.argv[2:3] == ["to"]:
        Dialer(sys.argv[1], int(sys.argv[3])).run()
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
