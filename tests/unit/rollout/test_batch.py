"""T1: batches of prompts: the format of a row, its work and its result line; a batch that is killed
loses no row and records none twice.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hyperruntime as hr
from hyperruntime.datasets.left_out import LeftOut
from hyperruntime.errors import ModelError, RunLockedError, SpecError
from hyperruntime.rollout.agent.agent import AgentResult, AgentTask
from hyperruntime.rollout.batch import (
    BatchSummary,
    PromptRow,
    Prompts,
    iter_results,
    parse_row,
    read_rows,
    run_batch,
    unknown_keys,
)
from hyperruntime.rollout.run_files.run_dir import RESULTS
from hyperruntime.testing.model import calls, says
from tests.doubles.episodes import RUNTIME, FakeModel, FakeSlots, options, parts

BASE = hr.ContainerSpec(image="base:1", env={"A": "1"})


def rows_of(tmp_path: Path, *rows: Any) -> tuple[PromptRow, ...]:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return read_rows(path)


def row(**value: Any) -> PromptRow:
    return parse_row(value, "line 1", Counter())


def plain_rows(count: int) -> list[PromptRow]:
    return [row(prompt=f"p{n}", id=f"r{n}") for n in range(count)]


def row_of(task: AgentTask) -> str:
    return task.id.removesuffix("/0")


def answered(task: AgentTask, content: Any) -> AgentResult:
    messages = [*task.messages, {"role": "assistant", "content": content}]
    return AgentResult(messages=messages, stop_reason="finished", turns=1)


async def echo(task: AgentTask) -> AgentResult:
    return answered(task, f"done {row_of(task)}")


async def batch(
    rows: Any,
    output: Path,
    agent: Any = echo,
    *,
    slots: FakeSlots | None = None,
    model: FakeModel | None = None,
    **more: Any,
) -> BatchSummary:
    """Run a batch; without an agent, the default one."""
    prompts = rows if isinstance(rows, Prompts) else Prompts(rows)
    chosen = options(**{"seed": None, "container": BASE, "group_size": 1, **more})
    used = parts(model=model, slots=slots, agent=agent)
    return await run_batch(RUNTIME, prompts, chosen, output, parts=used)


def run(*args: Any, **more: Any) -> BatchSummary:
    return asyncio.run(batch(*args, **more))


def settled(output: Path) -> dict[str, dict[str, Any]]:
    return {line["id"]: line for line in iter_results(output / RESULTS)}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let failed rows be tried again at once."""
    monkeypatch.setattr("hyperruntime.rollout.run.runner._RETRY_S", 0.001)


def test_a_prompt_becomes_a_user_message_and_unknown_keys_are_kept(tmp_path: Path) -> None:
    (one,) = rows_of(
        tmp_path,
        {"prompt": "hello", "id": 7, "docker_image": "a:1", "cwd": "/x", "difficulty": [1]},
    )
    assert (one.id, one.image, one.cwd) == ("7", "a:1", "/x")
    assert one.messages == ({"role": "user", "content": "hello"},)
    assert one.data["difficulty"] == [1]
    assert list(unknown_keys([one])) == ["difficulty"]


def test_rows_without_an_id_keep_their_derived_id_when_the_file_grows(tmp_path: Path) -> None:
    a, b, new = ({"prompt": name} for name in ("a", "b", "new"))
    before = {row.id for row in rows_of(tmp_path, a, b, a)}
    after = {row.id for row in rows_of(tmp_path, new, a, a, b)}
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
    odd = [b"{", b'{"prompt": null}', b'{"prompt": "caf\xe9"}', b"", b"[1]"]
    lines = [b'{"prompt": "a", "id": "first"}', *odd, b'{"prompt": "b", "id": "first"}']
    path.write_bytes(b"\n".join([*lines, b'{"prompt": "c", "id": "last"}']))
    left = LeftOut()
    rows = read_rows(path, left)
    assert [row.id for row in rows] == ["first", "last"]
    assert sorted(left.reasons) == ["line 2", "line 3", "line 4", "line 6", "line 7"]
    assert "UTF-8" in left.reasons["line 4"]
    summary = run(Prompts(rows, left_out=left.reasons), tmp_path / "out")
    assert (summary.rows, summary.done, summary.left_out) == (2, 2, left.reasons)


