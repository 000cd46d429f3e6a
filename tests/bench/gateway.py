"""Benchmarks of the LLM gateway: the time it adds, its throughput, and the effect of hostile
containers on others.

The model server and the clients are separate processes. The server answers at once with fixed
bytes. The client is one Python process in the container with one connection per thread, through the
forwarder. For comparison, the same client runs on the host and connects straight to the server.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import hyperruntime as hr
from hyperruntime.gateway import Access, Gateway, GatewayConfig, ModelRule, Upstream
from hyperruntime.host.process import DEVNULL, PIPE, reap, run_process, spawn
from tests.bench.measure import Row, under

_SERVER = r"""
import asyncio, json
body = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}}],
                   "usage": {"prompt_tokens": 10, "completion_tokens": 5}}).encode()
answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.held = transport, b""
    def data_received(self, data):
        self.held += data
        while b"\r\n\r\n" in self.held:
            head, rest = self.held.split(b"\r\n\r\n", 1)
            sizes = [l for l in head.lower().split(b"\r\n") if l.startswith(b"content-length:")]
            size = int(sizes[0].split(b":")[1]) if sizes else 0
            if len(rest) < size:
                return
            self.held = rest[size:]
            self.transport.write(answer)
async def main():
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""

_CLIENT = r"""
import json, os, socket, statistics, sys, threading, time
from urllib.parse import urlsplit
threads, each = int(sys.argv[1]), int(sys.argv[2])
url = urlsplit(os.environ["OPENAI_BASE_URL"])
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
request = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
           f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\r\nContent-Length: {len(body)}\r\n\r\n").encode()
request += body
times = []
def ask():
    client = socket.create_connection((url.hostname, url.port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(each):
        began = time.perf_counter()
        client.sendall(request)
        data = b""
        while b"hello" not in data or not data.endswith(b"}"):
            piece = client.recv(65536)
            if not piece or b" 200 " not in (data + piece)[:20]:
                os._exit(1)
            data += piece
        times.append(time.perf_counter() - began)
began = time.perf_counter()
all_ = [threading.Thread(target=ask) for _ in range(threads)]
[thread.start() for thread in all_]
[thread.join() for thread in all_]
print(json.dumps([statistics.median(times), len(times) / (time.perf_counter() - began)]))
"""


_STEADY = r"""
import json, os, socket, statistics, sys, time
from urllib.parse import urlsplit
url = urlsplit(os.environ["OPENAI_BASE_URL"])
messages = [{"role": "user", "content": "hello"}] + [[1, 2, 3]] * int(sys.argv[2])
body = json.dumps({"model": "m", "messages": messages}).encode()
request = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
           f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\r\nContent-Length: {len(body)}\r\n\r\n").encode()
client = socket.create_connection((url.hostname, url.port))
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times, ends = [], time.perf_counter() + float(sys.argv[1])
while time.perf_counter() < ends:
    began = time.perf_counter()
    client.sendall(request + body)
    data = b""
    while b"hello" not in data or not data.endswith(b"}"):
        piece = client.recv(65536)
        if not piece or b" 200 " not in (data + piece)[:20]:
            os._exit(1)
        data += piece
    times.append(time.perf_counter() - began)
print(json.dumps(times))
"""

# Four connections, each with its own shape of body, which is sent again as soon as the last one is
# refused.
_HOSTILE = r"""
import os, socket, sys, threading, time
from urllib.parse import urlsplit
url = urlsplit(os.environ["OPENAI_BASE_URL"])
size = 16 * 2**20 - 100
shapes = [b"1," * (size // 2), b"[]," * (size // 3), b'"",' * (size // 3), b"x" * size]
ends = time.monotonic() + float(sys.argv[1])
def send(shape):
    text = b'"' if shape[:1] == b"x" else b""
    body = b'{"model": "m", "a": ' + (text + shape + text if text else b"[" + shape + b"1]") + b"}"
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n"
            f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\r\nContent-Length: {len(body)}\r\n\r\n").encode()
    while time.monotonic() < ends:
        try:
            with socket.create_connection((url.hostname, url.port), timeout=20) as client:
                client.sendall(head + body)
                client.recv(65536)
        except OSError:
            pass
threads = [threading.Thread(target=send, args=(shape,), daemon=True) for shape in shapes]
[thread.start() for thread in threads]
print("begun", flush=True)
time.sleep(max(0, ends - time.monotonic()))
os._exit(0)
"""
_SENDERS, _ROUNDS, _ROUND_S = 8, 3, 5.0
_LARGE = 20_000  # lists of three numbers in a large request, about a quarter of a megabyte


