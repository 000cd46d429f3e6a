"""An HTTP proxy as sites have it (RFC 9110, 9.3.6 and RFC 9112, 3.2.2), which alone knows some
hosts.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from socketserver import StreamRequestHandler, ThreadingTCPServer
from urllib.parse import urlsplit

import attrs


@attrs.frozen
class SiteProxy:
    """A running proxy.

    Attributes:
        url: its address.
        asked: the ``host:port`` of each request, in order.
    """

    url: str
    asked: list[str]


@contextmanager
def run_site_proxy(hosts: Mapping[str, int]) -> Iterator[SiteProxy]:
    """Serve on loopback.

    Args:
        hosts: the ports of this machine that are the hosts, by ``host:port``; no other is reached.
    """
    asked: list[str] = []

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            method, target, rest = self.rfile.readline().split(maxsplit=2)
            head = b""
            while (line := self.rfile.readline()).strip():
                head += line
            url = urlsplit(target if method != b"CONNECT" else b"//" + target)
            place = f"{url.hostname.decode()}:{url.port or 80}" if url.hostname else ""
            asked.append(place)
            if place not in hosts:
                self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
                return
            with socket.create_connection(("127.0.0.1", hosts[place])) as other:
                if method == b"CONNECT":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                else:
                    lines = (method, url.path or b"/", rest.strip())
                    other.sendall(b" ".join(lines) + b"\r\nConnection: close\r\n" + head + b"\r\n")
                back = threading.Thread(target=_copy, args=(other, self.connection), daemon=True)
                back.start()
                with suppress(OSError):
                    while data := self.rfile.read1(1 << 16):
                        other.sendall(data)
                    other.shutdown(socket.SHUT_WR)
                back.join()

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield SiteProxy(f"http://127.0.0.1:{server.server_address[1]}", asked)
        finally:
            server.shutdown()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
