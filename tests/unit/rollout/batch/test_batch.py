"""T1: batches of prompts: the format of a row; a batch that is killed loses no row and records none
twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperruntime.datasets.left_out import LeftOut
from hyperruntime.errors import LeaseLostError, ModelError, RunLockedError, SpecError
from hyperruntime.rollout.agent.agent import AgentResult, AgentTask, Tools
from hyperruntime.rollout.batch.batch import BatchSummary, Prompts, iter_results, run_batch
from hyperruntime.rollout.batch.prompts import PromptRow, parse_row, read_rows, unknown_keys
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import Parts
from hyperruntime.rollout.run_files.run_dir import RESULTS
from hyperruntime.runs.lock import RunLock

ROOT = Path(__file__).parents[4]


def settled(path: Path) -> dict[str, dict[str, Any]]:
    return {line["id"]: line for line in iter_results(path)}


def write_rows(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def rows_of(tmp_path: Path, *rows: Any) -> tuple[PromptRow, ...]:
    return read_rows(write_rows(tmp_path / "prompts.jsonl", *rows))


class FakeSlots:
    """Slots without containers; a lease does nothing."""

    capacity = 1000

    @asynccontextmanager
    async def lease(self, spec: Any, task_id: str) -> AsyncIterator[None]:
        yield


async def no_tool(*_: Any) -> str:
    return ""


def row_of(task: AgentTask) -> str:
    return task.id.removesuffix("/0")


def answered(task: AgentTask, content: Any) -> AgentResult:
    messages = [*task.messages, {"role": "assistant", "content": content}]
    return AgentResult(messages=messages, stop_reason="finished", turns=1)


async def echo(task: AgentTask) -> AgentResult:
    return answered(task, f"done {row_of(task)}")


def parts_of(agent: Callable[[AgentTask], Awaitable[AgentResult]]) -> Parts:
    return Parts(
        agent=agent,
        model=cast(Any, SimpleNamespace(name="none")),
        slots=cast(Any, FakeSlots()),
        toolset=lambda lease: Tools(schemas=(), handler=no_tool),
    )


async def batch(
    rows: tuple[PromptRow, ...],
    output: Path,
    agent: Callable[[AgentTask], Awaitable[AgentResult]] = echo,
    **options: Any,
) -> BatchSummary:
    parts = parts_of(agent)
    runtime = cast(Any, SimpleNamespace(images=None))
    chosen = RolloutOptions(environment="batch", **options)
    return await run_batch(runtime, Prompts(rows), chosen, output, parts=parts)


def run(
    rows: tuple[PromptRow, ...], output: Path, agent: Any = echo, **options: Any
) -> BatchSummary:
    return asyncio.run(batch(rows, output, agent, **options))


def test_a_prompt_becomes_a_user_message_and_unknown_keys_are_kept(tmp_path: Path) -> None:
    (row,) = rows_of(
        tmp_path,
        {"prompt": "hello", "id": 7, "docker_image": "a:1", "cwd": "/x", "difficulty": [1]},
    )
    assert (row.id, row.image, row.cwd) == ("7", "a:1", "/x")
    assert row.messages == ({"role": "user", "content": "hello"},)
    assert row.data["difficulty"] == [1]
    assert list(unknown_keys([row])) == ["difficulty"]


def test_rows_without_an_id_keep_their_derived_id_when_the_file_grows(tmp_path: Path) -> None:
    before = {
        row.id for row in rows_of(tmp_path, {"prompt": "a"}, {"prompt": "b"}, {"prompt": "a"})
    }
    after = {
        row.id
        for row in rows_of(
            tmp_path, {"prompt": "new"}, {"prompt": "a"}, {"prompt": "a"}, {"prompt": "b"}
        )
    }
    assert len(before) == 3
    assert before < after


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", "JSON object"),
        ("{", r"prompts\.jsonl:2"),
        ("{}", "one of 'prompt' and 'messages'"),
        ('{"prompt": "a", "messages": []}', "one of 'prompt' and 'messages'"),
        ('{"prompt": ""}', "prompt"),
        ('{"prompt": 3}', "prompt"),
        ('{"messages": []}', "messages"),
        ('{"messages": [{"role": "robot", "content": ""}]}', "role"),
        ('{"messages": [{"role": "user"}]}', "content"),
        ('{"prompt": "a", "id": "first"}', "line 1 has the same id"),
        ('{"prompt": "a", "id": " "}', "printable"),
        ('{"prompt": "a", "id": true}', "printable"),
        ('{"prompt": "a", "image": "x", "docker_image": "y"}', "docker_image"),
        ('{"prompt": "a", "cwd": 5}', "cwd"),
        ('{"prompt": "a", "cwd": "src"}', "absolute"),
        ("[" * 100_000, r"prompts\.jsonl:2"),
    ],
)
def test_an_invalid_row_is_rejected_with_its_line_number(
    tmp_path: Path, line: str, words: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a", "id": "first"}}\n{line}\n')
    with pytest.raises(SpecError, match=words):
        read_rows(path)


def test_odd_rows_are_left_out_by_line_and_the_others_run(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [
        b'{"prompt": "a", "id": "first"}',
        b"{",
        b'{"prompt": null}',
        b'{"prompt": "caf\xe9"}',
        b"",
        b"[1]",
    ]
    path.write_bytes(
        b"\n".join([*lines, b'{"prompt": "b", "id": "first"}', b'{"prompt": "c", "id": "last"}'])
    )
    left = LeftOut()
    rows = read_rows(path, left)
    assert [row.id for row in rows] == ["first", "last"]
    assert sorted(left.reasons) == ["line 2", "line 3", "line 4", "line 6", "line 7"]
    assert "UTF-8" in left.reasons["line 4"]
    runtime, prompts = cast(Any, SimpleNamespace(images=None)), Prompts(rows, left_out=left.reasons)
    chosen = RolloutOptions(environment="batch")
    summary = asyncio.run(
        run_batch(runtime, prompts, chosen, tmp_path / "out", parts=parts_of(echo))
    )
    assert (summary.rows, summary.done, summary.left_out) == (2, 2, left.reasons)


def test_a_file_with_odd_rows_only_is_rejected_with_the_first_reason(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": 3}\n{\n')
    with pytest.raises(SpecError, match=r"2 unsupported: line 1 \(line 1: prompt=3 is not allowed"):
        read_rows(path, LeftOut())


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_rows_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(SpecError, match="this one has none"):
        read_rows(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["prompt", "messages", "id", "image", "docker_image", "cwd", "x"]), JSON
    )
)
def test_any_json_object_is_parsed_or_rejected(value: dict[str, Any]) -> None:
    try:
        row = parse_row(value, "line 1", Counter())
    except SpecError:
        return
    assert row.id
    assert row.messages
    assert row.data == value


def test_every_row_gets_one_result_line_that_contains_the_row(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path, *({"prompt": f"p{n}", "id": f"r{n}", "extra": {"n": n}} for n in range(20))
    )
    summary = run(rows, tmp_path / "out", parallel=4)
    assert (summary.rows, summary.done, summary.failed, summary.skipped) == (20, 20, 0, 0)
    lines = [json.loads(line) for line in (tmp_path / "out" / RESULTS).read_text().splitlines()]
    assert sorted(line["id"] for line in lines) == sorted(row.id for row in rows)
    assert all(line["row"]["extra"] == {"n": int(line["id"][1:])} for line in lines)
    assert all(line["messages"][-1]["content"] == f"done {line['id']}" for line in lines)


def test_a_second_call_runs_only_new_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, {"prompt": "a"}, {"prompt": "b"})
    run(rows[:1], tmp_path / "out")
    seen: list[str] = []

    async def agent(task: AgentTask) -> AgentResult:
        seen.append(row_of(task))
        return await echo(task)

    summary = run(rows, tmp_path / "out", agent)
    assert seen == [rows[1].id]
    assert (summary.skipped, summary.done) == (1, 2)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let failed rows be tried again at once."""
    monkeypatch.setattr("hyperruntime.rollout.run.scheduler._RETRY_S", 0.001)