@contextmanager
def fixed_server() -> Iterator[str]:
    """Run the server; yield its base URL."""
    process = spawn([sys.executable, "-c", _SERVER], stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        reap(process, 5)
        process.stdout.close()


def gateway_rows(runtime: hr.Runtime, image: str) -> list[Row]:
    """Measure the time that the gateway adds to a request, and the requests per second."""
    with fixed_server() as url:
        config = GatewayConfig(
            upstreams=(Upstream(name="u", url=url),), models=(ModelRule(name="m", upstream="u"),)
        )
        with (
            runtime.container(hr.ContainerSpec(image=image)) as container,
            Gateway(config) as gateway,
            Access(gateway, container, "bench") as access,
        ):

            def inside(threads: int, each: int) -> list[float]:
                args = ["python3", "-c", _CLIENT, str(threads), str(each)]
                return list(
                    json.loads(container.exec(args, env=access.env, timeout_s=120).check().stdout)
                )

            inside(1, 20)
            alone_s, _ = inside(1, 300)
            rate = statistics.median(inside(16, 100)[1] for _ in range(_ROUNDS))
    with fixed_server() as url:
        env = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}

        def outside(threads: int, each: int) -> list[float]:
            args = [sys.executable, "-c", _CLIENT, str(threads), str(each)]
            return list(json.loads(run_process(args, env=env).stdout))

        direct_s, _ = outside(1, 300)
        direct_rate = statistics.median(outside(16, 100)[1] for _ in range(_ROUNDS))
    added_ms = (alone_s - direct_s) * 1000
    return [
        under(
            "gateway: added to a request",
            added_ms,
            "ms",
            5,
            f"bare server, whole request: {direct_s * 1000:.2f} ms",
        ),
        Row(
            what="gateway: small requests, 16 clients",
            value=rate,
            unit="/s",
            compared_to=f"bare server: {direct_rate:.0f}/s",
            wanted="at least 500/s",
            holds=rate >= 500,
        ),
    ]


def share_rows(runtime: hr.Runtime, image: str) -> list[Row]:
    """Measure a request beside eight hostile containers and beside eight idle ones, in turn."""
    idle: dict[int, list[float]] = {0: [], _LARGE: []}
    beside: dict[int, list[float]] = {0: [], _LARGE: []}
    with ExitStack() as stack:
        url = stack.enter_context(fixed_server())
        config = GatewayConfig(
            upstreams=(Upstream(name="u", url=url),), models=(ModelRule(name="m", upstream="u"),)
        )
        gateway = stack.enter_context(Gateway(config))
        seats = [
            _seat(stack, runtime, image, gateway, f"seat-{number}")
            for number in range(_SENDERS + 1)
        ]
        (container, access), senders = seats[0], seats[1:]
        pool = stack.enter_context(ThreadPoolExecutor(_SENDERS))

        def steady(times: dict[int, list[float]]) -> None:
            for lists, all_ in times.items():
                args = ["python3", "-c", _STEADY, str(_ROUND_S), str(lists)]
                all_.extend(
                    json.loads(container.exec(args, env=access.env, timeout_s=120).check().stdout)
                )

        steady({0: []})
        for _ in range(_ROUNDS):
            steady(idle)
            begun = [threading.Event() for _ in senders]
            running = [
                pool.submit(_attack, *sender, event)
                for sender, event in zip(senders, begun, strict=True)
            ]
            for event in begun:
                event.wait(60)
            steady(beside)
            for sender in running:
                sender.result()
    return [
        _share_row("small", "median", statistics.median(beside[0]), statistics.median(idle[0]), 2),
        _share_row("small", "99th percentile", _percentile(beside[0]), _percentile(idle[0]), 5),
        _share_row(
            "large",
            "median",
            statistics.median(beside[_LARGE]),
            statistics.median(idle[_LARGE]),
            _SENDERS + 1,
        ),
    ]


def _seat(
    stack: ExitStack, runtime: hr.Runtime, image: str, gateway: Gateway, name: str
) -> tuple[hr.Container, Access]:
    container = stack.enter_context(runtime.container(hr.ContainerSpec(image=image)))
    return container, stack.enter_context(Access(gateway, container, name))


def _attack(container: hr.Container, access: Access, begun: threading.Event) -> None:
    args = ["python3", "-c", _HOSTILE, str(2 * _ROUND_S + 3)]
    container.exec(args, env=access.env, timeout_s=120, on_output=lambda *_: begun.set()).check()


def _percentile(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def _share_row(size: str, what: str, beside_s: float, idle_s: float, most: int) -> Row:
    return Row(
        what=f"gateway: {size} request beside {_SENDERS} hostile senders, {what}",
        value=beside_s * 1000,
        unit="ms",
        compared_to=f"beside {_SENDERS} idle ones: {idle_s * 1000:.2f} ms",
        ratio=beside_s / idle_s,
        wanted=f"within {most}x",
        holds=beside_s <= most * idle_s,
    )
