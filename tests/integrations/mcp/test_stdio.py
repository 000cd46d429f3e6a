"""The SDK's client and ``hyperrun mcp`` on standard input and output, on a real engine."""

from __future__ import annotations

import asyncio
import fcntl
import json
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from hyperruntime import Runtime
from tests.conftest import EngineCommand
from tests.integrations.mcp.servers import bash, client_of, command, refused, said, text_of, until

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]

_PIPE_BYTES = 60_000  # a full pipe of Linux has 65,536, but for the rest of a page
TOOLS = ["bash", "read_file", "write_file", "edit_file", "list_files", "search"]
CLIENT = """
import asyncio, sys
from tests.integrations.mcp.servers import bash, client_of

async def main():
    async with client_of(sys.argv[1]) as client:
        print(await bash(client, "hostname"), flush=True)
        await bash(client, "sleep 1000", timeout=500)

asyncio.run(main())
"""
OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_works_in_its_container(runtime_name: str, mode: str) -> None:
    async with client_of(runtime_name, mode=mode) as client:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == TOOLS
        assert all(tool.input_schema["type"] == "object" and tool.description for tool in listed)
        wrote = await client.call_tool(
            "write_file", {"path": "src/a.py", "content": "print(6 * 6)\n"}
        )
        assert said(wrote) == "13 bytes written to src/a.py"
        edited = await client.call_tool(
            "edit_file", {"path": "src/a.py", "old": "6 * 6", "new": "6 * 7"}
        )
        assert said(edited) == "src/a.py is changed at line 1"
        assert (
            await bash(client, "python3 src/a.py; echo wrong >&2; exit 3")
            == "42\n[stderr]\nwrong\n[exit code 3]"
        )
        assert said(await client.call_tool("read_file", {"path": "src/a.py"})) == "print(6 * 7)"
        assert said(await client.call_tool("list_files")) == "src/"
        assert (
            said(await client.call_tool("search", {"pattern": r"\d \* 7"}))
            == "src/a.py:1:print(6 * 7)"
        )


async def test_what_a_client_cannot_have_is_one_sentence(runtime_name: str) -> None:
    async with client_of(
        runtime_name, "--timeout", "1s", "--max-timeout", "2s", "--output-chars", "100"
    ) as client:
        for tool, args, why in [
            ("read_file", {"path": "nothing"}, "'nothing' does not exist"),
            ("read_file", {"path": "../../etc/passwd"}, "outside"),
            ("read_file", {"path": "/etc/passwd"}, "outside"),
            ("read_file", {"path": "a\0b"}, "NUL"),
            ("read_file", {}, "'path'"),
            ("write_file", {"path": "/etc/x", "content": "x"}, "outside"),
            ("write_file", {"path": "x", "content": 7}, "'content' of write_file must be text"),
            ("edit_file", {"path": "x", "old": "a", "new": "b"}, "does not exist"),
            ("search", {"pattern": "("}, "pattern"),
            ("bash", {"command": "echo a\0b"}, "NUL"),
            ("bash", {"command": "true", "wordkir": "/"}, "did you mean 'workdir'"),
            ("bash", {"command": "true", "workdir": "/nowhere"}, "/nowhere"),
            ("terminal_stateful", {"command": "true"}, "not allowed"),
            ("archive_artifacts", {}, "not allowed"),
            ("nothing", {}, "unknown tool 'nothing'"),
            ("bash", {"command": "sleep 100"}, "timed out after 1 s; it and all processes"),
            ("bash", {"command": "sleep 100", "timeout": 1000}, "timed out after 2 s"),
        ]:
            sentence = refused(await client.call_tool(tool, args))
            assert why in sentence, (tool, args, sentence)
            assert "\n" not in sentence.strip()
            assert "Traceback" not in sentence
        # What comes from configuration only is ignored in the arguments of a client.
        assert (
            await bash(
                client,
                "id -u; tail -n +3 /proc/net/dev | cut -d: -f1 | xargs",
                user="nobody",
                network="host",
                image="x",
            )
            == "0\nlo"
        )
        assert 100 < len(await bash(client, "yes | head -c 1000000")) < 200
        late = text_of(await client.call_tool("bash", {"command": "echo before; sleep 100"}))
        assert (
            late == "before\nthe command timed out after 1 s; it and all processes that it started "
            "were ended"
        )
        odd = await bash(client, r"printf '\377\ud800'; touch $'\377'")
        assert odd.startswith("\ufffd")
        assert said(await client.call_tool("list_files"))


async def test_limits_are_those_of_the_command_line(
    runtime: Runtime, runtime_name: str, tmp_path: Path
) -> None:
    (tmp_path / "word").write_text("of the host")
    memory: tuple[str, ...] = ("--memory", "100m")
    if runtime.info.limits.get("memory_bytes", "no") == "no":
        done = subprocess.run(
            command(runtime_name, *memory), capture_output=True, text=True, input=""
        )
        assert "cannot honour limits.memory_bytes" in done.stderr
        memory = ()
    words = (*memory, "--mount", f"{tmp_path}:/data", "--env", "WORD=a b", "--workdir", "/srv")
    async with client_of(runtime_name, *words) as client:
        assert (
            await bash(client, 'cat /data/word; echo; echo "$WORD"; pwd')
            == "of the host\na b\n/srv"
        )
        assert "Read-only" in await bash(client, "echo >/data/word")
        result = await client.call_tool(
            "bash", {"command": "python3 -c 'print(len(b\"x\" * 500_000_000))'"}
        )
        assert ("500000000" in text_of(result)) == (not memory)


