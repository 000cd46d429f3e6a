"""T1: the work of a batch on one row: its image and directory, its conversation, and its result
line.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import hyperruntime as hr
from hyperruntime.errors import ModelError, SpecError
from hyperruntime.rollout.agent.agent import AgentLimits, Tools
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.batch.batch import BatchSummary, Prompts, iter_results, run_batch
from hyperruntime.rollout.batch.prompts import PromptRow, parse_row
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import Parts
from hyperruntime.rollout.run_files.run_dir import RESULTS
from hyperruntime.sandbox import Sandbox

BASE = hr.ContainerSpec(image="base:1", env={"A": "1"})
SCHEMA = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}},
}


class FakeSlots:
    """Slots without containers; records the requested leases and the held ones."""

    capacity = 100

    def __init__(self) -> None:
        self.asked: list[tuple[str, hr.ContainerSpec]] = []
        self.held: set[str] = set()

    @asynccontextmanager
    async def lease(self, spec: hr.ContainerSpec, task_id: str) -> AsyncIterator[Sandbox]:
        self.asked.append((task_id, spec))
        self.held.add(task_id)
        try:
            yield None  # type: ignore[misc]
        finally:
            self.held.discard(task_id)


class FakeModel:
    """A model that calls a tool once, then answers with the tool's result."""

    name = "scripted"

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
    ) -> Completion:
        self.seeds.append(sampling.seed)
        if messages[-1]["content"] == "fail":
            raise ModelError("the model's server is gone")
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        if messages[-1]["role"] == "tool":
            message = {"role": "assistant", "content": f"it said {messages[-1]['content']}"}
            return Completion(message=message, finish_reason="stop", usage=usage)
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "bash", "arguments": '{"command": "pwd"}'},
        }
        message = {"role": "assistant", "content": "", "tool_calls": [call]}  # type: ignore[dict-item]
        return Completion(message=message, finish_reason="tool_calls", usage=usage)

    async def close(self) -> None:
        return


def toolset(lease: Sandbox) -> Tools:
    async def handle(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        return f"{name} {arguments['command']} of {task_id}"

    return Tools(schemas=(SCHEMA,), handler=handle, errors=[])


def batch(
    rows: Sequence[PromptRow],
    output: Path,
    slots: FakeSlots | None = None,
    model: FakeModel | None = None,
    **given: Any,
) -> BatchSummary:
    options = RolloutOptions(environment="batch", container=BASE, attempts=1, **given)
    parts = Parts(
        model=model or FakeModel(), slots=cast(Any, slots or FakeSlots()), toolset=toolset
    )
    runtime = cast(hr.Runtime, SimpleNamespace(images=None))
    return asyncio.run(run_batch(runtime, Prompts(rows), options, output, parts=parts))


def settled(output: Path) -> dict[str, dict[str, Any]]:
    return {line["id"]: line for line in iter_results(output / RESULTS)}


def row(**value: Any) -> PromptRow:
    return parse_row(value, "line 1", Counter())


def test_the_result_has_the_conversation_its_usage_and_its_timing(tmp_path: Path) -> None:
    slots = FakeSlots()
    batch([row(prompt="where?", id="x")], tmp_path, slots)
    result = settled(tmp_path)["x"]
    assert [message["role"] for message in result["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert result["messages"][-1]["content"] == "it said bash pwd of x/0"
    assert (result["turns"], result["tool_calls"], result["stop_reason"]) == (2, 1, "finished")
    assert result["usage"] == {"prompt_tokens": 20, "completion_tokens": 10}
    assert set(result["timing"]) == {"slot_s", "model_s", "tools_s", "total_s"}
    assert result["model"] == "scripted"
    assert slots.held == set()


def test_a_result_line_has_exactly_the_documented_keys(tmp_path: Path) -> None:
    batch([row(prompt="a", id="good"), row(prompt="fail", id="bad")], tmp_path)
    both = ["id", "row", "digest", "started_at", "attempts", "status", "error"]
    done = [
        "model",
        "messages",
        "stop_reason",
        "turns",
        "tool_calls",
        "tool_errors",
        "usage",
        "timing",
    ]
    lines = settled(tmp_path)
    assert list(lines["good"]) == [*both, *done]
    assert list(lines["bad"]) == both
    assert list(lines["bad"]["error"]) == ["kind", "message"]
    assert {path.name for path in tmp_path.iterdir()} <= {RESULTS, "owner.json", ".owner.lock"}


def test_a_row_runs_in_the_image_and_directory_that_it_names(tmp_path: Path) -> None:
    slots = FakeSlots()
    rows = [
        row(prompt="a", id="1"),
        row(prompt="a", id="2", docker_image="other:2", cwd="/testbed"),
    ]
    batch(rows, tmp_path, slots)
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


def test_a_limit_ends_a_conversation_and_is_recorded(tmp_path: Path) -> None:
    batch([row(prompt="a", id="x")], tmp_path, limits=AgentLimits(turns=1))
    result = settled(tmp_path)["x"]
    assert (result["stop_reason"], result["turns"]) == ("turn_limit", 1)


def test_a_model_error_fails_its_row_and_the_slot_is_released(tmp_path: Path) -> None:
    slots = FakeSlots()
    summary = batch([row(prompt="fail", id="bad"), row(prompt="a", id="good")], tmp_path, slots)
    lines = settled(tmp_path)
    assert (summary.done, summary.failed) == (1, 1)
    assert lines["bad"]["error"]["kind"] == "ModelError"
    assert lines["good"]["status"] == "done"
    assert slots.held == set()


def test_a_batch_sends_no_seed_unless_the_options_set_one(tmp_path: Path) -> None:
    rows, model = [row(prompt="a")], FakeModel()
    batch(rows, tmp_path / "without", model=model)
    assert set(model.seeds) == {None}
    batch(rows, tmp_path / "with", model=model, seed=1)
    assert model.seeds[-1] is not None


def test_a_batch_in_which_every_row_fails_runs_all_rows(tmp_path: Path) -> None:
    rows = [row(prompt="fail", id=f"r{number}") for number in range(30)]
    assert batch(rows, tmp_path, give_up_after=2).failed == 30


def test_invalid_options_create_no_directory(tmp_path: Path) -> None:
    runtime = cast(hr.Runtime, SimpleNamespace(images=None))
    options = RolloutOptions(environment="batch", tools=("no-such-tool",))
    with pytest.raises(SpecError, match="no-such-tool"):
        asyncio.run(run_batch(runtime, Prompts([row(prompt="a")]), options, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
