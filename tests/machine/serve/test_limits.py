"""What one client of the HTTP service can take from the others: memory, threads, connections."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress

import attrs
import pytest

from hyperruntime.container import Container
from hyperruntime.errors import ContainerStateError
from hyperruntime.serve import containers
from hyperruntime.serve.http_requests import BodyLimits, RequestLimits
from hyperruntime.serve.http_server import HttpServer
from hyperruntime.testing.driver import IMAGE
from hyperruntime.wire.peer import Answer, Call
from tests.doubles.http_service import RULES, raw, served
from tests.doubles.service_client import TOKEN, ServiceClient


async def send(
    client: ServiceClient, head: str, body: bytes, *more: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request whose body has chunks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(client.base.rpartition(":")[2]))
    lines = (
        f"{head} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {TOKEN}",
        "Transfer-Encoding: chunked",
    )
    writer.write(
        "\r\n".join((*lines, *more, "Content-Type: application/json", "", "")).encode() + body
    )
    return reader, writer


@pytest.mark.parametrize(
    "head", ["PUT {}/files?path=/tmp/x", "POST {}/exec", "PUT {}/archive?path=/tmp/t"]
)
async def test_a_malformed_chunk_is_answered_and_ends_the_connection(head: str) -> None:
    async with served() as client:
        one = await client.container(image=IMAGE)
        reader, writer = await send(client, head.format(one), b"", "Expect: 100-continue")
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")  # the body is awaited
        writer.write(b"2\r\nab\r\nzz\r\n")
        answer = await asyncio.wait_for(reader.read(), 30)  # to the end of the connection
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "RequestError"
        assert (await client.ask("GET", one)).value["requests"] == 0
        assert (await client.ask("GET", f"{one}/stat", params={"path": "/tmp/x"})).status == 404


async def test_a_json_body_has_its_own_limits() -> None:
    async with served(limits=BodyLimits(json_bytes=10000, json_values=1000)) as client:
        one = await client.container(image=IMAGE)
        headers = {"Content-Type": "application/json"}
        for body in (b'{"args":[' + b"[]," * 2000, b'{"args":["' + b"x" * 20_000 + b'"]}'):
            refused = await client.ask("POST", f"{one}/exec", headers=headers, data=body)
            assert refused.error == (413, "RequestError")
        data = b"[]," * 10_000
        assert (
            await client.ask("PUT", f"{one}/files", params={"path": "/tmp/x"}, data=data)
        ).status == 204


async def test_all_bodies_together_have_a_limit_and_are_given_back() -> None:
    async with served(most=RequestLimits(held_bytes=100000)) as client:
        one = await client.container(image=IMAGE)
        where = {"path": "/tmp/x"}
        _, waiting = await send(
            client, f"PUT {one}/files?path=/tmp/y", b"f000\r\n" + b"x" * 0xF000 + b"\r\n"
        )
        refused = await client.ask("PUT", f"{one}/files", params=where, data=b"x" * 50_000)
        while refused.status == 204:  # until the first body has arrived
            refused = await client.ask("PUT", f"{one}/files", params=where, data=b"x" * 50_000)
        assert refused.error == (429, "CapacityError")
        waiting.close()
        while (
            await client.ask("PUT", f"{one}/files", params=where, data=b"x" * 50_000)
        ).status != 204:
            await asyncio.sleep(0.02)
        for _ in range(5):
            assert (await client.ask("GET", f"{one}/files", params=where)).status == 200


async def test_streams_that_are_not_read_leave_room_for_other_requests() -> None:
    async with served(most=RequestLimits(commands=2)) as client:
        one = await client.container(image=IMAGE)
        flood = {"args": ["cat", "/dev/zero"], "stream": True}
        stuck = [await raw(client, f"{one}/exec", flood) for _ in range(2)]
        while (await client.ask("GET", one)).value["requests"] != 2:
            await asyncio.sleep(0.02)
        refused = await client.ask("POST", f"{one}/exec", json={"args": ["true"]})
        assert refused.error == (429, "CapacityError")
        assert (await client.ask("GET", f"{one}/processes")).status == 200
        for each in stuck:
            each.close()
        while (await client.ask("POST", f"{one}/exec", json={"args": ["true"]})).status != 200:
            await asyncio.sleep(0.02)
        left = await raw(client, f"{one}/exec", flood)
    left.close()  # the service has ended although its client is stuck


async def test_an_ended_container_counts_until_its_place_is_needed_and_is_then_gone() -> None:
    async with served(attrs.evolve(RULES, most_containers=1)) as client:
        one = await client.container(image=IMAGE, wall_s=0.5)
        while (await client.ask("GET", one)).value["is_alive"]:
            await asyncio.sleep(0.02)
        assert len((await client.ask("GET", "/v1/containers")).value["containers"]) == 1
        other = await client.container(image=IMAGE)
        (listed,) = (await client.ask("GET", "/v1/containers")).value["containers"]
        assert other.endswith(listed["name"])
        for method in ("GET", "DELETE"):
            assert (await client.ask(method, one)).error == (410, "ContainerLostError")


async def test_an_ended_container_is_closed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_ENDED_S", 0.2)

    async with served(attrs.evolve(RULES, idle_s=None)) as client:
        one = await client.container(image=IMAGE, wall_s=0.3)
        while (await client.ask("GET", one)).status != 410:
            await asyncio.sleep(0.02)
        assert (await client.ask("GET", "/v1/containers")).value == {"containers": []}


async def test_a_container_that_cannot_be_removed_can_be_ended_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = ["the engine is busy"]
    close = Container.aclose

    async def aclose(container: Container) -> None:
        if refusals:
            raise ContainerStateError(refusals.pop())
        await close(container)

    monkeypatch.setattr(Container, "aclose", aclose)

    async with served(attrs.evolve(RULES, most_containers=1)) as client:
        one = await client.container(image=IMAGE)
        assert (await client.ask("DELETE", one)).error == (409, "ContainerStateError")
        assert (await client.ask("GET", one)).status == 200
        assert (await client.ask("POST", "/v1/containers", json={"image": IMAGE})).error == (
            429,
            "CapacityError",
        )
        assert (await client.ask("DELETE", one)).status == 204
        assert (await client.ask("GET", one)).error == (404, "ResourceNotFoundError")


@pytest.mark.parametrize("what", ["exec", "archive"])
async def test_a_bug_during_a_stream_breaks_it_off_and_sends_no_second_answer(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = HttpServer.__init__

    async def broken(call: Call) -> Answer:
        await call.emit(Answer({"stream": "stdout"}, b"begun"))
        raise ZeroDivisionError

    def init(self: HttpServer, handlers: dict[str, object], *args: object, **how: object) -> None:
        made(self, {**handlers, "exec.run": broken, "archive.read": broken}, *args, **how)  # type: ignore[arg-type,dict-item]

    monkeypatch.setattr(HttpServer, "__init__", init)

    async with served() as client:
        if what == "exec":
            opened = await raw(client, "/v1/containers/x/exec", {"args": ["true"], "stream": True})
        else:
            opened = socket.create_connection(("127.0.0.1", int(client.base.rpartition(":")[2])))
            head = (
                "GET /v1/containers/x/archive?path=/x HTTP/1.1\r\nHost: "
                f"localhost\r\nAuthorization: Bearer {TOKEN}"
            )
            opened.sendall(f"{head}\r\n\r\n".encode())
        reader, writer = await asyncio.open_connection(sock=opened)
        got = b""
        with suppress(ConnectionError):
            while piece := await reader.read(65536):
                got += piece
        writer.close()
        assert got.count(b"HTTP/1.1") <= 1
        assert b"bug" not in got
        assert not got.endswith(b"0\r\n\r\n")


async def test_a_401_names_the_scheme_and_the_document_says_whether_a_token_is_needed() -> None:
    async with served() as client:
        refused = await client.ask("GET", "/v1/info", headers={"Authorization": "Bearer wrong"})
        assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert client.document["security"] == [{"token": []}]
    async with served(token=None) as client:
        assert (await client.ask("GET", "/v1/info")).status == 200
        assert client.document["security"] == []
