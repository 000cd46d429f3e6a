"""A gateway with a scripted model server behind it, and clients that use a seat's socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.gateway import Budget, Gateway, Seat
from hyperruntime.host.process import wait_until
from tests.doubles.slots import SkippingClock
from tests.doubles.upstream import ScriptedUpstream

KEY = "sk-the-real-key-0123456789"
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"


class UnixConnection(HTTPConnection):
    """HTTP through a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("gateway", timeout=120)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(self._path)


@attrs.define
class Rig:
    """A gateway with a scripted upstream, and its seats."""

    gateway: Gateway
    upstream: ScriptedUpstream
    directory: Path
    log: Path

    def seat(self, name: str = "gen-1", budget: Budget | None = None) -> Seat:
        directory = self.directory / name
        directory.mkdir()
        return self.gateway.seat(name, str(directory), budget)

    @contextmanager
    def time_passing(self, step_s: float = 60.0) -> Iterator[None]:
        """Advance the clock of the gateway's event loop in steps until the block ends, so that its
        timeouts expire.
        """
        over = threading.Event()

        async def step() -> None:
            await SkippingClock().skip(step_s)

        def move() -> None:
            while not over.is_set():
                self.gateway._loop.run(step(), 20)

        mover = threading.Thread(target=move)
        mover.start()
        try:
            yield
        finally:
            over.set()
            mover.join()

    def time(self) -> float:
        """Return the time of the gateway's event loop in seconds."""
        return self.gateway._loop._loop.time()

    def has_logged(self, count: int) -> bool:
        """Wait until so many exchanges are in the log: a client may have all of an answer
        before.
        """
        return wait_until(lambda: self.log.exists() and len(self.lines()) >= count, 60)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def ask(seat: Seat, body: object, path: str = CHAT, token: str | None = None) -> tuple[int, Any]:
    """Send a request; return the status and the JSON of the answer."""
    response = send(seat, body, path, token)
    return response.status, json.loads(response.read())


def send(seat: Seat, body: object, path: str = CHAT, token: str | None = None) -> HTTPResponse:
    """Send a request; return the response, whose body is not read yet."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    shown = seat.token if token is None else token
    named = {"x-api-key": shown} if path == MESSAGES else {"Authorization": f"Bearer {shown}"}
    connection = UnixConnection(seat.socket_path)
    headers = {**named, "Connection": "close"}
    connection.request("POST" if data else "GET", path, body=data or None, headers=headers)
    return connection.getresponse()
