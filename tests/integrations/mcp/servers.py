"""``hyperrun mcp`` as a process, and the SDK's own client of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import IO

import attrs
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from mcp_types import CallToolResult

from tests.command import cli

_PATIENCE_S = 60.0


def command(runtime: str, *words: str) -> list[str]:
    """Return the command line of the server."""
    return cli("--runtime", runtime, "mcp", *words)


def client_of(runtime: str, *words: str, mode: str = "auto") -> Client:
    """Return a client that starts a server of its own, on standard input and output."""
    program, *args = command(runtime, *words)
    return Client(
        StdioServerParameters(command=program, args=args, env=dict(os.environ)), mode=mode
    )


def said(result: CallToolResult) -> str:
    """Return the text of a result that is no error."""
    assert not result.is_error, result
    return text_of(result)


def refused(result: CallToolResult) -> str:
    """Return the sentence of a result that is an error."""
    assert result.is_error, result
    return text_of(result)


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert content.type == "text"
    return str(content.text)


async def bash(client: Client, text: str, **args: object) -> str:
    """Return the output of a command."""
    return said(await client.call_tool("bash", {"command": text, **args}))


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds. It is called in a thread, because clients run on this event
    loop.
    """
    async with asyncio.timeout(_PATIENCE_S):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.02)


@attrs.frozen
class Served:
    """A server over HTTP.

    Attributes:
        process: its process.
        url: its address.
        token: its token.
    """

    process: subprocess.Popen[str]
    url: str
    token: str

    @asynccontextmanager
    async def client(self, mode: str = "auto", token: str | None = None) -> AsyncIterator[Client]:
        """Yield a client with the token."""
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        async with (
            create_mcp_http_client(headers) as http,
            Client(streamable_http_client(self.url, http_client=http), mode=mode) as client,
        ):
            yield client


@contextmanager
def served(runtime: str, *words: str, stderr: IO[str] | None = None) -> Iterator[Served]:
    """Yield a server over HTTP, which is ended by SIGTERM."""
    process = subprocess.Popen(
        command(runtime, "--http", *words), stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        yield Served(
            process, url, process.stdout.readline().strip().removeprefix("Authorization: Bearer ")
        )
    finally:
        process.terminate()
        process.stdout.read()
        process.stdout.close()
        process.wait(60)
