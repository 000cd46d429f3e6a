"""``hyperrun serve`` on a real engine: other programs use it, and nothing is left of it however it
ends.
"""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hyperruntime import Runtime
from hyperruntime.host.process import wait_until
from tests.command import cli
from tests.doubles.service_client import ServiceClient

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]
Visit = Callable[[ServiceClient], Awaitable[None]]


@contextmanager
def service(
    runtime_name: str, place: Path, *words: str
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Yield the process of a service and what it printed."""
    command = cli(
        "--runtime",
        runtime_name,
        "serve",
        "--json",
        *words,
    )
    token = [] if "--no-token" in words else ["--token-file", str(place / "token")]
    process = subprocess.Popen(
        [*command, *token], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                break
        yield process, json.loads(text)
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()


def visit(where: dict[str, Any], call: Visit) -> ServiceClient:
    async def run() -> ServiceClient:
        token = (
            None if where["token_file"] is None else Path(where["token_file"]).read_text().strip()
        )
        connector = (
            aiohttp.UnixConnector(where["socket"])
            if where["socket"] is not None
            else aiohttp.TCPConnector()
        )
        async with aiohttp.ClientSession(connector=connector) as session:
            client = ServiceClient(session, where["url"], token)
            await call(client)
            return client

    return asyncio.run(asyncio.wait_for(run(), 120))


def containers_of(process: subprocess.Popen[str], runtime: Runtime) -> list[str]:
    return [one.record.id for one in runtime.containers() if one.owner.pid == process.pid]


def test_curl_runs_a_command_in_a_container(tmp_path: Path, runtime: Runtime) -> None:
    with service(runtime.name, tmp_path) as (process, where):
        token = Path(where["token_file"])
        assert stat.S_IMODE(token.stat().st_mode) == 0o600

        def curl(path: str, *words: str) -> str:
            given = ("--header", f"Authorization: Bearer {token.read_text().strip()}", *words)
            command = [
                "curl",
                "--silent",
                "--show-error",
                "--fail-with-body",
                "--no-buffer",
                *given,
            ]
            return subprocess.run(
                [*command, f"{where['url']}{path}"], check=True, capture_output=True, text=True
            ).stdout

        limit = ', "memory_bytes": 67108864'
        if runtime.info.limits.get("memory_bytes", "no") == "no":
            with pytest.raises(subprocess.CalledProcessError) as refused:
                curl("/v1/containers", "--json", f'{{"image": "base"{limit}}}')
            assert json.loads(refused.value.stdout)["error"]["type"] == "UnsupportedOptionError"
            limit = ""
        made = json.loads(curl("/v1/containers", "--json", f'{{"image": "base"{limit}}}'))
        one = f"/v1/containers/{made['name']}"
        assert containers_of(process, runtime) == [made["name"]]
        args = '{"args": ["sh", "-c", "echo out; echo err >&2; exit 7"]%s}'
        done = json.loads(curl(f"{one}/exec", "--json", args % ""))
        assert (done["exit_code"], done["stdout"], done["stderr"]) == (7, "out\n", "err\n")
        events = [
            json.loads(line)
            for line in curl(f"{one}/exec", "--json", args % ', "stream": true').splitlines()
        ]
        assert [event["event"] for event in events] == ["output", "output", "end"]
        curl(f"{one}/files?path=/tmp/a/b", "--upload-file", str(token))
        assert curl(f"{one}/files?path=/tmp/a/b") == token.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        assert containers_of(process, runtime) == []


def test_a_socket_needs_no_token_and_ends_with_its_parent(tmp_path: Path, runtime: Runtime) -> None:
    path = tmp_path / "private" / "s"
    words = ("--socket", str(path), "--no-token", "--with-parent")
    with service(runtime.name, tmp_path, *words) as (process, where):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

        async def use(client: ServiceClient) -> None:
            one = await client.container(image="base")
            done = await client.ask("POST", f"{one}/exec", json={"args": ["id", "-u"]})
            assert done.value["exit_code"] == 0
            assert (
                await client.ask("GET", "/v1/info", headers={"Host": "attacker.example"})
            ).status == 403

        visit(where, use)
        assert len(containers_of(process, runtime)) == 1
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0
        assert containers_of(process, runtime) == []
        assert not path.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_container_is_left_when_the_service_is_killed_during_a_stream(
    tmp_path: Path, runtime: Runtime, number: signal.Signals
) -> None:
    with service(runtime.name, tmp_path) as (process, where):

        async def use(client: ServiceClient) -> None:
            one = await client.container(image="base")
            fields = {"args": ["sh", "-c", "echo begun; sleep 1000"], "stream": True}
            url = f"{client.base}{one}/exec"
            async with client.session.post(url, json=fields, headers=client.headers) as answer:
                assert json.loads(await answer.content.readline())["data"] == "begun\n"
                process.send_signal(number)
                try:
                    lines = [json.loads(line) async for line in answer.content]
                except aiohttp.ClientError:
                    lines = []
                assert [line["event"] for line in lines] == (
                    [] if number == signal.SIGKILL else ["error"]
                )

        visit(where, use)
        # Ctrl-C is its usual end
        assert process.wait(30) == (-signal.SIGKILL if number == signal.SIGKILL else 0)
        assert wait_until(lambda: containers_of(process, runtime) == [], 30, 0.1)


@pytest.mark.slow
def test_a_killed_client_takes_its_command_with_it_and_leaves_the_container(
    tmp_path: Path, runtime: Runtime
) -> None:
    listed = "for one in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $one; echo; done"

    with service(runtime.name, tmp_path) as (_, where):

        async def use(client: ServiceClient) -> None:
            one = await client.container(image="base")

            async def sleeps() -> bool:
                done = await client.ask("POST", f"{one}/exec", json={"args": ["sh", "-c", listed]})
                return "sleep 4321" in done.value["stdout"]

            fields = json.dumps(
                {"args": ["sh", "-c", "(sleep 4321 &); echo begun; sleep 4321"], "stream": True}
            )
            header = f"Authorization: {client.headers['Authorization']}"
            words = ["curl", "--silent", "--no-buffer", "--header", header, "--json", fields]
            curl = subprocess.Popen([*words, f"{client.base}{one}/exec"], stdout=subprocess.PIPE)
            assert curl.stdout is not None
            assert b"begun" in await asyncio.to_thread(curl.stdout.readline)
            assert await sleeps()
            curl.kill()
            curl.wait()
            curl.stdout.close()
            while await sleeps():
                await asyncio.sleep(0.05)
            assert (await client.ask("GET", one)).value["is_alive"]

        visit(where, use)


@pytest.mark.slow
def test_many_clients_at_once_get_their_own_output(tmp_path: Path, runtime: Runtime) -> None:
    async def use(client: ServiceClient) -> None:
        places = await asyncio.gather(*(client.container(image="base") for _ in range(4)))

        async def one(number: int) -> None:
            args = ["sh", "-c", f"echo {number}; head -c 100000 /dev/zero | tr '\\0' {number % 10}"]
            fields = {"args": args, "stream": number % 2 == 0}
            done = await client.ask("POST", f"{places[number % 4]}/exec", json=fields)
            events = done.value if number % 2 == 0 else [{"data": done.value["stdout"]}]
            assert (
                "".join(event.get("data", "") for event in events)
                == f"{number}\n" + str(number % 10) * 100_000
            )

        await asyncio.gather(*map(one, range(200)))

    with service(runtime.name, tmp_path) as (_, where):
        visit(where, use)
