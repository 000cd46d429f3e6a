"""The SDK's client and ``hyperrun mcp --http``, on a real engine."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from hyperruntime.host.process import wait_until
from hyperruntime.ports.http_connection import Connections
from hyperruntime_mcp.http import Connection, HttpSessions
from tests.conftest import EngineCommand
from tests.integrations.mcp.servers import Served, bash, refused, served, until

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]

CLIENT = """
import asyncio, subprocess, sys
from tests.integrations.mcp.servers import Served, bash

async def main():
    async with Served(None, sys.argv[1], sys.argv[2]).client() as client:
        print(await bash(client, "hostname"), flush=True)
        await bash(client, "sleep 1000", timeout=500)

asyncio.run(main())
"""
OPENING = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


@pytest.fixture(scope="module")
def server(runtime_name: str, base_image: str) -> Iterator[Served]:
    """Yield a server with two slots, whose sessions end after a second."""
    with served(runtime_name, "--sessions", "2", "--idle-timeout", "1s") as made:
        yield made


def answer_to(
    server: Served,
    headers: dict[str, str],
    *,
    path: str = "",
    body: bytes = b"",
    method: str = "POST",
) -> tuple[int, str]:
    """Return the status and the text of the answer to a request; ``headers`` come after the usual
    ones.
    """
    usual = {
        "Authorization": f"Bearer {server.token}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": OPENING}
    data = body or json.dumps(message).encode() if method == "POST" else None
    kept = {name: value for name, value in {**usual, **headers}.items() if value}
    try:
        request = urllib.request.Request(server.url + path, data, kept, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_two_sessions_do_not_see_each_other(server: Served) -> None:
    async with server.client() as one, server.client(mode="legacy") as two:
        # the last one with sessions
        assert one.protocol_version == two.protocol_version == "2025-11-25"
        await bash(one, "echo 1 >mine; sleep 500 &")
        assert "No such file" in await bash(two, "ls -a; cat mine; ps -e")
        assert "sleep" not in await bash(two, "cat /proc/*/cmdline")
        assert await bash(one, "cat mine") == "1"  # a session keeps its container
        assert await bash(one, "hostname") != await bash(two, "hostname")


async def test_a_full_pool_refuses_the_call_and_a_session_that_ended_makes_room(
    server: Served,
) -> None:
    async with server.client() as third:
        async with server.client() as one, server.client() as two:
            names = {await bash(client, "echo 1 >mine; hostname") for client in (one, two)}
            why = refused(await third.call_tool("bash", {"command": "true"}))
            assert why.startswith("no slot of pool 'mcp' became free within 10 s (2 leased")
        assert await bash(third, "ls") == ""
        assert await bash(third, "hostname") not in names


async def test_a_client_that_is_killed_gives_its_slot_back(
    server: Served, engine_command: EngineCommand
) -> None:
    words = [sys.executable, "-c", CLIENT, server.url, server.token]
    killed = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    name = killed.stdout.readline().strip()
    assert engine_command.containers(f"id={name}")
    killed.kill()
    killed.wait()
    killed.stdout.close()
    await until(lambda: not engine_command.containers(f"id={name}"))


async def test_a_cancelled_call_is_ended(server: Served, engine_command: EngineCommand) -> None:
    async with server.client() as client:
        name = await bash(client, "hostname")
        late = asyncio.create_task(bash(client, "touch begun; sleep 1234", timeout=500))
        await until(lambda: "sleep 1234" in engine_command.commands(name))
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        await until(lambda: "sleep 1234" not in engine_command.commands(name))
        assert await bash(client, "ls") == "begun"  # the session goes on


async def test_without_the_token_nothing_is_answered(server: Served) -> None:
    with pytest.raises(BaseExceptionGroup) as failed:
        async with server.client(token="wrong"):
            pass
    assert failed.group_contains(MCPError)
    for header in (
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Basic {server.token}",
        server.token,
        "Bearer \xff",
    ):
        for path in ("", "/other"):
            status, text = answer_to(server, {"Authorization": header}, path=path)
            assert (status, text) == (401, '{"error":"the bearer token is missing or wrong"}'), (
                header
            )
    assert answer_to(server, {}, path="/other")[0] == 404


def test_requests_of_other_sites_and_names_are_refused(server: Served) -> None:
    port = server.url.rpartition(":")[2].partition("/")[0]
    assert answer_to(server, {"Host": f"localhost:{port}"})[0] == 200
    assert answer_to(server, {"Host": f"evil.example:{port}"}) == (421, "Invalid Host header")
    assert answer_to(server, {"Origin": "http://evil.example"}) == (403, "Invalid Origin header")
    assert answer_to(server, {"Origin": f"http://localhost:{port}"})[0] == 200


def test_requests_that_open_no_session_are_refused(server: Served) -> None:
    assert answer_to(server, {}, body=b"{")[0] == 400
    assert (
        answer_to(server, {}, body=b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}')[0] == 400
    )
    assert answer_to(server, {"Mcp-Session-Id": "0" * 32})[0] == 404
    assert answer_to(server, {"Mcp-Session-Id": "../x"})[0] == 404
    assert answer_to(server, {"Content-Length": str(17 * 1024**2)})[0] == 413
    assert answer_to(server, {}, method="GET")[0] == 400
    status, text = answer_to(server, {"MCP-Protocol-Version": "2026-07-28"})
    assert (status, json.loads(text)["error"]["data"]["supported"][-1]) == (400, "2025-11-25")


def test_connections_that_send_nothing_are_bounded(server: Served) -> None:
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            for _ in range(530)
        ]
        poll = select.poll()
        for one in silent:
            poll.register(one, select.POLLIN)
        assert wait_until(lambda: len(poll.poll(0)) >= 18, 30)  # closed: nothing else can be read
        assert len(poll.poll(0)) <= 30
        silent[0].sendall(b"GET /mcp HTTP/1.1\r\nHost: x\r\n\r\n")
        assert silent[0].recv(100).startswith(b"HTTP/1.1 401 ")
    assert answer_to(server, {})[0] == 200


async def test_a_client_that_sends_no_whole_request_in_time_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Connection, "bounds", Connections(2, 0.3))
    listener = socket.create_server(("127.0.0.1", 0))
    where, sessions = listener.getsockname(), HttpSessions(Server("x"), "secret", (), 60)
    serving = asyncio.create_task(sessions.serve(listener))
    request = b"GET /mcp HTTP/1.1\r\nHost: x\r\n"

    async def drip(begin: bytes) -> None:
        reader, writer = await asyncio.open_connection(*where)
        writer.write(begin)
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b"X-A: b\r\n")
            await asyncio.sleep(0.01)
        writer.close()
        with suppress(OSError):  # reset
            assert (await reading).partition(b"\r")[0] in (b"", b"HTTP/1.1 401 Unauthorized")

    try:
        # the last has an answer, and begins another one
        for begin in (b"", request, request + b"\r\n" + request):
            await asyncio.wait_for(asyncio.gather(drip(begin), drip(begin)), 60)
        reader, writer = await asyncio.open_connection(*where)
        writer.write(request + b"Connection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.close()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_containers_end_with_the_server_while_clients_are_connected(
    runtime_name: str, engine_command: EngineCommand, tmp_path: Path
) -> None:
    seen, errors = list[object](), tmp_path / "errors"
    # The client notices that the server is gone.
    with (
        errors.open("w") as stderr,
        served(runtime_name, stderr=stderr) as server,
        suppress(BaseExceptionGroup),
    ):
        async with server.client() as client:
            name = await bash(client, "hostname")
            running = asyncio.create_task(bash(client, "sleep 1000", timeout=500))
            await until(lambda: "sleep 1000" in engine_command.commands(name))
            server.process.terminate()
            seen.append(await asyncio.to_thread(server.process.wait))
            seen.append(engine_command.containers(f"id={name}"))
            running.cancel()
    assert seen == [143, []]
    assert errors.read_text().strip() == "hyperrun: interrupted", "not because its limit passed"