@pytest.mark.usefixtures("no_pause")
def test_a_failed_row_is_recorded_and_does_not_affect_other_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, *({"prompt": "p", "id": f"r{n}"} for n in range(6)))
    begun: Counter[str] = Counter()

    async def agent(task: AgentTask) -> AgentResult:
        begun[row_of(task)] += 1
        if row_of(task) == "r1":
            raise ModelError("the model's server is gone")
        if row_of(task) == "r2":
            raise ZeroDivisionError("not ours")
        if row_of(task) == "r3":
            return answered(task, object())
        return await echo(task)

    summary = run(rows, tmp_path / "out", agent, parallel=2, attempts=3)
    lines = settled(tmp_path / "out" / RESULTS)
    assert (summary.done, summary.failed) == (3, 3)
    assert begun == {"r0": 1, "r1": 3, "r2": 3, "r3": 1, "r4": 1, "r5": 1}
    assert lines["r1"]["error"] == {"kind": "ModelError", "message": "the model's server is gone"}
    assert lines["r1"]["attempts"] == 3
    assert lines["r2"]["error"]["kind"] == "ZeroDivisionError"
    assert lines["r3"]["error"]["kind"] == "TypeError"


@pytest.mark.usefixtures("no_pause")
def test_failed_rows_are_retried_only_on_request(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, {"prompt": "a", "id": "bad"}, {"prompt": "b", "id": "good"})

    async def fail(task: AgentTask) -> AgentResult:
        if row_of(task) == "bad":
            raise ModelError("gone")
        return await echo(task)

    run(rows, tmp_path / "out", fail)
    assert run(rows, tmp_path / "out").failed == 1
    summary = run(rows, tmp_path / "out", retry_failed=True)
    assert (summary.done, summary.failed, summary.skipped) == (2, 0, 1)
    lines = (tmp_path / "out" / RESULTS).read_text().splitlines()
    assert sorted(json.loads(line)["id"] for line in lines) == ["bad", "good"]


