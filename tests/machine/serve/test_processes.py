"""Background processes over HTTP: input is taken whole or not at all, and no output is lost."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import string
import threading
from typing import Any

import pytest

from hyperruntime.errors import ExecLostError
from hyperruntime.exec.spawn import process_input
from hyperruntime.exec.spawn.process import Process
from hyperruntime.serve import containers
from hyperruntime.testing.driver import IMAGE
from tests.doubles.http_service import served
from tests.doubles.service_client import Answered, ServiceClient


async def started(client: ServiceClient, command: str, **fields: Any) -> str:
    """Start a command in a new container; return the path of its routes."""
    one = await client.container(image=IMAGE)
    made = await client.ask(
        "POST", f"{one}/processes", json={"args": ["sh", "-c", command], **fields}
    )
    assert made.status == 201
    return f"{one}/processes/{made.value['process']}"


async def give(client: ServiceClient, path: str, text: str, **fields: Any) -> Answered:
    body = io.BytesIO(json.dumps({"input": text, **fields}).encode())
    headers = {"Content-Type": "application/json"}
    return await client.ask("POST", f"{path}/input", headers=headers, data=body)


async def fill(client: ServiceClient, path: str) -> str:
    """Write until nothing more is taken; return what was."""
    sent = ""
    for letter in string.ascii_letters:
        answer = await give(client, path, letter * 900_000)
        if answer.status != 204:
            assert answer.error == (409, "InputNotReadError")
            return sent
        sent += letter * 900_000
    raise AssertionError("everything was taken")


async def all_output(client: ServiceClient, path: str) -> tuple[str, Any]:
    """Take output until the end."""
    text = ""
    last: dict[str, Any] = {"end": None}
    while last["end"] is None and last.get("error") is None:
        last = (await client.ask("POST", f"{path}/output", json={"wait_s": 20})).value
        text += last["stdout"]
    return text, last


async def test_input_that_nobody_reads_is_refused_holds_no_thread_and_is_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(containers, "_MOST_INPUT_S", 0.2)

    async with served() as client:
        command = "while ! [ -e /tmp/go ]; do sleep 0.05; done; exec cat"
        path = await started(client, command, output_limit_bytes=16 << 20)
        sent = await fill(client, path)
        busy = threading.active_count()
        refused = await asyncio.gather(*(give(client, path, "x" * 900_000) for _ in range(10)))
        assert {one.error for one in refused} == {(409, "InputNotReadError")}
        assert threading.active_count() < busy + len(refused)  # pools may have grown
        assert (await give(client, path, "", end=True)).status == 204  # and this does not wait
        assert (await give(client, path, "late")).error == (409, "ContainerStateError")
        one = path.partition("/processes")[0]
        assert (
            await client.ask("PUT", f"{one}/files", params={"path": "/tmp/go"}, data=b"")
        ).status == 204
        assert (await all_output(client, path))[0] == sent


async def test_input_waits_for_room_and_arrives_in_order() -> None:
    async with served() as client:
        path = await started(client, "cat", output_limit_bytes=8 << 20)
        assert (await give(client, path, "x" * (process_input.MOST_BYTES + 1))).error == (
            413,
            "RequestError",
        )
        letters = "abcd"
        for letter in letters:
            assert (
                await give(client, path, letter * 1_000_000, end=letter == letters[-1])
            ).status == 204
        text, last = await all_output(client, path)
        assert text == "".join(letter * 1_000_000 for letter in letters)
        assert last["truncated"] is False


async def test_the_deletion_of_a_process_ends_a_request_that_waits_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(containers, "_MOST_INPUT_S", 0.2)

    async with served() as client:
        path = await started(client, "sleep 1000")
        await fill(client, path)
        monkeypatch.setattr(containers, "_MOST_INPUT_S", 50.0)
        asked = asyncio.ensure_future(give(client, path, "x" * 900_000))
        while (await client.ask("GET", path.partition("/processes")[0])).value["requests"] != 1:
            await asyncio.sleep(0.02)
        assert (await client.ask("DELETE", path)).status == 204
        assert (await asked).error == (409, "ContainerStateError")


async def test_a_process_of_which_something_is_left_stays_until_a_deletion_ends_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close = Process.close
    left = [True]

    async with served() as client:
        path = await started(client, "sleep 1000")
        monkeypatch.setattr(
            Process, "close", lambda process: close(process) and not (left and left.pop())
        )
        assert (await client.ask("DELETE", path)).error == (409, "ContainerStateError")
        assert (await client.ask("DELETE", path)).status == 204
        assert (await client.ask("DELETE", path)).error == (404, "ResourceNotFoundError")


async def test_output_that_was_cut_says_so_in_the_take_that_lacks_it() -> None:
    async with served() as client:
        command = "head -c 100000 /dev/zero | tr '\\0' x; touch /tmp/written; read line; echo $line"
        path = await started(client, command, output_limit_bytes=1000)
        one = path.partition("/processes")[0]
        while (
            await client.ask("GET", f"{one}/stat", params={"path": "/tmp/written"})
        ).status != 200:
            await asyncio.sleep(0.02)
        first = (await client.ask("POST", f"{path}/output", json={"wait_s": 20})).value
        while not first["truncated"]:
            first = (await client.ask("POST", f"{path}/output", json={"wait_s": 20})).value
        await give(client, path, "short\n")
        text, last = await all_output(client, path)
        assert (text[-6:], last["end"]["truncated"]) == ("short\n", True)


async def test_a_process_whose_end_is_unknown_gives_its_last_output_and_does_not_spoil_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Process, "wait", failing(Process.wait))

    async with served() as client:
        path = await started(client, "echo last words")
        text, last = await all_output(client, path)
        assert text == "last words\n"
        assert last["end"] is None
        assert last["error"] == {"type": "ExecLostError", "message": "its shell is gone"}
        (listed,) = (await client.ask("GET", path.rpartition("/")[0])).value["processes"]
        assert listed["error"]["type"] == "ExecLostError"


def failing(wait: Any) -> Any:
    def fail(process: Process, timeout_s: float | None = None) -> Any:
        wait(process, timeout_s)
        raise ExecLostError("its shell is gone")

    return fail


async def test_what_a_process_writes_while_its_output_is_read_comes_with_the_next_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = Process.take

    def end_after(process: Process, stream: Any = "stdout") -> Any:
        got = take(process, stream)
        if stream == "stderr" and not process.ended.is_set:  # both streams were read
            process.signal(signal.SIGTERM)
            process.wait(20)
        return got

    async with served() as client:
        path = await started(
            client, "trap 'echo last; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
        )
        first = (await client.ask("POST", f"{path}/output", json={"wait_s": 20})).value
        assert first["stdout"] == "ready\n"
        monkeypatch.setattr(Process, "take", end_after)
        second = (await client.ask("POST", f"{path}/output", json={})).value
        assert (second["stdout"], second["end"]) == ("", None)
        text, last = await all_output(client, path)
        assert (text, last["end"]["exit_code"]) == ("last\n", 0)
