"""The forwarder: a program that runs inside the container, with nothing but Python 3 of the image.

    python3 - SOCKET [PORT]

It listens on 127.0.0.1 and joins each connection to the gateway's socket, byte for byte, in one thread. The first line
it prints is the port. Not imported by the library: its text is handed to the container's Python.
"""

import selectors
import socket
import sys

CHUNK = 65536
MOST = 256


class Pipe:
    """One direction of a connection: what was read from one end and not yet written to the other."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        """Hold nothing yet."""
        self.source, self.sink, self.held, self.ended, self.shut = source, sink, b"", False, False

    def read(self) -> bool:
        """Take what has come; False where the connection is broken."""
        try:
            data = self.source.recv(CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.held, self.ended = data, not data
        return self.write()

    def write(self) -> bool:
        """Hand on what fits, and then the end; False where the connection is broken."""
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
    """Wait for what an end is needed for now: reading while nothing is held for the other end, or writing."""
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
    """Forget a connection."""
    for end in (pipes[0].source, pipes[0].sink):
        if end.fileno() >= 0 and end.fileno() in selector.get_map():
            selector.unregister(end)
        end.close()


def join(selector: selectors.BaseSelector, listener: socket.socket, path: str) -> None:
    """Take a connection and join it to the gateway's socket."""
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
    """Move what an end is ready for."""
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
    """Serve until the container ends."""
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
                if end.fileno() >= 0:  # the other end's event may have closed it in this round
                    move(selector, end, events, key.data)
            elif len(selector.get_map()) < 2 * MOST:
                join(selector, listener, path)
            else:
                listener.accept()[0].close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
