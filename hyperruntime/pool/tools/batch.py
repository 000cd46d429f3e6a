"""Many tool calls at once: order kept, failures apart, one slot's calls one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs

from hyperruntime.concurrency.cancellation import check_cancelled
from hyperruntime.errors import HyperRuntimeError, PoolError
from hyperruntime.pool.values.result import ExecutionResult
from hyperruntime.pool.values.slot import Slot

Request = tuple[Slot, str, Mapping[str, Any]]
Execute = Callable[[Slot, str, Mapping[str, Any], float | None], Awaitable[ExecutionResult]]


async def run_batch(
    requests: Sequence[Request], execute: Execute, *, timeout_s: float | None = None
) -> list[ExecutionResult]:
    """Run all requests and return their results in the same order, one for each.

    Different slots work at the same time; one slot's requests run one after another, as they stand in the list. What
    goes wrong with one request is that one's result. Nothing is tried again: a command may have run. When the
    caller is cancelled, what runs is ended, and what has not begun never begins.

    Args:
        requests: slot, tool and arguments of each.
        execute: runs one.
        timeout_s: of each request, counted from its own beginning.
    """
    results: list[ExecutionResult | None] = [None] * len(requests)
    queues: dict[object, list[int]] = {}
    for index, request in enumerate(requests):
        queues.setdefault(_place_of(request), []).append(index)

    async def work(indices: list[int]) -> None:
        for index in indices:
            results[index] = await _run_one(requests[index], execute, timeout_s)

    async with asyncio.TaskGroup() as group:
        for indices in queues.values():
            group.create_task(work(indices))
    return [result for result in results if result is not None]


def failed(error: BaseException, slot_id: str = "") -> ExecutionResult:
    """Return what went wrong past any tool as a result; ``metadata["lost"]`` says whether the slot is gone.

    ``metadata["infrastructure"]`` marks what is no doing of whoever asked: no score may come of it.
    """
    message = str(error) or type(error).__name__
    message = message if isinstance(error, HyperRuntimeError) else f"{type(error).__name__}: {message}"
    metadata = {"returncode": None, "lost": isinstance(error, PoolError), "infrastructure": True}
    return ExecutionResult(success=False, error=message, slot_id=slot_id, metadata=metadata)


async def _run_one(request: Request, execute: Execute, timeout_s: float | None) -> ExecutionResult:
    try:
        slot, tool, args = request
    except (TypeError, ValueError):
        return ExecutionResult(
            success=False, error="a request is a slot, a tool's name and its arguments", metadata={"returncode": None}
        )
    slot_id = getattr(slot, "slot_id", "")
    try:
        result = await execute(slot, tool, args, timeout_s)
        return result if result.slot_id else attrs.evolve(result, slot_id=slot_id)
    except Exception as error:  # noqa: BLE001 - one request's failure is its own, whatever it is
        check_cancelled()
        return failed(error, slot_id)


def _place_of(request: object) -> object:
    """Return what requests of one slot have in common; what is no request stands alone."""
    slot = request[0] if isinstance(request, (tuple, list)) and request else None
    return (slot.slot_id, slot.generation) if isinstance(slot, Slot) else object()
