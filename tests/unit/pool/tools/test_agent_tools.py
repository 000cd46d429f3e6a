"""Batches of tool calls, and both interfaces of a slot's tools, with a fake pool or lease."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from hyperruntime.errors import SandboxLostError, SpecError, StaleLeaseError
from hyperruntime.pool.tools.agent_tools import SlotTools
from hyperruntime.pool.tools.dispatch import run_batch
from hyperruntime.pool_values.results import ExecutionResult, Request, Slot


def slot(name: str) -> Slot:
    return Slot(
        slot_id=name, generation=0, task_id="t", profile="default", workspace="/w", container="c"
    )


class Slots:
    """Stands in for a pool: the tool ``sleep`` waits, ``lost``, ``stale`` and ``bug`` raise an
    exception.
    """

    def __init__(self) -> None:
        self.log: list[str] = []

    async def execute(
        self, slot: Slot, tool: str, args: Mapping[str, Any], timeout_s: float | None
    ) -> ExecutionResult:
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
        return ExecutionResult(
            success=True, output=str(args.get("n")), slot_id=slot.slot_id, metadata=facts
        )


def test_results_keep_the_order_of_requests_and_the_calls_of_one_slot_run_in_sequence() -> None:
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
    assert [line for line in slots.log if line.startswith("a")] == [
        "a begins 1",
        "a ends 1",
        "a begins 3",
        "a ends 3",
    ]
    assert slots.log.index("b ends 4") < slots.log.index("a ends 1")


def test_each_failed_call_has_its_own_result_and_is_not_retried() -> None:
    """R16, W11, W12: the public system failed a whole batch with empty errors, and repeated
    commands.
    """
    slots = Slots()
    requests: list[Any] = [
        (slot(name), name, {"n": name}) for name in ("lost", "stale", "bug", "fine")
    ] + [
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


def test_a_slow_call_does_not_delay_other_batches() -> None:
    """W1, W17: calls are not collected into batches that wait for each other."""
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

    async def __call__(
        self, name: str, args: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> ExecutionResult:
        self.calls.append((name, args, timeout_s))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize("name", ["terminal", "bash", "terminal_stateful", "bash_stateful"])
def test_a_command_returns_its_output_and_its_exact_exit_code(name: str) -> None:
    """R2, W10."""
    failed = ExecutionResult(
        success=False, output="no\n", error="code 77", exit_code=77, metadata={"returncode": 77}
    )

    assert handle(SlotTools(Execute(failed)), (name, {})) == [{"output": "no\n", "exit_code": 77}]


def test_a_timeout_is_reported_in_the_output() -> None:
    late = ExecutionResult(
        success=False,
        output="a\n",
        error="ended after 1 s",
        exit_code=124,
        timed_out=True,
        metadata={"returncode": 124},
    )

    assert handle(SlotTools(Execute(late)), ("bash", {})) == [
        {"output": "a\n\n[ended after 1 s]", "exit_code": 124}
    ]


def test_other_tools_return_their_output_and_public_metadata() -> None:
    written = ExecutionResult(
        success=True,
        output="3 bytes written",
        metadata={"returncode": 0, "path": "f", "network": "none", "bytes": 3},
    )

    assert handle(SlotTools(Execute(written)), ("write_file", {})) == [
        {"success": True, "output": "3 bytes written", "path": "f", "bytes": 3}
    ]


def test_the_handler_never_raises_and_records_infrastructure_errors() -> None:
    """R2."""
    tools = SlotTools(Execute(SandboxLostError("the container ended")))

    answers = handle(
        tools, ("bash", {}), ("read_file", {"path": "\ud800"}), ([], None), ("nope", {1: object()})
    )

    assert answers[0] == {"output": "", "exit_code": -1, "error": "the container ended"}
    assert all(answer["error"] == "the container ended" for answer in answers)
    assert [(e.tool, e.task_id) for e in tools.errors] == [
        (n, "task") for n in ("bash", "read_file", "[]", "nope")
    ]


def test_raise_lost_makes_a_lost_slot_raise_an_exception() -> None:
    """W23: a failure of the infrastructure is not an answer to a model."""
    tools = SlotTools(Execute(SandboxLostError("gone")), raise_lost=True)

    with pytest.raises(SandboxLostError):
        handle(tools, ("bash", {}))
    assert len(tools.errors) == 1


def test_only_named_host_tools_run_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    """R9, W21: the public system ran every tool but the terminal on the host."""
    slot_calls = Execute(
        ExecutionResult(success=False, error="unknown tool", metadata={"returncode": None})
    )

    async def clock(args: Mapping[str, Any]) -> Any:
        return {"time": 5, "zone": args["zone"]}

    async def broken(args: Mapping[str, Any]) -> Any:
        raise OSError("no disk")

    tools = SlotTools(
        slot_calls,
        host_tools={"clock": clock, "broken": broken},
    )
    with caplog.at_level("DEBUG", logger="hyperruntime"):
        answers = handle(tools, ("clock", {"zone": "z"}), ("broken", {}), ("web_search", {}))

    assert answers == [
        {"time": 5, "zone": "z"},
        {"error": "OSError: no disk"},
        {"error": "unknown tool"},
    ]
    logged = [record.getMessage() for record in caplog.records]
    labels = [("[host]", "clock"), ("[host]", "broken"), ("[sandbox]", "web_search")]
    assert logged == [f"tool call label={label!r} tool={tool!r}" for label, tool in labels]
    assert [call[0] for call in slot_calls.calls] == ["web_search"]
    assert [e.tool for e in tools.errors] == ["broken", "web_search"]


@pytest.mark.parametrize("name", ["bash", "terminal", "read_file", "search"])
def test_a_host_tool_cannot_have_the_name_of_a_slot_tool(name: str) -> None:
    """W21."""
    with pytest.raises(SpecError, match="host_tools"):
        SlotTools(Execute(ExecutionResult(success=True)), host_tools={name: Execute})  # type: ignore[dict-item]


def test_exec_tool_returns_the_result_object() -> None:
    """R7: the default timeout is 300 seconds."""
    result = ExecutionResult(success=True, metadata={"returncode": 0})
    execute = Execute(result)

    assert asyncio.run(SlotTools(execute).exec_tool("bash", {"command": "true"})) is result
    asyncio.run(SlotTools(execute).exec_tool("bash", {"command": "true"}, 9.5))
    assert [call[2] for call in execute.calls] == [300, 9.5]
