"""The agent loop with a scripted model in this process: limits, malformed calls, handlers."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hyperruntime.errors import ContextLengthError, SandboxLostError
from hyperruntime.rollout.agent.agent import AgentLimits, AgentResult, AgentTask, run_agent
from hyperruntime.rollout.agent.model import Sampling
from hyperruntime.testing.model import calls, says
from tests.doubles.episodes import BASH, FakeModel, cancel


async def echo(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
    return json.dumps({"tool": name, "task": task_id, **arguments})


def converse(model: FakeModel, handler: Callable[..., Any] = echo, **limits: Any) -> AgentResult:
    task = AgentTask(
        id="t/0",
        model=model,
        messages=[{"role": "user", "content": "go"}],
        tools=[BASH],
        tool_handler=handler,
        limits=AgentLimits(**limits),
        sampling=Sampling(max_tokens=100, seed=7),
    )
    return asyncio.run(run_agent(task))


def test_tool_calls_run_one_after_the_other_in_their_order() -> None:
    order: list[str] = []

    async def slow_first(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        await asyncio.sleep(0.01 if not order else 0)
        order.append(arguments["command"])
        return str(arguments["command"])

    model = FakeModel(calls(("bash", {"command": "a"}), ("bash", {"command": "b"})), says("done"))
    result = converse(model, slow_first)
    assert order == ["a", "b"]
    assert [m["role"] for m in result.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [m["content"] for m in result.messages[2:4]] == ["a", "b"]
    assert [m["tool_call_id"] for m in result.messages[2:4]] == ["call_0", "call_1"]
    assert (result.stop_reason, result.turns, result.tool_calls) == ("finished", 2, 2)


def test_a_cancelled_conversation_ends_even_if_a_tool_fails_at_the_same_time() -> None:
    async def fail(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        try:
            begun.append(name)
            await asyncio.sleep(3600)
        finally:
            raise ValueError("the tool was not ended well")

    model, begun = FakeModel(calls(("bash", {"command": "a"}))), list[str]()
    task = AgentTask(id="t/0", model=model, messages=[], tools=[BASH], tool_handler=fail)
    cancel(run_agent(task), lambda: bool(begun))
    assert len(model.asked) == 1


def test_malformed_calls_are_answered_with_the_error_and_the_loop_continues() -> None:
    model = FakeModel(
        calls(("bash", "{not json"), ("rm", {}), ("bash", {})),
        calls(("bash", {"command": "ls"})),
        says("done"),
    )
    result = converse(model)
    answers = [m["content"] for m in result.messages if m["role"] == "tool"]
    assert ["JSON" in answers[0], "unknown tool 'rm'" in answers[1], "'command'" in answers[2]] == [
        True
    ] * 3
    assert json.loads(answers[3]) == {"tool": "bash", "task": "t/0", "command": "ls"}
    assert [(error["turn"], error["tool"]) for error in result.tool_errors] == [
        (1, "bash"),
        (1, "rm"),
        (1, "bash"),
    ]
    assert (result.tool_calls, result.stop_reason) == (1, "finished")


def test_tool_calls_in_the_text_are_executed() -> None:
    model = FakeModel(
        says('I look. <tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>')
    )
    result = converse(model)
    assert result.messages[1]["content"] == "I look."
    assert result.messages[1]["tool_calls"][0]["function"]["name"] == "bash"
    assert result.tool_calls == 1


def test_r2_an_exception_of_a_handler_becomes_a_json_error_and_is_recorded() -> None:
    async def broken(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        raise KeyError("x")

    result = converse(FakeModel(calls(("bash", {"command": "a"}))), broken)
    assert json.loads(result.messages[2]["content"]) == {"error": "'bash' failed: KeyError: 'x'"}
    assert result.tool_errors[0]["tool"] == "bash"
    assert result.stop_reason == "finished"


def test_w23_a_lost_container_raises_and_is_not_a_tool_result() -> None:
    async def lost(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        raise SandboxLostError("the container ended")

    with pytest.raises(SandboxLostError):
        converse(FakeModel(calls(("bash", {"command": "a"}))), lost)


@pytest.mark.parametrize(
    ("limits", "reason", "turns"),
    [
        ({"turns": 3}, "turn_limit", 3),
        ({"tokens": 9}, "token_limit", 2),
        ({"context_tokens": 22}, "context_limit", 2),
        ({"time_s": 0.0}, "time_limit", 0),
    ],
)
def test_limits_end_a_conversation(limits: dict[str, Any], reason: str, turns: int) -> None:
    model = FakeModel(*[calls(("bash", {"command": "a"}))] * 50)
    result = converse(model, **limits)
    assert (result.stop_reason, result.turns) == (reason, turns)


def test_a_turn_requests_only_the_remaining_tokens_and_has_its_own_seed() -> None:
    model = FakeModel(*[calls(("bash", {"command": "a"}))] * 2)
    converse(model, tokens=12)
    assert [asked.max_tokens for _, asked in model.asked] == [12, 7, 2]
    assert [asked.seed for _, asked in model.asked] == [7, 8, 9]


def test_the_time_limit_cancels_a_tool_and_every_call_gets_an_answer() -> None:
    ended = []

    async def forever(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(name)
        return ""

    model = FakeModel(calls(("bash", {"command": "a"}), ("bash", {"command": "b"})))
    result = converse(model, forever, time_s=0.05)
    assert (result.stop_reason, result.tool_calls) == ("time_limit", 0)
    assert [m["role"] for m in result.messages] == ["user", "assistant", "tool", "tool"]
    assert ended[0] == "bash"


def test_a_conversation_that_outgrows_the_context_ends_and_is_kept() -> None:
    result = converse(FakeModel(calls(("bash", {"command": "a"})), ContextLengthError("too long")))
    assert (result.stop_reason, result.turns, len(result.messages)) == ("context_limit", 1, 3)


def test_w23_opening_messages_that_exceed_the_context_raise_an_error() -> None:
    with pytest.raises(ContextLengthError):
        converse(FakeModel(ContextLengthError("too long")))
