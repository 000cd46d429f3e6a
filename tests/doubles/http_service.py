"""The HTTP service with the fake driver, for a client that visits it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import attrs

import hyperruntime as hr
from hyperruntime.ports.listeners import listen_on_loopback
from hyperruntime.runtime import Runtime
from hyperruntime.serve.containers import ContainerService
from hyperruntime.serve.http_requests import BodyLimits, RequestLimits
from hyperruntime.serve.http_server import HttpServer, serving
from hyperruntime.serve.rules import ContainerRules
from hyperruntime.testing import FakeDriver
from tests.doubles.service_client import TOKEN, ServiceClient

RULES = ContainerRules(limits=hr.Limits(pids=None))
SMALL = BodyLimits(file_bytes=1 << 20, json_bytes=1 << 20)


@attrs.frozen
class Opened:
    opened: Runtime

    async def runtime(self) -> Runtime:
        return self.opened


@asynccontextmanager
async def served(
    rules: ContainerRules = RULES,
    *,
    token: str | None = TOKEN,
    limits: BodyLimits = SMALL,
    most: RequestLimits | None = None,
) -> AsyncIterator[ServiceClient]:
    """Serve inside the block, for its client; afterwards nothing of the service is left."""
    with Runtime(FakeDriver()) as runtime:
        service = ContainerService(Opened(runtime), rules)
        server = HttpServer(service.handlers, token, limits=limits, most=most)
        listener = listen_on_loopback(0, 0)
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with aiohttp.ClientSession() as session, serving(server, service, listener):
            yield ServiceClient(session, base, token)
        assert [one for one in runtime.containers() if one.owner.pid == os.getpid()] == []


async def raw(client: ServiceClient, path: str, fields: dict[str, Any]) -> socket.socket:
    """Send a request for a stream, and read nothing of the answer."""
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    made = socket.create_connection(("127.0.0.1", int(client.base.rpartition(":")[2])))
    made.sendall(head.encode() + body)
    return made