def test_at_most_parallel_rows_run_at_the_same_time(tmp_path: Path) -> None:
    now = most = 0
    all_at_once = asyncio.Event()

    async def agent(task: AgentTask) -> AgentResult:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        if now == 5:
            all_at_once.set()
        await all_at_once.wait()
        await asyncio.sleep(0.001)
        now -= 1
        return await echo(task)

    run(
        rows_of(tmp_path, *({"prompt": "p"} for _ in range(30))),
        tmp_path / "out",
        agent,
        parallel=5,
    )
    assert most == 5


def test_a_row_that_changed_under_the_same_id_is_rejected(tmp_path: Path) -> None:
    run(rows_of(tmp_path, {"prompt": "a", "id": "x"}), tmp_path / "out")
    with pytest.raises(SpecError, match="use another directory or id"):
        run(rows_of(tmp_path, {"prompt": "other", "id": "x"}), tmp_path / "out")


def test_a_second_batch_in_the_same_directory_is_rejected(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, {"prompt": "a"})

    async def agent(task: AgentTask) -> AgentResult:
        with pytest.raises(RunLockedError, match="process"):
            await batch(rows, tmp_path / "out")
        return await echo(task)

    assert run(rows, tmp_path / "out", agent).done == 1


def test_a_cancelled_batch_does_not_record_its_failing_row_and_starts_no_other(
    tmp_path: Path,
) -> None:
    begun: list[str] = []

    async def agent(task: AgentTask) -> AgentResult:
        begun.append(row_of(task))
        try:
            await asyncio.sleep(1000 if len(begun) == 1 else 0)
        finally:
            if len(begun) == 1:
                raise RuntimeError("the slot could not be given back")
        return await echo(task)

    async def work() -> None:
        rows = rows_of(tmp_path, *({"prompt": "p", "id": f"r{n}"} for n in range(3)))
        task = asyncio.create_task(batch(rows, tmp_path / "out", agent, parallel=1))
        while not begun:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert begun == ["r0"]
    assert settled(tmp_path / "out" / RESULTS) == {}


def test_a_batch_fails_if_another_process_takes_over_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = RunLock.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "renew_s", 0.02)
    owner = tmp_path / "out" / "owner.json"

    async def agent(task: AgentTask) -> AgentResult:
        owner.write_text(json.dumps(json.loads(owner.read_bytes()) | {"token": "another"}))
        await asyncio.Event().wait()
        return await echo(task)

    with pytest.raises(LeaseLostError, match="taken over"):
        run(rows_of(tmp_path, {"prompt": "a"}), tmp_path / "out", agent)
    assert json.loads(owner.read_bytes())["token"] == "another"


def test_a_row_with_a_truncated_result_line_is_run_again(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, {"prompt": "a", "id": "1"}, {"prompt": "b", "id": "2"})
    run(rows, tmp_path / "out")
    path = tmp_path / "out" / RESULTS
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in (*range(first, len(whole) - 1, 7), len(whole) - 1):
        path.write_bytes(whole[:cut])
        summary = run(rows, tmp_path / "out")
        assert (summary.done, summary.rows) == (2, 2)
        assert sorted(settled(path)) == ["1", "2"]


BATCH = """
import asyncio, sys
from pathlib import Path
from tests.unit.rollout.batch.test_batch import batch, row_of, answered
from hyperruntime.rollout.batch.prompts import read_rows

async def agent(task):
    await asyncio.sleep(0.02)
    return answered(task, row_of(task) * 200)

asyncio.run(batch(read_rows(Path(sys.argv[1])), Path(sys.argv[2]), agent, parallel=3))
"""


@pytest.mark.slow
def test_a_batch_that_is_killed_several_times_loses_no_row_and_records_none_twice(
    tmp_path: Path,
) -> None:
    prompts = write_rows(
        tmp_path / "prompts.jsonl", *({"prompt": f"p{n}", "id": f"r{n}"} for n in range(180))
    )
    out, killed = tmp_path / "out", 0
    args = [sys.executable, "-c", BATCH, str(prompts), str(out)]
    while True:
        process = subprocess.Popen(
            args, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE
        )
        wanted = len(settled(out / RESULTS)) + 40
        while process.poll() is None and len(settled(out / RESULTS)) < wanted:
            time.sleep(0.01)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += 1
    assert process.communicate()[1] == b""
    assert process.returncode == 0
    assert killed >= 2
    count: Counter[str] = Counter()
    for line in (out / RESULTS).read_text().splitlines():
        try:
            count[json.loads(line)["id"]] += 1
        except ValueError:
            continue  # truncated by a kill; the next batch begins a new line
    assert count == Counter(f"r{n}" for n in range(180))
