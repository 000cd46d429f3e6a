"""The two ways to a server: standard input and output for one client, HTTP for several."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, cast

from mcp.server.stdio import stdio_server

import hyperruntime as hr
from hyperruntime.concurrency.standard_streams import input_lines, own_standard_output
from hyperruntime_mcp.http import HttpSessions
from hyperruntime_mcp.session import make_server


async def serve(
    pool: hr.SlotPool,
    listener: socket.socket | None = None,
    *,
    token: str = "",
    hosts: Sequence[str] = (),
    idle_timeout_s: float = 600.0,
) -> None:
    """Serve one client on standard input and output until it closes them; or clients over HTTP
    until cancelled.

    Args:
        pool: the started pool; its configuration has all limits.
        listener: listening socket for HTTP.
        token: the bearer token of requests over HTTP.
        hosts: names of this machine in requests over HTTP, besides those of the loopback.
        idle_timeout_s: a session over HTTP ends after this time without an open request.
    """
    server = make_server(pool)
    if listener is not None:
        await HttpSessions(server, token, hosts, idle_timeout_s).serve(listener)
        return
    # the SDK's own reader and writer would block the end of the process
    lines = cast(Any, input_lines())
    try:
        async with (
            own_standard_output() as output,
            stdio_server(lines, cast(Any, output)) as (received, sent),
        ):
            await server.run(received, sent, server.create_initialization_options())
    except* BrokenPipeError:  # the client is gone
        pass
