"""Run many tool calls at once; results keep the order, and the calls of one slot run one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from hyperruntime.concurrency.cancellation import check_cancelled
from hyperruntime.errors import HyperRuntimeError, PoolError
from hyperruntime.pool.values.result import ExecutionResult
from hyperruntime.pool.values.slot import Slot

Request = tuple[Slot, str, Mapping[str, Any]]
ExecuteInSlot = Callable[..., Awaitable[ExecutionResult]]


async def run_batch(
    requests: Sequence[Request], execute: ExecuteInSlot, *, timeout_s: float | None = None
) -> list[ExecutionResult]:
    """Run all requests and return one result for each, in the same order.

    Requests of different slots run at the same time; requests of one slot run one after another, in the order of the
    list. An error becomes the result of its request. Nothing is retried, because a command may have run. If the caller
    is cancelled, running requests are cancelled and the others do not start.

    Args:
        requests: the slot, the tool's name and its arguments for each call.
        execute: runs one request, with the arguments of :meth:`SlotPool.execute`.
        timeout_s: limit of each request in seconds, from its own start; None leaves it to the model and the policy.
    """
    results = [_MALFORMED] * len(requests)
    queues: dict[object, list[Any]] = {}
    given: Sequence[object] = requests  # not trusted
    for index, request in enumerate(given):
        if isinstance(request, (tuple, list)) and len(request) == 3:
            slot = request[0]
            lease = (slot.slot_id, slot.generation) if isinstance(slot, Slot) else object()
            queues.setdefault(lease, []).append((index, *request))

    async def run_in_order(queue: list[Any]) -> None:
        for index, slot, tool, args in queue:
            try:
                results[index] = await execute(slot, tool, args, timeout_s=timeout_s)
            except Exception as error:  # noqa: BLE001 - an error of one request must not end the others
                check_cancelled()
                results[index] = failed(error, getattr(slot, "slot_id", ""))

    async with asyncio.TaskGroup() as group:
        for queue in queues.values():
            group.create_task(run_in_order(queue))
    return results


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


_MALFORMED = ExecutionResult(
    success=False, error="a request must hold a slot, a tool name and arguments", metadata={"returncode": None}
)
