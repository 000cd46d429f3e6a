"""The forwarder: a program that runs inside the container and needs only the image's Python 3.

    python3 - SOCKET [PORT]

It listens on 127.0.0.1 and connects each client to the gateway's socket, byte for byte, in one thread. It prints its
port as the first line. The library does not import it: the container's Python reads it from standard input.
"""

import selectors
import socket
import sys

CHUNK = 65536
MOST = 256


class Pipe:
    """One direction of a connection; holds the bytes that were read but not yet written."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        """Start with no bytes held."""
        self.source, self.sink, self.held, self.ended, self.shut = source, sink, b"", False, False

    def read(self) -> bool:
        """Read one piece and write it on; return False if the connection is broken."""
        try:
            data = self.source.recv(CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.held, self.ended = data, not data
        return self.write()

    def write(self) -> bool:
        """Write held bytes, then shut the sink down at the end; return False if the connection is broken."""
        try:
            if self.held:
                self.held = self.held[self.sink.send(self.held) :]
            if self.ended and not self.held and not self.shut:
                self.shut = True
                self.sink.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


def watch(selector: selectors.BaseSelector, pipes: "tuple[Pipe, Pipe]") -> None:
    """Register both ends: for reading while no bytes of theirs are held, for writing while bytes for them are held."""
    out, back = pipes
    for end, reads, writes in ((out.source, out, back), (back.source, back, out)):
        events = (0 if reads.held or reads.ended else selectors.EVENT_READ) | (
            selectors.EVENT_WRITE if writes.held else 0
        )
        known = selector.get_map().get(end.fileno())
        if known is None and events:
            selector.register(end, events, pipes)
        elif known is not None and not events:
            selector.unregister(end)
        elif known is not None and known.events != events:
            selector.modify(end, events, pipes)


def close(selector: selectors.BaseSelector, pipes: "tuple[Pipe, Pipe]") -> None:
    """Unregister and close both ends of a connection."""
    for end in (pipes[0].source, pipes[0].sink):
        if end.fileno() >= 0 and end.fileno() in selector.get_map():
            selector.unregister(end)
        end.close()


def join(selector: selectors.BaseSelector, listener: socket.socket, path: str) -> None:
    """Accept a connection and connect it to the gateway's socket."""
    client, _ = listener.accept()
    gateway = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        gateway.connect(path)
    except OSError:
        client.close()
        gateway.close()
        return
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for end in (client, gateway):
        end.setblocking(False)
    watch(selector, (Pipe(client, gateway), Pipe(gateway, client)))


def move(selector: selectors.BaseSelector, end: socket.socket, events: int, pipes: "tuple[Pipe, Pipe]") -> None:
    """Read from or write to an end that is ready; close the connection when it is broken or finished."""
    out, back = pipes
    reads, writes = (out, back) if out.source is end else (back, out)
    alive = True
    if events & selectors.EVENT_READ and not reads.held and not reads.ended:
        alive = reads.read()
    if alive and events & selectors.EVENT_WRITE:
        alive = writes.write()
    if not alive or (reads.shut and writes.shut):
        close(selector, pipes)
    else:
        watch(selector, pipes)


def main(path: str, port: int = 0) -> None:
    """Print the port, then forward connections until the process is killed."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    print(listener.getsockname()[1], flush=True)
    while True:
        for key, events in selector.select():
            end = key.fileobj
            assert isinstance(end, socket.socket)
            if end is not listener:
                if end.fileno() >= 0:  # an event of the other end may have closed it
                    move(selector, end, events, key.data)
            elif len(selector.get_map()) < 2 * MOST:
                join(selector, listener, path)
            else:
                listener.accept()[0].close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