async def test_a_profile_gives_all_limits(
    runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    profiles = tmp_path / "pools.toml"
    table = (
        f'[profiles.one]\nimage = "{base_image}"\nmax_containers = '
        '1\n[profiles.one.tools]\ntools = ["patch"]\n'
    )
    profiles.write_text(table)
    async with client_of(runtime_name, "--pools", str(profiles)) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["patch"]
        diff = "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n"
        assert said(await client.call_tool("patch", {"patch": diff})) == "a is created"
        assert "not allowed" in refused(await client.call_tool("bash", {"command": "true"}))


async def test_a_container_that_ended_is_reported_and_replaced(
    runtime_name: str, engine_command: EngineCommand
) -> None:
    async with client_of(runtime_name) as client:
        name = await bash(client, "hostname; touch file")
        engine_command.remove(name)
        why = refused(await client.call_tool("bash", {"command": "true"}))
        assert why.startswith("this session lost its container, with all files")
        assert await bash(client, "ls; hostname") not in (name, f"file\n{name}")


async def test_containers_end_with_the_client(
    runtime_name: str, engine_command: EngineCommand
) -> None:
    async with client_of(runtime_name) as client:
        name = await bash(client, "hostname")
        assert engine_command.containers(f"id={name}")
    await until(lambda: not engine_command.containers(f"id={name}"))


async def test_containers_end_when_the_client_is_killed(
    runtime_name: str, engine_command: EngineCommand
) -> None:
    killed = subprocess.Popen(
        [sys.executable, "-c", CLIENT, runtime_name], stdout=subprocess.PIPE, text=True
    )
    assert killed.stdout is not None
    name = killed.stdout.readline().strip()
    assert engine_command.containers(f"id={name}")
    killed.kill()
    killed.wait()
    killed.stdout.close()
    await until(lambda: not engine_command.containers(f"id={name}"))


def begun(runtime_name: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server, and return it with the name of its container."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    server = subprocess.Popen(command(runtime_name), text=True, **pipes)  # type: ignore[call-overload]
    ready: dict[str, object] = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    tell(server, OPENING, ready, call(2, "hostname"))
    assert json.loads(server.stdout.readline())["id"] == 1
    return server, json.loads(server.stdout.readline())["result"]["content"][0]["text"]


def call(number: int, text: str) -> dict[str, object]:
    params = {"name": "bash", "arguments": {"command": text}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def tell(server: subprocess.Popen[str], *messages: dict[str, object]) -> None:
    assert server.stdin is not None
    server.stdin.write("".join(json.dumps(message) + "\n" for message in messages))
    server.stdin.flush()


async def ends(
    server: subprocess.Popen[str], number: int, code: int, left: Callable[[], object]
) -> None:
    """Send a signal; the server says that it ends because of it, not because its limit passed, and
    nothing is left.
    """
    server.send_signal(number)  # its input stays open
    assert await asyncio.to_thread(server.wait) == code
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stderr is not None
    server.stdin.close()
    server.stdout.close()
    assert server.stderr.read().strip() == (
        "" if number == signal.SIGKILL else "hyperrun: interrupted"
    )
    server.stderr.close()
    await until(lambda: not left())


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
async def test_containers_end_when_the_server_is_ended(
    runtime_name: str, engine_command: EngineCommand, number: int, code: int
) -> None:
    server, name = await asyncio.to_thread(begun, runtime_name)
    assert engine_command.containers(f"id={name}")
    await ends(server, number, code, lambda: engine_command.containers(f"id={name}"))


async def test_a_signal_ends_the_server_while_a_command_ignores_signals(
    runtime_name: str, engine_command: EngineCommand
) -> None:
    server, name = await asyncio.to_thread(begun, runtime_name)
    tell(server, call(3, "trap '' TERM HUP INT; while :; do sleep 1; done"))
    await asyncio.sleep(1)
    await ends(server, signal.SIGTERM, 143, lambda: engine_command.containers(f"id={name}"))


async def test_a_signal_ends_the_server_whose_client_reads_nothing(
    runtime_name: str, engine_command: EngineCommand
) -> None:
    server, name = await asyncio.to_thread(begun, runtime_name)
    tell(server, *(call(number, "yes | head -c 60000") for number in range(3, 9)))
    output = server.stdout
    assert output is not None
    await until(lambda: unread(output) >= _PIPE_BYTES)
    await ends(server, signal.SIGTERM, 143, lambda: engine_command.containers(f"id={name}"))


def unread(pipe: IO[str]) -> int:
    """Return the number of bytes that wait in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


async def test_lines_that_are_no_messages_end_nothing(runtime_name: str) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen(command(runtime_name), **pipes)  # type: ignore[call-overload]
    lines = [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"jsonrpc": "2.0", "id": 1}',
        b"x" * 1_000_000,
    ]
    server.stdin.write(b"\n".join((*lines, json.dumps(OPENING).encode(), b"")))
    server.stdin.flush()
    while (answer := json.loads(server.stdout.readline())).get("id") != 1 or "error" in answer:
        pass
    assert answer["result"]["serverInfo"]["name"] == "hyperruntime"
    server.stdin.close()
    assert server.wait(60) == 0
    server.stdout.close()


def test_a_server_whose_image_is_missing_says_so_and_ends(runtime_name: str) -> None:
    words = command(runtime_name, "localhost/none:1")
    done = subprocess.run(words, capture_output=True, text=True, input="")
    assert (done.returncode, done.stdout) == (2, "")
    assert "hyperrun: error: " in done.stderr
    assert "image 'localhost/none:1' is not on this machine" in done.stderr
    assert "Traceback" not in done.stderr
