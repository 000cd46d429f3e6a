"""Servers of HTTP, and clients that hold connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import aiohttp
import pytest
from aiohttp import web

from hyperruntime.ports.http_connection import serving_app
from hyperruntime.ports.listeners import listen_on_loopback


def serve(use: Callable[[int], Awaitable[None]], *, most: int = 64, client_s: float = 30.0) -> None:
    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(float(request.query["s"]))
        return web.Response(text="answered")

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/slow", slow)
        listener = listen_on_loopback(0, 0)
        async with serving_app(app, listener, most=most, client_s=client_s, shutdown_s=1.0):
            await use(listener.getsockname()[1])
        assert listener.fileno() == -1

    asyncio.run(asyncio.wait_for(run(), 120))


async def get(port: int, seconds: float = 0.0) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/slow?s={seconds}") as answer,
    ):
        return await answer.text()


async def end_of(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionResetError):
        assert await reader.read() == b""


@pytest.mark.parametrize("sent", [b"", b"GET /slow?s=0 HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_client_that_sends_no_whole_request_is_dropped_and_a_slow_answer_is_not(
    sent: bytes,
) -> None:
    async def use(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await get(port, 0.5) == "answered"
        await end_of(reader)
        writer.close()

    serve(use, client_s=0.2)


def test_silent_clients_cannot_hold_more_connections_than_the_limit() -> None:
    async def use(port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await end_of(silent[2][0])
        with pytest.raises(aiohttp.ClientError):
            await get(port)
        for _, writer in silent:
            writer.close()
        while True:
            try:
                assert await get(port) == "answered"
            except aiohttp.ClientError:  # the server has not heard yet that they left
                await asyncio.sleep(0.01)
            else:
                break

    serve(use, most=2)
