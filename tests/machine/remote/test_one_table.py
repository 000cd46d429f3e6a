"""Back-pressure, cancellation, half-closed streams and deadlines are the same for a caller on the
head of a cluster and for a client of the HTTP service: both ask the one table of verbs.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import FrameType
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.concurrency.loop_streams import LoopStreams
from hyperruntime.errors import HyperRuntimeError, TransferTimeoutError
from hyperruntime.remote import handlers
from hyperruntime.runtime import Runtime
from hyperruntime.testing import FakeDriver
from hyperruntime.testing.driver import IMAGE
from tests.doubles.http_service import raw, served
from tests.doubles.node_pool import CONFIG, pool
from tests.doubles.service_client import ServiceClient

PIECE = 1_000_000
FLOOD = f"while :; do head -c {PIECE} /dev/zero; echo x >>$HERE; done"
MOST_PIECES = 40  # that buffers hold


class Caller(ABC):
    """A sandbox elsewhere, as one kind of caller has it."""

    @abstractmethod
    async def exec(self, script: str, timeout_s: float | None = None) -> tuple[int, str]:
        """Run a script; return its exit code and its standard output."""

    @abstractmethod
    def unread(
        self, script: str, timeout_s: float | None = None
    ) -> AbstractAsyncContextManager[asyncio.Future[None]]:
        """Run a script whose output is not taken; yield what is done at its end, with the error."""

    @abstractmethod
    async def talk(self, script: str, data: str) -> str:
        """Give a process its whole input, and return all of its output."""

    @abstractmethod
    async def write_in_vain(self, script: str) -> bool:
        """Return whether a write to a process that does not read any more is refused."""


class HeadCaller(Caller):
    def __init__(self, lease: hr.Sandbox) -> None:
        self.lease = lease

    async def exec(self, script: str, timeout_s: float | None = None) -> tuple[int, str]:
        result = await self.lease.exec(["sh", "-c", script], timeout_s=timeout_s)
        return result.exit_code, result.stdout.decode()

    @asynccontextmanager
    async def unread(
        self, script: str, timeout_s: float | None = None
    ) -> AsyncIterator[asyncio.Future[None]]:
        may_take = threading.Event()

        def refuse(*_: object) -> None:
            may_take.wait(60)

        async def ask() -> None:
            await self.lease.exec(["sh", "-c", script], timeout_s=timeout_s, on_output=refuse)

        asking = asyncio.ensure_future(ask())
        try:
            yield asking
        finally:
            asking.cancel()
            may_take.set()
            await asyncio.wait([asking])

    async def talk(self, script: str, data: str) -> str:
        async with await self.lease.spawn(["sh", "-c", script]) as process:
            await process.awrite(data.encode())
            process.close_stdin()
            return (await process.await_end()).stdout.decode()

    async def write_in_vain(self, script: str) -> bool:
        async with await self.lease.spawn(["sh", "-c", script]) as process:
            while b"up" not in process.stdout:
                await asyncio.sleep(0.01)
            try:
                await process.awrite(bytes(4 * PIECE))
            except BrokenPipeError:
                return True
            return False


class HttpCaller(Caller):
    def __init__(self, client: ServiceClient, one: str) -> None:
        self.client = client
        self.one = one

    async def exec(self, script: str, timeout_s: float | None = None) -> tuple[int, str]:
        fields = {"args": ["sh", "-c", script], "timeout_s": timeout_s}
        answer = (await self.client.ask("POST", f"{self.one}/exec", json=fields)).value
        return answer["exit_code"], answer["stdout"]

    @asynccontextmanager
    async def unread(
        self, script: str, timeout_s: float | None = None
    ) -> AsyncIterator[asyncio.Future[None]]:
        fields = {"args": ["sh", "-c", script], "timeout_s": timeout_s, "stream": True}
        stuck = await raw(self.client, f"{self.one}/exec", fields)
        reader, writer = await asyncio.open_connection(sock=stuck)
        ended = asyncio.ensure_future(self._end(reader))
        try:
            yield ended
        finally:
            ended.cancel()
            writer.transport.abort()
            await asyncio.wait([ended])

    async def _end(self, reader: asyncio.StreamReader) -> None:
        """Read when no request uses the container any more; the last line has the error."""
        while not (await self._state())["requests"]:
            await asyncio.sleep(0.01)
        while (await self._state())["requests"]:
            await asyncio.sleep(0.01)
        said = b""
        while b'"event": "error"' not in said or not said.endswith(b"\n"):
            said = said[-PIECE:] + await reader.read(PIECE)
        assert TransferTimeoutError.__name__.encode() in said
        raise TransferTimeoutError(said[-1000:].decode())

    async def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = (await self.client.ask("GET", self.one)).value
        return state

    async def _start(self, script: str) -> str:
        fields = {"args": ["sh", "-c", script]}
        made = await self.client.ask("POST", f"{self.one}/processes", json=fields)
        return f"{self.one}/processes/{made.value['process']}"

    async def talk(self, script: str, data: str) -> str:
        path = await self._start(script)
        given = {"input": data, "end": True}
        assert (await self.client.ask("POST", f"{path}/input", json=given)).status == 204
        said = ""
        last: dict[str, Any] = {"end": None}
        while last["end"] is None:
            last = (await self.client.ask("POST", f"{path}/output", json={"wait_s": 20})).value
            said += last["stdout"]
        return said

    async def write_in_vain(self, script: str) -> bool:
        path = await self._start(script)
        said = ""
        while "up" not in said:
            taken = await self.client.ask("POST", f"{path}/output", json={"wait_s": 20})
            said += taken.value["stdout"]
        given = {"input": "x" * 500_000}
        # what was taken before the pipe was found to be closed is lost, as in every pipe
        while (answer := await self.client.ask("POST", f"{path}/input", json=given)).status == 204:
            await asyncio.sleep(0.01)
        return answer.error == (409, "ContainerStateError")


@asynccontextmanager
async def from_head() -> AsyncIterator[Caller]:
    async with pool(1) as (made, _), made.lease() as lease:
        yield HeadCaller(lease)


@asynccontextmanager
async def over_http() -> AsyncIterator[Caller]:
    async with served() as client:
        yield HttpCaller(client, await client.container(image=IMAGE))


CallerOf = Callable[[], AbstractAsyncContextManager[Caller]]
callers = pytest.mark.parametrize("called", [from_head, over_http])


@pytest.fixture
def place() -> str:
    return f"/tmp/of-{os.getpid()}-{random.randrange(10**9)}"


@callers
async def test_output_that_is_not_taken_stops_its_command_and_nothing_else(
    called: CallerOf, place: str
) -> None:
    async def count(caller: Caller) -> int:
        return (await caller.exec(f"cat {place} 2>/dev/null"))[1].count("x")

    async with called() as caller, caller.unread(FLOOD.replace("$HERE", place)):
        pieces = -1
        # until it stands still; a caller that takes everything gets thousands of pieces
        while (now := await count(caller)) != pieces:
            pieces = now
            await asyncio.sleep(1)
        assert 0 <= pieces < MOST_PIECES
        assert await caller.exec("echo on") == (0, "on\n")


@callers
async def test_a_caller_that_goes_away_ends_its_command_with_all_processes(
    called: CallerOf, place: str
) -> None:
    async with called() as caller:
        for _ in range(2):  # the sandbox is used again
            script = f"sleep 300 & echo $! >{place}; wait"
            asking = asyncio.ensure_future(caller.exec(script))
            while (found := await caller.exec(f"cat {place}"))[0] or not found[1]:
                await asyncio.sleep(0.02)
            asking.cancel()
            while (await caller.exec(f"kill -0 $(cat {place})"))[0] == 0:
                await asyncio.sleep(0.02)
            await caller.exec(f"rm {place}")


@callers
async def test_the_end_of_one_direction_is_passed_on_and_the_other_goes_on(
    called: CallerOf,
) -> None:
    async with called() as caller:
        assert await caller.talk("cat; echo after", "given\n") == "given\nafter\n"
        assert await caller.write_in_vain("exec <&-; echo up; exec sleep 60")


@callers
async def test_a_deadline_holds_also_if_the_output_is_not_taken(
    called: CallerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "_LATE_S", 0.5)

    async with called() as caller:
        assert (await caller.exec("sleep 60", 0.3))[0] == 124
        async with caller.unread("exec cat /dev/zero", 0.5) as ended:
            with pytest.raises(TransferTimeoutError, match=r"was not read in 0\.5 s"):
                await ended
        assert await caller.exec("echo on") == (0, "on\n")


async def test_a_command_whose_engine_is_slow_to_end_it_keeps_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handlers, "_LATE_S", 0.1)

    async def slow() -> hr.ExecResult:
        await asyncio.sleep(1)
        return ended

    ended = hr.ExecResult(args=("sleep",), exit_code=124, timed_out=True)
    assert await handlers._finished(asyncio.ensure_future(slow()), LoopStreams(), 0.1) is ended


async def test_a_request_that_cannot_be_read_is_an_error_of_its_caller_alone() -> None:
    async with pool(1) as (made, cluster), made.lease() as lease:
        (node,) = cluster.nodes()
        for verb, fields in (
            ("exec.run", {"container": "none"}),
            ("file.read", {"container": "1", "pat": "x"}),
            ("process.write", {"container": "1"}),
        ):
            with pytest.raises(HyperRuntimeError):
                await node.peer.call(verb, fields)
        assert (await lease.exec(["true"])).exit_code == 0


def entered(seen: set[str]) -> Callable[[FrameType, str, Any], None]:
    def look(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("hyperruntime."):
            seen.add(name)

    return look


async def modules_of(lease: hr.Sandbox) -> set[str]:
    """Return the modules that a short exec enters on this thread, each time: a pool looks after its
    containers on it, too.
    """
    await lease.exec(["true"])
    each: list[set[str]] = []
    for _ in range(5):
        seen = set[str]()
        sys.setprofile(entered(seen))
        try:
            await lease.exec(["true"])
        finally:
            sys.setprofile(None)
        each.append(seen)
    return set.intersection(*each)


async def test_a_call_on_a_node_enters_two_modules_more_on_each_side_and_the_connection() -> None:
    with Runtime(FakeDriver()) as runtime:
        async with hr.SlotPool(runtime, CONFIG) as local, local.lease() as lease:
            here = await modules_of(lease)
    async with pool(1) as (made, _), made.lease() as lease:
        more = await modules_of(lease) - here
    rest = {
        name for name in more if not name.startswith(("hyperruntime.wire.", "hyperruntime.ports."))
    }
    head = {"hyperruntime.remote.sandbox", "hyperruntime.remote.calls"}
    node = {"hyperruntime.cluster.slots.pool_service", "hyperruntime.remote.handlers"}
    # the request and its reader, values on the wire, the end of a node's job
    shared = {
        "hyperruntime.remote.requests",
        "hyperruntime.json_values",
        "hyperruntime.settings.reader",
        "hyperruntime.cluster.node_services",
    }
    assert rest <= head | node | shared
