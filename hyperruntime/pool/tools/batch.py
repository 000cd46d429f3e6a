"""Run many tool calls at once; results keep the order, and the calls of one slot run one after another."""

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
    """Run all requests and return one result for each, in the same order.

    Requests of different slots run at the same time; requests of one slot run one after another, in the order of the
    list. An error becomes the result of its request. Nothing is retried, because a command may have run. If the caller
    is cancelled, running requests are cancelled and the others do not start.

    Args:
        requests: the slot, the tool's name and its arguments for each call.
        execute: runs one request.
        timeout_s: limit of each request in seconds, from its own start; None leaves it to the model and the policy.
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
    """Return an error outside the tool as a result; ``metadata["lost"]`` says whether the slot is gone.

    ``metadata["infrastructure"]`` marks an error that the caller did not cause; it must not affect a score.

    Args:
        error: the exception.
        slot_id: the slot of the call; "" if unknown.
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
            success=False, error="a request must hold a slot, a tool name and arguments", metadata={"returncode": None}
        )
    slot_id = getattr(slot, "slot_id", "")
    try:
        result = await execute(slot, tool, args, timeout_s)
        return result if result.slot_id else attrs.evolve(result, slot_id=slot_id)
    except Exception as error:  # noqa: BLE001 - an error of one request must not end the others
        check_cancelled()
        return failed(error, slot_id)


def _place_of(request: object) -> object:
    """Return a key that all requests of one lease share; an invalid request gets a key of its own."""
    slot = request[0] if isinstance(request, (tuple, list)) and request else None
    return (slot.slot_id, slot.generation) if isinstance(slot, Slot) else object()
