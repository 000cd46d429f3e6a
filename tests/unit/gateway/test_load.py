"""What one container can make of work for the gateway: values counted before they are parsed, and parsed elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psutil import NoSuchProcess, Process, pid_exists

from hyperruntime.gateway import ClientLimits, Gateway, GatewayConfig, ModelRule, Seat, Upstream
from hyperruntime.gateway.request.json_size import ValueCounter, count_values
from hyperruntime.gateway.request.pace import Pace
from hyperruntime.gateway.request.parse import RequestRefusedError
from hyperruntime.gateway.request.parse_pool import ParsePool, PoolShare
from hyperruntime.testing.upstream import ScriptedUpstream, chat, scripted_upstream

LARGE = 10**6  # a cost that no event loop bears
json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)


def values_in(data: Any) -> int:
    """Count the values of JSON, names of members too."""
    if isinstance(data, dict):
        return 1 + sum(1 + values_in(value) for value in data.values())
    return 1 + sum(map(values_in, data)) if isinstance(data, list) else 1


@given(json_values, st.lists(st.integers(0, 300)), st.sampled_from([None, 2]), st.booleans())
def test_no_value_is_missed_however_the_text_comes(data: Any, at: list[int], indent: int | None, ascii_: bool) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_).encode(errors="replace")
    places = sorted({0, len(text), *(min(place, len(text)) for place in at)})
    counter = ValueCounter()
    for begin, end in pairwise(places):
        counter.feed(text[begin:end])
    assert counter.values >= values_in(data)


@pytest.mark.parametrize(
    "text", ["a, b: [c] {d} " * 10_000, '{"json": ["in", "json"]}, ' * 10_000, "\\" * 9999 + '", "' * 3]
)
def test_signs_in_long_texts_do_not_count(text: str) -> None:
    assert count_values(json.dumps({"a": text, "b": [1, 2]}).encode()) < 60


def run(work: Callable[[ParsePool], Coroutine[Any, Any, None]], workers: int = 1) -> None:
    """Run something with a pool, and close it."""

    async def whole() -> None:
        pool = ParsePool(workers)
        try:
            await work(pool)
        finally:
            await asyncio.to_thread(pool.close)

    asyncio.run(whole())


def fail(status: int) -> None:
    """Refuse."""
    raise RequestRefusedError(status, "some_kind", "a sentence")


def test_what_is_large_is_done_in_another_process_which_ends_with_the_pool() -> None:
    seen: list[int] = []

    async def work(pool: ParsePool) -> None:
        share = PoolShare(pool)
        assert await share.run(1, os.getpid) == os.getpid()
        seen.append(await share.run(LARGE, os.getpid))
        assert await share.run(LARGE, os.getpid) == seen[0]
        assert seen[0] != os.getpid()
        assert await share.run(LARGE, os.getppid) == os.getpid()

    run(work)
    assert not pid_exists(seen[0])


def test_a_refusal_in_a_worker_is_the_callers() -> None:
    async def work(pool: ParsePool) -> None:
        with pytest.raises(RequestRefusedError, match="a sentence") as refused:
            await pool.run(LARGE, fail, 418)
        assert (refused.value.status, refused.value.kind) == (418, "some_kind")

    run(work)


def test_a_worker_that_is_lost_costs_one_request() -> None:
    async def work(pool: ParsePool) -> None:
        with pytest.raises(RequestRefusedError, match="retry"):
            await pool.run(LARGE, os._exit, 3)
        assert await pool.run(LARGE, len, b"abc") == 3

    run(work)


def read_pipe(path: str) -> bytes:
    """Return what somebody writes, once he does."""
    return Path(path).read_bytes()


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    """A named pipe."""
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


def test_a_seat_has_one_turn_at_a_time(pipe: str) -> None:
    order: list[str] = []

    async def one(name: str, share: PoolShare) -> None:
        await share.run(LARGE, len, b"")
        order.append(name)

    async def work(pool: ParsePool) -> None:
        busy = asyncio.create_task(pool.run(0, read_pipe, pipe))
        await asyncio.sleep(0)
        hostile, other = PoolShare(pool), PoolShare(pool)
        tasks = [asyncio.create_task(one(f"hostile {number}", hostile)) for number in range(3)]
        tasks.append(asyncio.create_task(one("other", other)))
        await asyncio.sleep(0)
        await asyncio.to_thread(Path(pipe).write_bytes, b"x")
        await asyncio.gather(busy, *tasks)

    run(work)
    assert order == ["hostile 0", "other", "hostile 1", "hostile 2"]


def test_a_large_job_is_done_beside_seats_that_always_have_smaller_ones_waiting() -> None:
    done: list[str] = []

    async def always(share: PoolShare) -> None:
        while done.count("large") < 3:
            await share.run(LARGE, len, b"")
            done.append("small")

    async def work(pool: ParsePool) -> None:
        shares = [PoolShare(pool) for _ in range(8)]
        tasks = [asyncio.create_task(always(share)) for share in shares for _ in range(4)]
        while len(done) < 50:
            await shares[0].run(LARGE, len, b"")
        share = PoolShare(pool)
        begun = len(done)
        for _ in range(3):
            await share.run(10 * LARGE, len, b"")
            done.append("large")
        await asyncio.gather(*tasks)
        large = [at for at, name in enumerate(done) if name == "large"]
        assert large[0] - begun <= 2 * 8, "one turn of each, and what had its turn already"
        assert large[2] - large[0] <= 2 * 11 * 8, "as much of each as it had itself"

    run(work)


def test_a_client_that_leaves_keeps_its_turn_until_the_worker_is_free(pipe: str) -> None:
    async def work(pool: ParsePool) -> None:
        share = PoolShare(pool)
        gone = asyncio.create_task(share.run(LARGE, read_pipe, pipe))
        await asyncio.sleep(0)
        gone.cancel()
        nexts = asyncio.create_task(share.run(LARGE, len, b""))
        done, _ = await asyncio.wait([nexts], timeout=0.2)
        assert not done
        await asyncio.to_thread(Path(pipe).write_bytes, b"x")
        assert await nexts == 0

    run(work, workers=2)


def test_a_pace_lets_a_burst_go_and_then_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(_: float) -> None:
        """Return at once."""

    now = [1000.0]
    monkeypatch.setattr("hyperruntime.gateway.request.pace.time.monotonic", lambda: now[0])
    monkeypatch.setattr("hyperruntime.gateway.request.pace.asyncio.sleep", sleep)
    pace = Pace(10.0, burst=3)

    def waits(count: int) -> list[float]:
        return [asyncio.run(pace.take()) for _ in range(count)]

    assert waits(5) == pytest.approx([0, 0, 0, 0.1, 0.2])
    now[0] += 0.4
    assert waits(3) == pytest.approx([0, 0, 0.1])
    now[0] += 100
    assert waits(4) == pytest.approx([0, 0, 0, 0.1]), "no more than one burst is saved"


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """A model server."""
    with scripted_upstream(lambda _: chat("hello")) as running:
        yield running


def gateway(upstream: ScriptedUpstream, **limits: Any) -> Gateway:
    """Return a gateway before it."""
    return Gateway(
        GatewayConfig(
            upstreams=(Upstream(name="u", url=upstream.url),),
            models=(ModelRule(name="m", upstream="u"),),
            limits=ClientLimits(**limits),
        )
    )


def workers() -> list[int]:
    """Return the parse workers of this process, by their pids."""
    found = []
    for child in Process().children():
        with suppress(NoSuchProcess):
            found += [child.pid] if any("parse_worker" in word for word in child.cmdline()) else []
    return found


def ask(seat: Seat, body: bytes, path: str = "/v1/chat/completions") -> tuple[int, Any]:
    """Return an answer's status and its JSON, for a body that is sent whole before the answer is read."""
    head = f"POST {path} HTTP/1.1\r\nHost: g\r\nConnection: close\r\nAuthorization: Bearer {seat.token}\r\n"
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(120)
        client.connect(seat.socket_path)
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        data = b""
        while piece := client.recv(65536):
            data += piece
    return int(data.split(b" ")[1]), json.loads(data.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(
    "part",
    [b"1,", b"[],", b"{},", b'"",', b'"a":{},', b"[[],[1,2],{}],"],
    ids=["1", "[]", "{}", "texts", "names", "mixed"],
)
def test_millions_of_values_are_refused_before_they_are_parsed(
    upstream: ScriptedUpstream, tmp_path: Path, part: bytes
) -> None:
    body = b'{"model": "m", "a": [' + part * (6_000_000 // len(part)) + b"1]}"
    with gateway(upstream) as opened, opened.seat("gen-1", str(tmp_path)) as seat:
        status, answer = ask(seat, body)
        assert workers() == [], "none was started for it"
    assert (status, answer["error"]["type"]) == (413, "body_too_large")
    assert "500000 JSON values" in answer["error"]["message"]
    assert "limits.body_values" in answer["error"]["message"]
    assert upstream.received == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": list(range(200_000))}),
        ("/v1/completions", {"prompt": [list(range(50_000))] * 4}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "yes, [and] {so}: on, " * 400} for _ in range(400)]},
        ),
        ("/v1/chat/completions", {"messages": [{"content": json.dumps({"a": [1, "b"]}) * 40_000}]}),
        (
            "/v1/chat/completions",
            {"messages": [{"image_url": {"url": "data:image/png;base64," + "iVBORw0K" * 1_200_000}}]},
        ),
    ],
    ids=["token ids", "batch", "conversation", "JSON in a text", "image"],
)
def test_large_requests_of_real_use_pass(
    upstream: ScriptedUpstream, tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    with gateway(upstream) as opened, opened.seat("gen-1", str(tmp_path)) as seat:
        assert ask(seat, json.dumps({"model": "m", **body}).encode(), path)[0] == 200
        assert len(workers()) == 1, "it was parsed there"
    assert upstream.received[0].body == {"model": "m", **body}
    assert workers() == []


def test_refusals_are_answered_at_a_pace_and_only_to_who_earns_them(
    upstream: ScriptedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("hyperruntime.gateway.request.pace.time", SimpleNamespace(monotonic=lambda: 1000.0))
    monkeypatch.setattr("hyperruntime.gateway.request.pace.asyncio", SimpleNamespace(sleep=sleep))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        gateway(upstream, refusals_per_s=5.0) as opened,
        opened.seat("bad", str(tmp_path / "a")) as bad,
        opened.seat("good", str(tmp_path / "b")) as good,
    ):
        assert {ask(bad, b"{]")[0] for _ in range(15)} == {400}
        assert waits == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0]), "five a second, after a burst of ten"
        assert ask(good, b'{"model": "m"}')[0] == 200
        assert ask(bad, b'{"model": "m"}')[0] == 200
        assert len(waits) == 5
