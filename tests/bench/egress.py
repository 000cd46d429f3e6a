"""Benchmarks of a network with a list: bytes per second, many connections, a neighbour that
stalls its own.
"""

from __future__ import annotations

import socket
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import hyperruntime as hr
from hyperruntime.host.process import wait_until
from hyperruntime.runtime import Runtime
from tests.bench.measure import Row

_SIZE = 1024**3
_ROUNDS = 3
_MANY = 200
_NAMES = ("bytes.test", "slow.test", "quick.test")
# Prints the seconds for all bytes: of a tunnel (the first message of a TLS client, then bytes), of
# plain HTTP, or of a direct connection.
_RECEIVE = """
import socket, ssl, sys, time
how, place, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client = socket.create_connection(("127.0.0.1", place))
begin = time.perf_counter()
if how == "tunnel":
    client.sendall(b"CONNECT bytes.test:%d HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % port)
    while not client.recv(65536).endswith(b"\\r\\n\\r\\n"):
        pass
    out = ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), out, server_hostname="bytes.test"
        ).do_handshake()
    except ssl.SSLWantReadError:
        client.sendall(out.read())
else:
    url = b"http://bytes.test:%d/" % port if how == "http" else b"/"
    client.sendall(b"GET %s HTTP/1.1\\r\\nHost: bytes.test\\r\\n\\r\\n" % url)
buffer, left = bytearray(1 << 20), 1 << 30
while left > 0:
    count = client.recv_into(buffer)
    assert count, left
    left -= count
print(time.perf_counter() - begin)
"""
# Prints the seconds of each of 50 requests, one after another.
_ASK = """
import os, time, urllib.request
for _ in range(50):
    begin = time.perf_counter()
    urllib.request.urlopen(os.environ["URL"]).read()
    print(time.perf_counter() - begin)
"""
# Holds many connections that nobody answers, or prints the seconds until as many were answered.
_MANY_AT_ONCE = """
import os, socket, sys, time
proxy = int(os.environ["http_proxy"].rpartition(":")[2])
name, count, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
begin, held = time.perf_counter(), []
for _ in range(count):
    client = socket.create_connection(("127.0.0.1", proxy))
    client.sendall(b"GET http://%s:%d/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % (name.encode(), port))
    held.append(client)
for client in held:
    assert client.recv(1)
print(time.perf_counter() - begin)
"""


class _Server:
    """Sends 1 GiB of zeros, a short answer, or nothing, as the ``Host`` header asks.

    Attributes:
        kept: the connections that get nothing.
    """

    def __init__(self) -> None:
        self.kept: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        first = client.recv(65536)
        if b"slow.test" in first:
            self.kept.append(client)
            return
        with client, suppress(OSError):
            if b"quick.test" in first:
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                return
            if first[:1] == b"G":
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % _SIZE)
            block = bytes(1 << 20)
            for _ in range(_SIZE >> 20):
                client.sendall(block)

    def close(self) -> None:
        for client in self.kept:
            client.close()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def _serving() -> Iterator[_Server]:
    server = _Server()
    try:
        yield server
    finally:
        server.close()


def egress_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure 1 GiB, 200 connections at once, and requests beside a container that stalls 200."""
    with _serving() as server:
        allow = tuple(f"{name}:{server.port}" for name in _NAMES)
        egress = hr.Egress(allow=allow, hosts=dict.fromkeys(_NAMES, "127.0.0.1"))
        spec = hr.ContainerSpec(image=image, network=egress)
        with runtime.container(spec) as one, runtime.container(spec) as other:
            rows = _bulk_rows(runtime, image, one, server)
            many = _seconds(one, _MANY_AT_ONCE, "quick.test", str(_MANY), str(server.port))[0]
            quick = {"URL": f"http://quick.test:{server.port}/"}
            alone = _seconds(one, _ASK, env=quick)
            args = ["python3", "-c", _MANY_AT_ONCE, "slow.test", str(_MANY), str(server.port)]
            with other.spawn(args):
                assert wait_until(lambda: len(server.kept) >= _MANY, 120)
                beside = _seconds(one, _ASK, env=quick)
    quiet, stalled = map(statistics.median, (alone, beside))
    return [
        *rows,
        Row(what=f"egress: {_MANY} requests at once, all answered", value=many, unit="s"),
        Row(
            what=f"egress: a request while another container stalls {_MANY} connections",
            value=stalled * 1e3,
            unit="ms",
            compared_to=f"alone: {quiet * 1e3:.2f} ms",
            ratio=stalled / quiet,
            wanted="at most 2x",
            holds=stalled <= 2 * quiet,
        ),
    ]


def _bulk_rows(runtime: Runtime, image: str, container: hr.Container, server: _Server) -> list[Row]:
    shown = container.exec(["sh", "-c", 'printf %s "${http_proxy##*:}"']).check().stdout.decode()
    times: dict[str, list[float]] = {"direct": [], "tunnel": [], "http": []}
    with runtime.container(hr.ContainerSpec(image=image, network="host")) as direct:
        for _ in range(_ROUNDS):
            for how, found in times.items():
                place = str(server.port) if how == "direct" else shown
                where = direct if how == "direct" else container
                found.extend(_seconds(where, _RECEIVE, how, place, str(server.port)))
    rates = {how: _SIZE / 1024**2 / statistics.median(found) for how, found in times.items()}
    return [
        Row(
            what=f"egress: 1 GiB through a {name}",
            value=rates[how],
            unit="MiB/s",
            compared_to=f"the host's network: {rates['direct']:.0f} MiB/s",
            ratio=rates[how] / rates["direct"],
            wanted="300 MiB/s or more",
            holds=rates[how] >= 300,
        )
        for how, name in (("tunnel", "tunnel"), ("http", "request of plain HTTP"))
    ]


def _seconds(
    container: hr.Container, program: str, *args: str, env: dict[str, str] | None = None
) -> list[float]:
    done = container.exec(["python3", "-c", program, *args], env=env, timeout_s=600).check()
    return list(map(float, done.stdout.split()))
