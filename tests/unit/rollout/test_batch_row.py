"""T1: what a batch does with a row: its image and directory, its conversation, and what is written of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.errors import ModelError
from hyperruntime.pool.lease import Lease
from hyperruntime.rollout.agent.agent import AgentLimits
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.agent.toolset import Tools
from hyperruntime.rollout.batch.batch import RESULTS, iter_results, run_batch
from hyperruntime.rollout.batch.prompts import PromptRow, parse_row
from hyperruntime.rollout.batch.row import RowWorker

BASE = hr.ContainerSpec(image="base:1", env={"A": "1"})
SCHEMA = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}


class FakeSlots:
    """Slots without containers: which were asked for, and which are held."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, hr.ContainerSpec]] = []
        self.held: set[str] = set()

    @asynccontextmanager
    async def lease(self, spec: hr.ContainerSpec, task_id: str) -> AsyncIterator[Lease]:
        self.asked.append((task_id, spec))
        self.held.add(task_id)
        try:
            yield None  # type: ignore[misc]
        finally:
            self.held.discard(task_id)


class FakeModel:
    """Calls a tool once, then answers with what the tool said."""

    name = "scripted"

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], sampling: Sampling
    ) -> Completion:
        if messages[-1]["content"] == "fail":
            raise ModelError("the model's server is gone")
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        if messages[-1]["role"] == "tool":
            message = {"role": "assistant", "content": f"it said {messages[-1]['content']}"}
            return Completion(message=message, finish_reason="stop", usage=usage)
        call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "pwd"}'}}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}  # type: ignore[dict-item]
        return Completion(message=message, finish_reason="tool_calls", usage=usage)

    async def close(self) -> None:
        return


def toolset(lease: Lease) -> Tools:
    async def handle(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        return f"{name} {arguments['command']} of {task_id}"

    return Tools(schemas=(SCHEMA,), handler=handle, errors=[])


def attendant(slots: FakeSlots, **options: Any) -> RowWorker:
    return RowWorker(lease=slots.lease, model=FakeModel(), toolset=toolset, container=BASE, **options)


def settled(path: Path) -> dict[str, dict[str, Any]]:
    return {line["id"]: line for line in iter_results(path)}


def row(**value: Any) -> PromptRow:
    return parse_row(value, "line 1")


def test_the_conversation_its_usage_and_its_times_are_written() -> None:
    slots = FakeSlots()
    result = asyncio.run(attendant(slots)(row(prompt="where?", id="x")))
    assert [message["role"] for message in result["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert result["messages"][-1]["content"] == "it said bash pwd of x"
    assert (result["turns"], result["tool_calls"], result["stop_reason"]) == (2, 1, "finished")
    assert result["usage"] == {"prompt_tokens": 20, "completion_tokens": 10}
    assert {"slot_s", "model_s", "tools_s", "total_s"} <= set(result["timing"])
    assert json.loads(json.dumps(result))["model"] == "scripted"
    assert slots.held == set()


def test_a_row_has_the_image_and_the_directory_that_it_names() -> None:
    slots = FakeSlots()
    work = attendant(slots)
    asyncio.run(work(row(prompt="a", id="1")))
    asyncio.run(work(row(prompt="a", id="2", docker_image="other:2", cwd="/testbed")))
    seen = {task: (spec.image, spec.workdir, spec.env["A"]) for task, spec in slots.asked}
    assert seen == {"1": ("base:1", None, "1"), "2": ("other:2", "/testbed", "1")}


@pytest.mark.parametrize("own", [True, False])
def test_a_system_message_is_put_in_front_where_there_is_none(own: bool) -> None:
    messages = [{"role": "system", "content": "mine"}] if own else []
    messages.append({"role": "user", "content": "a"})
    opening = attendant(FakeSlots(), system="yours").opening(row(messages=messages))
    assert [message["content"] for message in opening] == ["mine" if own else "yours", "a"]


def test_a_limit_ends_a_conversation_and_is_told() -> None:
    result = asyncio.run(attendant(FakeSlots(), limits=AgentLimits(turns=1))(row(prompt="a")))
    assert (result["stop_reason"], result["turns"]) == ("turn_limit", 1)


def test_a_model_that_is_gone_fails_its_row_and_the_slot_is_given_back(tmp_path: Path) -> None:
    slots = FakeSlots()
    rows = [row(prompt="fail", id="bad"), row(prompt="a", id="good")]
    summary = asyncio.run(run_batch(rows, attendant(slots), tmp_path))
    lines = settled(tmp_path / RESULTS)
    assert (summary.done, summary.failed) == (1, 1)
    assert lines["bad"]["error"]["kind"] == "ModelError"
    assert lines["good"]["status"] == "done"
    assert slots.held == set()
