"""Batches, and the two faces of a slot's tools, over a stand-in for the slot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from hyperruntime.errors import SandboxLostError, SpecError, StaleLeaseError
from hyperruntime.pool.tools.agent_tools import SlotTools
from hyperruntime.pool.tools.batch import Request, run_batch
from hyperruntime.pool.values.result import ExecutionResult
from hyperruntime.pool.values.slot import Slot


def slot(name: str) -> Slot:
    return Slot(slot_id=name, generation=0, task_id="t", profile="default", workspace="/w", container="c")


class Slots:
    """Stands in for a pool: tool ``sleep`` takes its seconds, ``lost``, ``stale`` and ``bug`` fail past any tool."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def execute(self, slot: Slot, tool: str, args: Mapping[str, Any], timeout_s: float | None) -> ExecutionResult:
        self.log.append(f"{slot.slot_id} begins {args.get('n')}")
        if tool == "sleep":
            await asyncio.sleep(args["s"])
        if tool == "lost":
            raise SandboxLostError("the container ended")
        if tool == "stale":
            raise StaleLeaseError("the slot was released")
        if tool == "bug":
            raise KeyError
        self.log.append(f"{slot.slot_id} ends {args.get('n')}")
        facts = {"returncode": 0, "t": timeout_s}
        return ExecutionResult(success=True, output=str(args.get("n")), slot_id=slot.slot_id, metadata=facts)


def test_results_are_in_the_order_of_requests_and_one_slots_calls_one_after_another() -> None:
    """R16."""
    slots = Slots()
    a, b = slot("a"), slot("b")
    requests: list[Request] = [
        (a, "sleep", {"s": 0.05, "n": 1}),
        (b, "x", {"n": 2}),
        (a, "x", {"n": 3}),
        (b, "x", {"n": 4}),
    ]

    results = asyncio.run(run_batch(requests, slots.execute, timeout_s=7))

    assert [(r.output, r.slot_id, r.metadata["t"]) for r in results] == [
        ("1", "a", 7), ("2", "b", 7), ("3", "a", 7), ("4", "b", 7),
    ]  # fmt: skip
    assert [line for line in slots.log if line.startswith("a")] == ["a begins 1", "a ends 1", "a begins 3", "a ends 3"]
    assert slots.log.index("b ends 4") < slots.log.index("a ends 1")


def test_every_failure_is_its_own_result_and_nothing_is_tried_again() -> None:
    """R16, W11, W12: the public system failed a whole batch with empty errors, and ran commands twice."""
    slots = Slots()
    requests: list[Any] = [(slot(name), name, {"n": name}) for name in ("lost", "stale", "bug", "fine")] + [
        "nonsense",
        None,
        (slot("x"), "y"),
    ]

    results = asyncio.run(run_batch(requests, slots.execute))

    assert [r.success for r in results] == [False, False, False, True, False, False, False]
    assert [r.metadata.get("lost") for r in results[:4]] == [True, True, False, None]
    assert all(r.error for r in results if not r.success)
    assert all("returncode" in r.metadata for r in results)
    assert sum("begins" in line for line in slots.log) == 4


def test_one_slow_call_keeps_nobody_waiting() -> None:
    """W1, W17: no window, no dispatcher that waits for a batch."""
    slots = Slots()

    async def run() -> bool:
        slow = asyncio.create_task(run_batch([(slot("a"), "sleep", {"s": 30})], slots.execute))
        await run_batch([(slot("b"), "x", {})], slots.execute)
        waiting = not slow.done()
        slow.cancel()
        await asyncio.wait([slow])
        return waiting and slow.cancelled()

    assert asyncio.run(run())
    assert "a ends None" not in slots.log


def handle(tools: SlotTools, *calls: tuple[Any, Any]) -> list[dict[str, Any]]:
    async def run() -> list[str]:
        return [await tools.tool_handler(name, args, "task") for name, args in calls]

    return [json.loads(text) for text in asyncio.run(run())]


class Execute:
    """Stands in for ``lease.tool``."""

    def __init__(self, result: ExecutionResult | Exception) -> None:
        self.result = result
        self.calls: list[tuple[str, Any, float | None]] = []

    async def __call__(self, name: str, args: Mapping[str, Any], *, timeout_s: float | None = None) -> ExecutionResult:
        self.calls.append((name, args, timeout_s))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize("name", ["terminal", "bash", "terminal_stateful", "bash_stateful"])
