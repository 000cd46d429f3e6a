"""Load from one container: the gateway counts JSON values before parsing, and parses large bodies
elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psutil import NoSuchProcess, Process, pid_exists

from hyperruntime.gateway import ClientLimits
from hyperruntime.gateway.formats.openai import COMPLETIONS_PATH
from hyperruntime.gateway.request.pace import Pace
from hyperruntime.gateway.request.parse import RequestRefusedError
from hyperruntime.gateway.request.parse_pool import ParsePool, PoolShare
from hyperruntime.json_values import ValueCounter, count_values
from tests.doubles.upstream import chat
from tests.unit.gateway.rig import CHAT, Rig, ask

LARGE = 10**6  # a cost that is too high for the event loop
json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)


def values_in(data: Any) -> int:
    """Return the number of values in JSON, counting the names of members."""
    if isinstance(data, dict):
        return 1 + sum(1 + values_in(value) for value in data.values())
    return 1 + sum(map(values_in, data)) if isinstance(data, list) else 1


@given(json_values, st.lists(st.integers(0, 300)), st.sampled_from([None, 2]), st.booleans())
def test_every_value_is_counted_for_any_split_of_the_text(
    data: Any, at: list[int], indent: int | None, ascii_: bool
) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_).encode(errors="replace")
    places = sorted({0, len(text), *(min(place, len(text)) for place in at)})
    counter = ValueCounter()
    for begin, end in pairwise(places):
        counter.feed(text[begin:end])
    assert counter.values >= values_in(data)


@pytest.mark.parametrize(
    "text",
    ["a, b: [c] {d} " * 10_000, '{"json": ["in", "json"]}, ' * 10_000, "\\" * 9999 + '", "' * 3],
)
def test_commas_and_brackets_inside_long_strings_do_not_count(text: str) -> None:
    assert count_values(json.dumps({"a": text, "b": [1, 2]}).encode()) < 60


def run(work: Callable[[ParsePool], Coroutine[Any, Any, None]], workers: int = 1) -> None:
    """Run a coroutine function with a pool, and close the pool."""

    async def whole() -> None:
        pool = ParsePool(workers)
        try:
            await work(pool)
        finally:
            await asyncio.to_thread(pool.close)

    asyncio.run(whole())


def fail(status: int) -> None:
    """Raise an error as a rejected request does."""
    raise RequestRefusedError(status, "some_kind", "a sentence")


def test_large_jobs_run_in_a_worker_process_that_ends_with_the_pool() -> None:
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


def test_a_rejection_in_a_worker_is_raised_to_the_caller() -> None:
    async def work(pool: ParsePool) -> None:
        with pytest.raises(RequestRefusedError, match="a sentence") as refused:
            await pool.run(LARGE, fail, 418)
        assert (refused.value.status, refused.value.kind) == (418, "some_kind")

    run(work)


def test_a_worker_that_dies_costs_one_request() -> None:
    async def work(pool: ParsePool) -> None:
        with pytest.raises(RequestRefusedError, match="retry"):
            await pool.run(LARGE, os._exit, 3)
        assert await pool.run(LARGE, len, b"abc") == 3

    run(work)


def read_pipe(path: str) -> bytes:
    """Return the content of a named pipe; blocks until another process writes."""
    return Path(path).read_bytes()


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    """Return the path of a named pipe."""
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


def test_seats_take_turns(pipe: str) -> None:
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


def test_a_large_job_is_not_starved_by_seats_with_many_small_jobs() -> None:
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
        assert large[0] - begun <= 2 * 8, (
            "the large job waited for more than two turns of each other seat"
        )
        assert large[2] - large[0] <= 2 * 11 * 8, (
            "the other seats got more work done than their share"
        )

    run(work)


def test_a_cancelled_job_keeps_its_turn_until_the_worker_is_free(pipe: str) -> None:
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


def test_a_pace_allows_a_burst_and_then_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(_: float) -> None:
        """Do not wait."""

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
    assert waits(4) == pytest.approx([0, 0, 0, 0.1]), "an idle seat saved more than one burst"


def workers() -> list[int]:
    """Return the pids of the parse workers of this process."""
    found = []
    for child in Process().children():
        with suppress(NoSuchProcess):
            found += [child.pid] if any("parse_worker" in word for word in child.cmdline()) else []
    return found


@pytest.mark.parametrize(
    "part",
    [b"1,", b"[],", b"{},", b'"",', b'"a":{},', b"[[],[1,2],{}],"],
    ids=["1", "[]", "{}", "texts", "names", "mixed"],
)
def test_a_body_with_millions_of_values_is_rejected_before_it_is_parsed(
    start: Callable[..., Rig], part: bytes
) -> None:
    rig = start(chat("hello"))
    body = b'{"model": "m", "a": [' + part * (6_000_000 // len(part)) + b"1]}"
    status, answer = ask(rig.seat(), body)
    assert workers() == [], "a worker was started for a rejected body"
    assert (status, answer["error"]["type"]) == (413, "body_too_large")
    assert "500000 JSON values" in answer["error"]["message"]
    assert "limits.body_values" in answer["error"]["message"]
    assert rig.upstream.received == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS_PATH, {"prompt": list(range(200_000))}),
        (COMPLETIONS_PATH, {"prompt": [list(range(50_000))] * 4}),
        (CHAT, {"messages": [{"role": "user", "content": "yes, [and] {so}: on, " * 400}] * 400}),
        (CHAT, {"messages": [{"content": json.dumps({"a": [1, "b"]}) * 40_000}]}),
        (CHAT, {"messages": [{"image_url": {"url": "data:image/png," + "iVBORw0K" * 1_200_000}}]}),
    ],
    ids=["token ids", "batch", "conversation", "JSON in a text", "image"],
)
def test_large_realistic_requests_pass(
    start: Callable[..., Rig], path: str, body: dict[str, Any]
) -> None:
    rig = start(chat("hello"))
    assert ask(rig.seat(), {"model": "m", **body}, path)[0] == 200
    assert len(workers()) == 1, "the body was not parsed in a worker"
    rig.gateway.close()
    assert rig.upstream.received[0].body == {"model": "m", **body}
    assert workers() == []


def test_rejections_are_delayed_only_for_the_seat_that_causes_them(
    start: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr("hyperruntime.gateway.request.pace.time", clock)
    waiting = SimpleNamespace(**{**vars(asyncio), "sleep": wait})
    monkeypatch.setattr("hyperruntime.gateway.request.pace.asyncio", waiting)
    rig = start(chat("hello"), limits=ClientLimits(refusals_per_s=5.0))
    bad, good = rig.seat("bad"), rig.seat("good")
    assert {ask(bad, b"{]")[0] for _ in range(15)} == {400}
    assert waits == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0]), (
        "5 rejections per second are allowed after a burst of 10"
    )
    assert ask(good, {"model": "m"})[0] == 200
    assert ask(bad, {"model": "m"})[0] == 200
    assert len(waits) == 5
