"""A proxy in front of a Unix socket that can hold chosen HTTP requests for a while, as a daemon
under load does.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CHUNK_BYTES = 1 << 16


class SlowSocket:
    """Carries connections to a socket.

    Attributes:
        address: where it listens, as ``DOCKER_HOST`` names it.
        held: the method of the requests that wait, such as ``DELETE``; "" for none.
        delay_s: seconds that they wait.
    """

    def __init__(self, target: str) -> None:
        """Listen on a TCP port of this machine; nothing is held."""
        self.held = ""
        self.delay_s = 0.0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as daemon:
            daemon.connect(self._target)
            upward = threading.Thread(target=self._carry, args=(client, daemon, True), daemon=True)
            upward.start()
            self._carry(daemon, client, False)
            upward.join()

    def _carry(self, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                if is_request and self.held and chunk.startswith(f"{self.held} /".encode()):
                    time.sleep(self.delay_s)
                sink.sendall(chunk)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def slow_socket(target: str) -> Iterator[SlowSocket]:
    """Yield a proxy in front of the socket ``target``."""
    proxy = SlowSocket(target)
    try:
        yield proxy
    finally:
        proxy.close()