def test_a_file_without_valid_rows_is_rejected_with_the_first_reason(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    for text, says_so in (
        ('{"prompt": 3}\n{\n', r"2 unsupported: line 1 \(line 1: prompt=3 is not allowed"),
        ("\n \n", "this one has none"),
    ):
        path.write_text(text)
        with pytest.raises(SpecError, match=says_so):
            read_rows(path, LeftOut())


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
        one = row(**value)
    except SpecError:
        return
    assert one.id
    assert one.messages
    assert one.data == value


def test_every_row_gets_one_result_line_that_contains_the_row(tmp_path: Path) -> None:
    rows = [row(prompt=f"p{n}", id=f"r{n}", extra={"n": n}) for n in range(20)]
    summary = run(rows, tmp_path)
    assert (summary.rows, summary.done, summary.failed, summary.skipped) == (20, 20, 0, 0)
    lines = [json.loads(line) for line in (tmp_path / RESULTS).read_text().splitlines()]
    assert sorted(line["id"] for line in lines) == sorted(row.id for row in rows)
    assert all(line["row"]["extra"] == {"n": int(line["id"][1:])} for line in lines)
    assert all(line["messages"][-1]["content"] == f"done {line['id']}" for line in lines)


def test_a_result_line_has_exactly_the_documented_keys(tmp_path: Path) -> None:
    slots = FakeSlots()
    replies = (calls(bash={"command": "pwd"}), says("it said so"), ModelError("gone"))
    rows = [row(prompt="where?", id="good"), row(prompt="b", id="bad")]
    model = FakeModel(*replies)
    summary = run(rows, tmp_path, None, slots=slots, model=model, parallel=1, attempts=1)
    assert (summary.done, summary.failed, slots.held) == (1, 1, 0)
    both = ["id", "row", "digest", "started_at", "attempts", "status", "error"]
    done = ["model", "messages", "stop_reason", "turns", "tool_calls", "tool_errors", "usage"]
    lines = settled(tmp_path)
    good = lines["good"]
    assert list(good) == [*both, *done, "timing"]
    assert list(lines["bad"]) == both
    assert lines["bad"]["error"] == {"kind": "ModelError", "message": "gone"}
    roles = [message["role"] for message in good["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert good["messages"][2]["content"] == "bash pwd of good/0"
    assert (good["turns"], good["tool_calls"], good["stop_reason"]) == (2, 1, "finished")
    assert good["usage"] == {"prompt_tokens": 30, "completion_tokens": 10}
    assert set(good["timing"]) == {"slot_s", "model_s", "tools_s", "total_s"}
    assert (good["model"], set(model.seeds)) == ("scripted", {None}), "no seed unless one is set"
    assert {path.name for path in tmp_path.iterdir()} <= {RESULTS, "owner.json", ".owner.lock"}


def test_a_row_runs_in_the_image_and_directory_that_it_names(tmp_path: Path) -> None:
    slots = FakeSlots()
    other = row(prompt="a", id="2", docker_image="other:2", cwd="/testbed")
    run([row(prompt="a", id="1"), other], tmp_path, slots=slots)
    seen = {task: (spec.image, spec.workdir, spec.env["A"]) for task, spec in slots.asked}
    assert seen == {"1/0": ("base:1", None, "1"), "2/0": ("other:2", "/testbed", "1")}


@pytest.mark.parametrize("own", [True, False])
def test_the_system_message_is_added_only_if_the_row_has_none(own: bool) -> None:
    messages = [{"role": "system", "content": "mine"}] if own else []
    messages.append({"role": "user", "content": "a"})
    prompts = Prompts([row(messages=messages)], "yours")
    (item,) = prompts.items()
    opening = prompts.messages(item, {})
    assert [message["content"] for message in opening] == ["mine" if own else "yours", "a"]


def test_a_second_call_runs_only_new_rows(tmp_path: Path) -> None:
    rows = plain_rows(2)
    run(rows[:1], tmp_path)
    seen: list[str] = []

    async def agent(task: AgentTask) -> AgentResult:
        seen.append(row_of(task))
        return await echo(task)

    summary = run(rows, tmp_path, agent)
    assert seen == [rows[1].id]
    assert (summary.skipped, summary.done) == (1, 2)


def test_a_failed_row_is_recorded_and_does_not_affect_other_rows(tmp_path: Path) -> None:
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

    summary = run(plain_rows(6), tmp_path, agent, parallel=2, attempts=3)
    lines = settled(tmp_path)
    assert (summary.done, summary.failed) == (3, 3)
    assert begun == {"r0": 1, "r1": 3, "r2": 3, "r3": 1, "r4": 1, "r5": 1}
    assert lines["r1"]["error"] == {"kind": "ModelError", "message": "the model's server is gone"}
    assert lines["r1"]["attempts"] == 3
    assert lines["r2"]["error"]["kind"] == "ZeroDivisionError"
    assert lines["r3"]["error"]["kind"] == "TypeError"


def test_failed_rows_are_retried_only_on_request(tmp_path: Path) -> None:
    async def fail(task: AgentTask) -> AgentResult:
        raise ModelError("gone")

    rows = plain_rows(30)
    assert run(rows, tmp_path, fail, attempts=1, give_up_after=2).failed == 30, "all of them ran"
    assert run(rows, tmp_path).failed == 30
    summary = run(rows, tmp_path, retry_failed=True)
    assert (summary.done, summary.failed, summary.skipped) == (30, 0, 0)
    lines = (tmp_path / RESULTS).read_text().splitlines()
    assert sorted(json.loads(line)["id"] for line in lines) == sorted(row.id for row in rows)


def test_a_row_that_changed_under_the_same_id_is_rejected(tmp_path: Path) -> None:
    run([row(prompt="a", id="x")], tmp_path)
    with pytest.raises(SpecError, match="use another directory or id"):
        run([row(prompt="other", id="x")], tmp_path)


def test_a_second_batch_in_the_same_directory_is_rejected(tmp_path: Path) -> None:
    rows = plain_rows(1)

    async def agent(task: AgentTask) -> AgentResult:
        with pytest.raises(RunLockedError, match="process"):
            await batch(rows, tmp_path)
        return await echo(task)

    assert run(rows, tmp_path, agent).done == 1


def test_a_row_with_a_truncated_result_line_is_run_again(tmp_path: Path) -> None:
    rows = plain_rows(2)
    run(rows, tmp_path)
    path = tmp_path / RESULTS
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in (*range(first, len(whole) - 1, 37), len(whole) - 1):
        path.write_bytes(whole[:cut])
        summary = run(rows, tmp_path)
        assert (summary.done, summary.rows) == (2, 2)
        assert sorted(settled(tmp_path)) == ["r0", "r1"]


def test_invalid_options_create_no_directory(tmp_path: Path) -> None:
    wrong = options(tools=("no-such-tool",))
    with pytest.raises(SpecError, match="no-such-tool"):
        asyncio.run(run_batch(RUNTIME, Prompts(plain_rows(1)), wrong, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
