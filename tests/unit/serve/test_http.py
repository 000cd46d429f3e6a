"""The HTTP service with the fake driver, whose commands run for real: who may ask, what is
answered, what ends when.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import random
import sys
import tarfile
from contextlib import suppress
from typing import Any

import aiohttp
import attrs
import psutil
import pytest
from openapi_spec_validator import validate

import hyperruntime as hr
from hyperruntime.serve.http_requests import BodyLimits
from hyperruntime.serve.routes import ROUTES
from hyperruntime.testing.driver import IMAGE
from tests.doubles.http_service import RULES, served
from tests.doubles.service_client import TOKEN, ServiceClient

SMALLEST = BodyLimits(file_bytes=65536, json_bytes=65536)
EVERY_BYTE = bytes(range(256))


def tar_of(**files: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def files_of(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {one.name: opened.extractfile(one).read() for one in opened if one.isfile()}  # type: ignore[union-attr]


async def test_the_document_is_valid_has_every_route_and_real_answers_fit_it() -> None:
    async with served() as client:
        ask = client.ask
        assert (await ask("GET", "/v1/info")).value["runtime"] == "fake"
        validate(client.document)
        one = await client.container(image=IMAGE, env={"WHO": "me"})
        (listed,) = (await ask("GET", "/v1/containers")).value["containers"]
        assert listed["name"] == one.rpartition("/")[2]
        assert (await ask("GET", one)).value["is_alive"] is True

        done = await ask(
            "POST",
            f"{one}/exec",
            json={"args": ["sh", "-c", "cat; echo $WHO >&2; exit 7"], "input": "é"},
        )
        assert {name: done.value[name] for name in ("exit_code", "stdout", "stderr")} == {
            "exit_code": 7, "stdout": "é", "stderr": "me\n",
        }  # fmt: skip
        query = {"path": "/tmp/ä/b", "mode": "0640"}
        assert (await ask("PUT", f"{one}/files", params=query, data=EVERY_BYTE)).status == 204
        assert (await ask("GET", f"{one}/files", params={"path": "/tmp/ä/b"})).body == EVERY_BYTE
        facts = (await ask("GET", f"{one}/stat", params={"path": "/tmp/ä/b"})).value
        assert (facts["kind"], facts["size_bytes"], facts["mode"]) == ("file", 256, "0640")
        assert (await ask("GET", f"{one}/directory", params={"path": "/tmp/ä"})).value == {
            "names": ["b"]
        }
        await ask("POST", f"{one}/exec", json={"args": ["mkfifo", "/tmp/ä/pipe"]})
        held = await ask("GET", f"{one}/files", params={"path": "/tmp/ä/pipe", "timeout_s": "0.3"})
        assert (held.status, held.value["error"]["type"]) == (504, "TransferTimeoutError")
        sent = tar_of(x=EVERY_BYTE, y=b"")
        assert (
            await ask("PUT", f"{one}/archive", params={"path": "/tmp/t"}, data=sent)
        ).status == 204
        got = await ask("GET", f"{one}/archive", params={"path": "/tmp/t"})
        assert files_of(got.body) == {"./x": EVERY_BYTE, "./y": b""}
        assert files_of((await ask("GET", f"{one}/archive", params={"path": "/tmp/t/x"})).body) == {
            "./x": EVERY_BYTE
        }

        await talk_to_a_process(client, one)
        assert (await ask("DELETE", one)).status == 204
        assert (await ask("GET", one)).error == (404, "ResourceNotFoundError")
        assert client.seen == {(route.method, route.path) for route in ROUTES}


async def talk_to_a_process(client: ServiceClient, one: str) -> None:
    """Use all routes of background processes."""
    command = (
        "trap 'echo interrupted; exit 3' INT; read line; echo $line; printf '\\303'; read line; "
        "printf '\\251'"
    )
    args = ["sh", "-c", f"{command}; while :; do sleep 0.05; done"]
    process = (await client.ask("POST", f"{one}/processes", json={"args": args})).value["process"]
    path = f"{one}/processes/{process}"

    async def output(**fields: Any) -> dict[str, Any]:
        taken = await client.ask("POST", f"{path}/output", json={"wait_s": 20, **fields})
        assert taken.status == 200, taken
        return dict(taken.value)

    assert (await client.ask("POST", f"{path}/output", json={})).value["stdout"] == ""
    await client.ask("POST", f"{path}/input", json={"input": "aGkK", "encoding": "base64"})
    said = (await output())["stdout"]
    assert said == "hi\n"  # and not the half of a character
    await client.ask("POST", f"{path}/input", json={"input": "\n"})
    assert (await output())["stdout"] == "é"
    assert [
        one["end"] for one in (await client.ask("GET", f"{one}/processes")).value["processes"]
    ] == [None]
    assert (await client.ask("POST", f"{path}/signal", json={"signal": "SIGINT"})).value == {
        "received": True
    }
    ended: dict[str, Any] = {"end": None}
    text = ""
    while ended["end"] is None:
        ended = await output()
        text += ended["stdout"]
    assert (ended["end"]["exit_code"], text) == (3, "interrupted\n")
    refused = await client.ask("POST", f"{path}/input", json={"input": "x"})
    assert refused.error == (409, "ContainerStateError")
    assert (await client.ask("DELETE", path)).status == 204
    assert (await client.ask("DELETE", path)).error == (404, "ResourceNotFoundError")


async def test_a_stream_has_every_byte_in_order_and_the_end() -> None:
    async with served(limits=BodyLimits()) as client:
        one = await client.container(image=IMAGE)
        data = random.Random(1).randbytes(700_000)
        fields = {"input": base64.b64encode(data).decode(), "encoding": "base64", "stream": True}
        done = await client.ask(
            "POST", f"{one}/exec", json={"args": ["sh", "-c", "cat; echo x >&2; exit 3"], **fields}
        )
        *events, end = done.value
        found = {"stdout": b"", "stderr": b""}
        for event in events:
            found[event["stream"]] += base64.b64decode(event["data"])
        assert found == {"stdout": data, "stderr": b"x\n"}
        assert (end["event"], end["result"]["exit_code"], end["result"]["truncated"]) == (
            "end",
            3,
            False,
        )

        text = "äöü€😀" * 20_000  # characters that lie across two chunks
        done = await client.ask(
            "POST", f"{one}/exec", json={"args": ["cat"], "input": text, "stream": True}
        )
        assert "".join(event.get("data", "") for event in done.value) == text
        done = await client.ask(
            "POST", f"{one}/exec", json={"args": ["cat"], "input": "x", "user": "nobody-here"}
        )
        assert done.error == (400, "UserNotFoundError")
        late = {"args": ["sleep", "100"], "timeout_s": 0.2, "stream": True}
        (end,) = (await client.ask("POST", f"{one}/exec", json=late)).value
        assert (end["result"]["exit_code"], end["result"]["timed_out"]) == (124, True)


STRANGERS = [
    ({"Authorization": "Bearer wrong"}, 401),
    ({"Authorization": f"Bearer {TOKEN}x"}, 401),
    ({"Authorization": f"Basic {TOKEN}"}, 401),
    ({"Authorization": "Bearer é"}, 401),
    ({"Authorization": "Bearer \udcff\udcfe"}, 401),
    ({"Authorization": f"Bearer {'x' * 7000}"}, 401),
    ({"Authorization": "Bearer "}, 401),
    ({"Authorization": ""}, 401),
    ({"Host": "attacker.example"}, 403),
    ({"Host": "127.0.0.1.attacker.example:80"}, 403),
    ({"Origin": "http://localhost:3000"}, 403),
    ({"Origin": "null"}, 403),
]


async def test_only_a_program_of_this_machine_with_the_token_is_answered() -> None:
    async with served() as client:
        for headers, status in STRANGERS:
            for method, path in (
                ("GET", "/v1/containers"),
                ("POST", "/v1/containers"),
                ("GET", "/v1/openapi.json"),
            ):
                refused = await client.ask(method, path, headers=headers)
                assert refused.error == (status, "RequestError"), headers
                assert TOKEN.encode() not in refused.body
                assert not {"Access-Control-Allow-Origin", "Set-Cookie"} & set(refused.headers)
        assert (await client.ask("GET", "/v1/info", headers={"Host": "localhost:1"})).status == 200


# Python 3.14 reads as many levels as its stack holds, and the service finds no text in them.
DEEP_ERROR = "RequestError" if sys.version_info < (3, 14) else "SpecError"


def deep(levels: int) -> bytes:
    return b'{"args":' + b"[" * levels + b"]" * levels + b"}"


HOSTILE: list[tuple[str, str, dict[str, Any], tuple[int, str]]] = [
    ("POST", "/exec", {"data": b"{"}, (400, "RequestError")),
    ("POST", "/exec", {"data": b"[]"}, (400, "RequestError")),
    ("POST", "/exec", {"data": b"\xff"}, (400, "RequestError")),
    ("POST", "/exec", {"data": deep(30_000)}, (400, DEEP_ERROR)),
    ("POST", "/exec", {"data": b'{"args":["true"],"timeout_s":1e999}'}, (400, "RequestError")),
    ("POST", "/exec", {"data": b'{"args":["true"],"timeout_s":NaN}'}, (400, "RequestError")),
    ("POST", "/exec", {"data": b'{"args":["true"],"container":"x"}'}, (400, "SpecError")),
    ("POST", "/exec", {"data": b'{"args":["true"],"mounts":["/"]}'}, (400, "SpecError")),
    ("POST", "/exec", {"data": b'{"args":"true"}'}, (400, "SpecError")),
    ("POST", "/exec", {"data": b'{"args":[]}'}, (400, "SpecError")),
    ("POST", "/exec", {"data": b'{"args":["a\\u0000b"]}'}, (400, "SpecError")),
    ("POST", "/exec", {"data": b'{"args":["true"],"timeout_s":true}'}, (400, "SpecError")),
    ("POST", "/exec", {"data": b'{"args":["true"],"timeout_s":-1}'}, (400, "SpecError")),
    ("POST", "/exec", {"data": b'{"args":["true"],"output_limit_bytes":0}'}, (400, "SpecError")),
    (
        "POST",
        "/exec",
        {"data": b'{"args":["true"],"output_limit_bytes":999999999}'},
        (400, "SpecError"),
    ),
    (
        "POST",
        "/exec",
        {"data": b'{"args":["true"],"input":"?","encoding":"base64"}'},
        (400, "SpecError"),
    ),
    ("POST", "/exec", {"data": b'{"args":["true"],"input":"\\ud800"}'}, (400, "SpecError")),
    (
        "POST",
        "/exec",
        {"data": b'{"args":["true"],"workdir":"/none"}'},
        (404, "WorkdirNotFoundError"),
    ),
    ("POST", "/exec", {"data": b"x" * 70_000}, (413, "RequestError")),
    (
        "POST",
        "/exec",
        {"data": b"{}", "headers": {"Content-Type": "text/plain"}},
        (415, "RequestError"),
    ),
    (
        "POST",
        "/exec",
        {"data": b"{}", "headers": {"Content-Encoding": "gzip"}},
        (415, "RequestError"),
    ),
    ("POST", "/processes/x/signal", {"data": b'{"signal":"SIGNONE"}'}, (400, "SpecError")),
    ("POST", "/processes/x/output", {"data": b'{"wait_s":61}'}, (400, "SpecError")),
    ("GET", "/files", {}, (400, "SpecError")),
    ("GET", "/files?path=relative", {}, (400, "SpecError")),
    ("GET", "/files?path=/a%00b", {}, (400, "SpecError")),
    ("GET", "/files?path=/a&path=/b", {}, (400, "SpecError")),
    ("GET", "/files?path=/a&other=1", {}, (400, "SpecError")),
    ("GET", "/files?path=/etc/passwd&limit_bytes=x", {}, (400, "SpecError")),
    ("GET", "/files?path=/etc/passwd&timeout_s=0", {}, (400, "SpecError")),
    ("GET", "/files?" + "&".join(f"a{n}" for n in range(99)), {}, (400, "RequestError")),
    ("GET", "/files?path=/" + "a" * 5000, {}, (422, "FileError")),
    ("GET", "/files?path=/tmp/../none", {}, (404, "PathNotFoundError")),
    ("GET", "/files?path=/tmp", {}, (409, "PathIsDirectoryError")),
    ("GET", "/archive?path=/none", {}, (404, "PathNotFoundError")),
    ("PUT", "/files?path=/tmp/x&mode=99999", {"data": b""}, (400, "SpecError")),
    ("PUT", "/files?path=/tmp/x&parents=maybe", {"data": b""}, (400, "SpecError")),
    ("PUT", "/files?path=/tmp/x", {"data": b"x" * 70_000}, (413, "RequestError")),
    ("PUT", "/archive?path=/tmp/x", {"data": b"x" * 70_000}, (422, "FileError")),
    ("PATCH", "", {}, (405, "RequestError")),
    ("GET", "/none", {}, (404, "RequestError")),
    ("GET", "/../../../etc/passwd", {}, (404, "RequestError")),
]


async def test_a_hostile_request_gets_an_error_of_the_fixed_form() -> None:
    async with served(limits=SMALLEST) as client:
        one = await client.container(image=IMAGE)
        for method, path, how, expected in HOSTILE:
            headers = {"Content-Type": "application/json"} | how.get("headers", {})
            refused = await client.ask(
                method, f"{one}{path}", headers=headers, data=how.get("data")
            )
            assert refused.error == expected, (method, path[:80], how, refused.value)
        for image, expected in (
            ("no such image", (403, "NotAllowedError")),
            ("none:1", (404, "ImageNotFoundError")),
        ):
            assert (
                await client.ask("POST", "/v1/containers", json={"image": image})
            ).error == expected
        assert (await client.ask("POST", f"{one}/exec", json={"args": ["true"]})).value[
            "exit_code"
        ] == 0


async def test_a_body_of_unknown_length_is_refused_when_it_is_too_large() -> None:
    async with served(limits=SMALLEST) as client:
        one = await client.container(image=IMAGE)

        async def pieces() -> Any:
            while True:
                yield b"x" * 10_000

        # the server may close the connection before the client has read
        with suppress(aiohttp.ClientError):
            refused = await client.ask(
                "PUT", f"{one}/files", params={"path": "/tmp/x"}, data=pieces()
            )
            assert refused.error == (413, "RequestError")
        assert (await client.ask("GET", f"{one}/stat", params={"path": "/tmp/x"})).error == (
            404,
            "PathNotFoundError",
        )


async def test_the_rules_of_the_service_hold() -> None:
    rules = attrs.evolve(
        RULES,
        images=(IMAGE,),
        most_containers=1,
        most_processes=1,
        limits=hr.Limits(pids=None, wall_s=9),
    )

    async with served(rules) as client:
        for fields in (
            {"image": "other:1"},
            {"network": "host"},
            {"pull": "always"},
            {"wall_s": 10},
        ):
            refused = await client.ask("POST", "/v1/containers", json={"image": IMAGE, **fields})
            assert refused.error == (403, "NotAllowedError"), fields
        one = await client.container(image=IMAGE, wall_s=8)
        assert (await client.ask("POST", "/v1/containers", json={"image": IMAGE})).error == (
            429,
            "CapacityError",
        )
        assert (
            await client.ask("POST", f"{one}/processes", json={"args": ["sleep", "100"]})
        ).status == 201
        refused = await client.ask("POST", f"{one}/processes", json={"args": ["sleep", "100"]})
        assert refused.error == (429, "CapacityError")
        await client.ask("DELETE", one)
        await client.container(image=IMAGE)


async def test_an_unused_container_ends_after_a_time() -> None:
    async with served(attrs.evolve(RULES, idle_s=0.5)) as client:
        one = await client.container(image=IMAGE)
        while (await client.ask("GET", one)).status == 200:
            await asyncio.sleep(0.02)
        assert (await client.ask("GET", "/v1/containers")).value == {"containers": []}


@pytest.mark.slow
async def test_a_request_that_takes_longer_than_the_idle_time_keeps_its_container() -> None:
    async with served(attrs.evolve(RULES, idle_s=3)) as client:
        one = await client.container(image=IMAGE)
        long = {"args": ["sleep", "4"], "stream": True}
        assert (await client.ask("POST", f"{one}/exec", json=long)).value[-1]["event"] == "end"
        while (await client.ask("GET", one)).status == 200:
            await asyncio.sleep(0.02)


async def test_the_end_of_a_container_is_told_in_the_stream() -> None:
    async with served() as client:
        one = await client.container(image=IMAGE)
        fields = {"args": ["sh", "-c", "echo begun; sleep 100"], "stream": True}
        url = f"{client.base}{one}/exec"
        async with client.session.post(url, json=fields, headers=client.headers) as answer:
            assert json.loads(await answer.content.readline())["data"] == "begun\n"
            assert (await client.ask("DELETE", one)).status == 204
            (last,) = [json.loads(line) async for line in answer.content]
        assert last["event"] == "error"
        assert last["error"]["type"] in ("ContainerLostError", "ContainerStateError")


def sleepers(seconds: str) -> list[int]:
    """Return the processes that sleep for so long."""
    found = psutil.process_iter(["cmdline"])
    return [one.pid for one in found if one.info["cmdline"] == ["sleep", seconds]]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_processes_of_a_command_end_when_its_client_goes_away(stream: bool) -> None:
    seconds = f"{os.getpid()}{random.randrange(10**6)}"
    args = ["sh", "-c", f"sleep {seconds} & sleep {seconds}"]
    async with served() as client:
        one = await client.container(image=IMAGE)
        asking = asyncio.ensure_future(
            client.ask("POST", f"{one}/exec", json={"args": args, "stream": stream})
        )
        while len(sleepers(seconds)) < 2:
            await asyncio.sleep(0.02)
        asking.cancel()
        while sleepers(seconds):
            await asyncio.sleep(0.02)
        assert (await client.ask("GET", one)).value["is_alive"]
