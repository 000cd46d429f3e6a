"""Measure the LLM gateway: what it adds to a request, and how many small ones a second pass through it.

The model server and the clients are processes of their own: a server that answers at once with fixed bytes, and one
Python in the container with a connection a thread, through the forwarder; beside it the same client on the host,
straight to the server.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import hyperruntime as hr
from hyperruntime.gateway import Access, Gateway, GatewayConfig, ModelRule, Upstream
from hyperruntime.process import DEVNULL, PIPE, reap, run_process, spawn
from tests.bench.measure import Row

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
    """Return what a request costs through the gateway, and how many pass in a second."""
    with fixed_server() as url:
        config = GatewayConfig(upstreams=(Upstream(name="u", url=url),), models=(ModelRule(name="m", upstream="u"),))
        with (
            runtime.container(hr.ContainerSpec(image=image)) as container,
            Gateway(config) as gateway,
            Access(gateway, container, "bench") as access,
        ):

            def inside(threads: int, each: int) -> list[float]:
                args = ["python3", "-c", _CLIENT, str(threads), str(each)]
                return list(json.loads(container.exec(args, env=access.env, timeout_s=120).check().stdout))

            inside(1, 20)
            alone_s, _ = inside(1, 300)
            _, rate = inside(16, 100)
    with fixed_server() as url:
        env = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}

        def outside(threads: int, each: int) -> list[float]:
            args = [sys.executable, "-c", _CLIENT, str(threads), str(each)]
            return list(json.loads(run_process(args, env=env).stdout))

        direct_s, _ = outside(1, 300)
        _, direct_rate = outside(16, 100)
    added_ms = (alone_s - direct_s) * 1000
    return [
        Row(
            what="gateway: added to a request",
            value=added_ms,
            unit="ms",
            compared_to=f"bare server, whole request: {direct_s * 1000:.2f} ms",
            wanted="under 5 ms",
            holds=added_ms < 5,
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