def test_a_command_is_answered_with_its_output_and_its_exact_code(name: str) -> None:
    """R2, W10."""
    failed = ExecutionResult(success=False, output="no\n", error="code 77", exit_code=77, metadata={"returncode": 77})

    assert handle(SlotTools(Execute(failed)), (name, {})) == [{"output": "no\n", "exit_code": 77}]


def test_a_timeout_is_said_in_the_output() -> None:
    late = ExecutionResult(
        success=False,
        output="a\n",
        error="ended after 1 s",
        exit_code=124,
        timed_out=True,
        metadata={"returncode": 124},
    )

    assert handle(SlotTools(Execute(late)), ("bash", {})) == [{"output": "a\n\n[ended after 1 s]", "exit_code": 124}]


def test_other_tools_are_answered_with_what_they_say() -> None:
    written = ExecutionResult(
        success=True, output="3 bytes written", metadata={"returncode": 0, "path": "f", "network": "none", "bytes": 3}
    )

    assert handle(SlotTools(Execute(written)), ("write_file", {})) == [
        {"success": True, "output": "3 bytes written", "path": "f", "bytes": 3}
    ]


def test_the_handler_never_raises_and_records_what_could_not_be_carried_out() -> None:
    """R2."""
    tools = SlotTools(Execute(SandboxLostError("the container ended")))

    answers = handle(tools, ("bash", {}), ("read_file", {"path": "\ud800"}), ([], None), ("nope", {1: object()}))

    assert answers[0] == {"output": "", "exit_code": -1, "error": "the container ended"}
    assert all(answer["error"] == "the container ended" for answer in answers)
    assert [(e.tool, e.task_id) for e in tools.errors] == [(n, "task") for n in ("bash", "read_file", "[]", "nope")]


def test_a_runner_may_ask_to_hear_of_a_lost_slot_as_an_exception() -> None:
    """W23: infrastructure that failed is no answer to a model."""
    tools = SlotTools(Execute(SandboxLostError("gone")), raise_lost=True)

    with pytest.raises(SandboxLostError):
        handle(tools, ("bash", {}))
    assert len(tools.errors) == 1


def test_nothing_runs_on_the_host_but_what_is_named() -> None:
    """R9, W21: the public system ran every tool but the terminal on the host."""
    slot_calls = Execute(ExecutionResult(success=False, error="unknown tool", metadata={"returncode": None}))
    previews: list[tuple[str, str]] = []

    async def clock(args: Mapping[str, Any]) -> Any:
        return {"time": 5, "zone": args["zone"]}

    async def broken(args: Mapping[str, Any]) -> Any:
        raise OSError("no disk")

    tools = SlotTools(
        slot_calls,
        host_tools={"clock": clock, "broken": broken},
        on_preview=lambda label, tool, _: previews.append((label, tool)),
    )
    answers = handle(tools, ("clock", {"zone": "z"}), ("broken", {}), ("web_search", {}))

    assert answers == [{"time": 5, "zone": "z"}, {"error": "OSError: no disk"}, {"error": "unknown tool"}]
    assert previews == [("[host]", "clock"), ("[host]", "broken"), ("[sandbox]", "web_search")]
    assert [call[0] for call in slot_calls.calls] == ["web_search"]
    assert [e.tool for e in tools.errors] == ["broken", "web_search"]


@pytest.mark.parametrize("name", ["bash", "terminal", "read_file", "search"])
def test_a_host_tool_cannot_take_a_slots_tools_name(name: str) -> None:
    """W21."""
    with pytest.raises(SpecError, match="host_tools"):
        SlotTools(Execute(ExecutionResult(success=True)), host_tools={name: Execute})  # type: ignore[dict-item]


def test_programs_get_the_result_itself() -> None:
    """R7: 300 seconds unless they say otherwise."""
    result = ExecutionResult(success=True, metadata={"returncode": 0})
    execute = Execute(result)

    assert asyncio.run(SlotTools(execute).exec_tool("bash", {"command": "true"})) is result
    asyncio.run(SlotTools(execute).exec_tool("bash", {"command": "true"}, 9.5))
    assert [call[2] for call in execute.calls] == [300, 9.5]
