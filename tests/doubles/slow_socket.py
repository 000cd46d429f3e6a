"""A proxy on a Unix socket that holds chosen HTTP requests for a while, as a daemon under load
does.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CHUNK_BYTES = 1 << 16


class SlowSocket:
    """Carries connections to a socket.

    Attributes:
        path: where it listens.
        held: the method of the requests that wait, such as ``DELETE``; "" for none.
        delay_s: seconds that they wait.
    """

    def __init__(self, path: Path, target: str) -> None:
        """Listen; nothing is held."""
        self.path, self.held, self.delay_s = path, "", 0.0
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
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
def slow_socket(path: Path, target: str) -> Iterator[SlowSocket]:
    """Yield a proxy in front of the socket ``target``."""
    proxy = SlowSocket(path, target)
    try:
        yield proxy
    finally:
        proxy.close()
