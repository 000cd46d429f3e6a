"""The forwarder: a program that runs inside the container and needs only the image's Python 3.

    python3 - SOCKET [PORT]

It listens on 127.0.0.1 and connects each client to the gateway's socket, byte for byte, in one thread. It prints its
port as the first line. The library does not import it: the container's Python reads it from standard input.
"""

import collections.abc
import contextlib
import resource
import selectors
import socket
import sys

CHUNK = 65536
MOST = 200  # connections
EACH, SPARE = 4, 16  # descriptors of each connection, and of the rest


def pipe(source: socket.socket, sink: socket.socket) -> "collections.abc.Iterator[tuple[socket.socket, int]]":
    """Copy one direction of a connection; yield each socket and event to wait for, and close both sockets at the end.

    It holds one piece. The other direction has duplicates of the sockets; it ends too if the connection breaks.
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
    source.close()
    sink.close()


def advance(selector: selectors.BaseSelector, copying: "collections.abc.Iterator[tuple[socket.socket, int]]") -> None:
    """Let one direction copy until it must wait or has ended."""
    waits = next(copying, None)
    if waits is not None:
        selector.register(waits[0], waits[1], copying)


def join(selector: selectors.BaseSelector, client: socket.socket, path: str) -> None:
    """Connect a client to the gateway's socket."""
    gateway = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        gateway.connect(path)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for end in (client, gateway):
            end.setblocking(False)
        back = pipe(gateway.dup(), client.dup())
    except OSError:
        client.close()
        gateway.close()
        return
    advance(selector, pipe(client, gateway))
    advance(selector, back)


def main(path: str, port: int = 0) -> None:
    """Print the port, then forward connections until the process is killed."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    print(listener.getsockname()[1], flush=True)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if limit == resource.RLIM_INFINITY else min(MOST, (limit - SPARE) // EACH)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not listener:
                selector.unregister(key.fileobj)
                advance(selector, key.data)
                continue
            try:
                client, _ = listener.accept()
            except OSError:
                continue  # the client has gone
            if len(selector.get_map()) < 2 * most:
                join(selector, client, path)
            else:
                client.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
