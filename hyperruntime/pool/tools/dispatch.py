"""Find a tool by its name, check a model's arguments and run the tool; run many calls at once."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from hyperruntime.concurrency.blocking import check_cancelled
from hyperruntime.errors import (
    ExecLostError,
    ExecStartError,
    HyperRuntimeError,
    PoolError,
    SpecError,
    unknown_name,
)
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.tools.artifacts import ARCHIVE_ARTIFACTS, LIST_ARTIFACTS, READ_ARTIFACT
from hyperruntime.pool.tools.command import BASH, BASH_STATEFUL
from hyperruntime.pool.tools.edit import EDIT_FILE, PATCH
from hyperruntime.pool.tools.files import READ_FILE, WRITE_FILE
from hyperruntime.pool.tools.listing import LIST_FILES
from hyperruntime.pool.tools.search import SEARCH
from hyperruntime.pool.tools.tool import (
    Tool,
    ToolProblemError,
    ToolRequest,
    check_arguments,
    choose_timeout,
)
from hyperruntime.pool_values.config import ToolPolicy
from hyperruntime.pool_values.results import ExecutionResult, Request, Slot
from hyperruntime.spec import check_seconds

_ALL = (
    BASH,
    BASH_STATEFUL,
    READ_FILE,
    WRITE_FILE,
    EDIT_FILE,
    PATCH,
    LIST_FILES,
    SEARCH,
    READ_ARTIFACT,
    LIST_ARTIFACTS,
    ARCHIVE_ARTIFACTS,
)
TOOLS = {tool.name: tool for tool in _ALL}
ALIASES = {"terminal": "bash", "terminal_stateful": "bash_stateful"}
_DEFAULT = ToolPolicy()

ExecuteInSlot = Callable[..., Awaitable[ExecutionResult]]


def canonical(name: str) -> str:
    """Return the main name of a tool; an unknown name is returned as it is."""
    return ALIASES.get(name, name)


def tool_schemas(names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return tools as functions of the OpenAI chat API.

    Args:
        names: names of the tools; None means all tools that are not hidden.

    Raises:
        SpecError: a name is unknown.
    """
    if names is None:
        return [tool.to_schema() for tool in TOOLS.values() if not tool.hidden]
    schemas = []
    for name in names:
        if canonical(name) not in TOOLS:
            raise SpecError("tools", name, unknown_name("tool", name, [*TOOLS, *ALIASES]))
        schemas.append(attrs.evolve(TOOLS[canonical(name)], name=name).to_schema())
    return schemas


async def call_tool(
    slot_exec: SlotExec,
    name: str,
    args: Mapping[str, Any],
    timeout_s: float | None = None,
    policy: ToolPolicy = _DEFAULT,
) -> ExecutionResult:
    """Call a tool in a slot, after all earlier calls of that slot.

    An invalid call, or a failure inside the slot, is returned as a result with an ``error``.

    Args:
        slot_exec: the slot.
        name: the tool's name; ``terminal`` is another name of ``bash``.
        args: the arguments as the model gave them; they are not trusted.
        timeout_s: maximum seconds for the call, from its start; None leaves it to the model and the
            policy.
        policy: limits and rights.

    Raises:
        ContainerLostError: the container ended.
        ContainerStateError: the container was closed.
        SpecError: ``timeout_s`` is not a positive number.
        StorageError: this machine has no space left for the streams.
    """
    started = time.monotonic()
    if timeout_s is not None:
        check_seconds("timeout_s", timeout_s)
    result = await _checked(slot_exec, name, args, timeout_s, policy)
    facts = {
        "tool": str(name)[:100],
        "network": slot_exec.network,
        "isolation": slot_exec.isolation,
        "sandboxed": True,
    }
    return attrs.evolve(
        result,
        execution_id=uuid.uuid4().hex,
        slot_id=slot_exec.slot_id,
        duration_s=time.monotonic() - started,
        metadata={**facts, **result.metadata},
    )


async def _checked(
    slot_exec: SlotExec,
    name: str,
    args: Mapping[str, Any],
    timeout_s: float | None,
    policy: ToolPolicy,
) -> ExecutionResult:
    """Check the arguments and call the tool in its turn."""
    try:
        tool = _find(name, policy)
        check_rights(slot_exec, policy)
        checked, noted = check_arguments(tool, args)
    except ToolProblemError as problem:
        return attrs.evolve(problem.result, metadata={"returncode": None})
    limit_s = choose_timeout(checked.get("timeout"), timeout_s, policy)
    async with slot_exec.turn:
        try:
            result = await tool.run(
                ToolRequest(slot_exec=slot_exec, policy=policy, args=checked, timeout_s=limit_s)
            )
        except ToolProblemError as problem:
            result = problem.result
        except (ExecLostError, ExecStartError, SpecError) as error:
            result = ExecutionResult(success=False, error=str(error), metadata={"returncode": None})
    if noted:
        result = attrs.evolve(
            result, metadata={"ignored_arguments": list(noted), **result.metadata}
        )
    return result


def check_rights(slot_exec: SlotExec, policy: ToolPolicy) -> None:
    """Check that the slot's container has a network, or has none, as the policy requires.

    Args:
        slot_exec: the slot.
        policy: the policy of the call.

    Raises:
        ToolProblemError: the container does not match the policy.
    """
    network = slot_exec.network
    if policy.allow_network is False and network != "none":
        raise ToolProblemError(
            f"the policy forbids a network, but this slot's container has one ({network}); use "
            "a profile with network 'none'"
        )
    if policy.allow_network is True and network == "none":
        raise ToolProblemError(
            "the policy requires a network, but this container has none; use a profile with one"
        )


def _find(name: object, policy: ToolPolicy) -> Tool:
    known = canonical(name) if isinstance(name, str) else ""
    if known in TOOLS and (policy.tools is None or known in map(canonical, policy.tools)):
        return TOOLS[known]
    permitted = {canonical(tool) for tool in (TOOLS if policy.tools is None else policy.tools)}
    allowed = [tool for tool in (*TOOLS, *ALIASES) if canonical(tool) in permitted]
    if known not in TOOLS:
        raise ToolProblemError(unknown_name("tool", str(name)[:100], allowed))
    raise ToolProblemError(f"the tool {name!r} is not allowed here; allowed: {', '.join(allowed)}")


async def run_batch(
    requests: Sequence[Request], execute: ExecuteInSlot, *, timeout_s: float | None = None
) -> list[ExecutionResult]:
    """Run all requests and return one result for each, in the same order.

    Requests of different slots run at the same time; requests of one slot run one after another, in
    the order of the list. An error becomes the result of its request. Nothing is retried, because a
    command may have run. If the caller is cancelled, running requests are cancelled and the others
    do not start.

    Args:
        requests: the slot, the tool's name and its arguments for each call.
        execute: runs one request, with the arguments of :meth:`SlotPool.execute`.
        timeout_s: limit of each request in seconds, from its own start; None leaves it to the model
            and the policy.
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
    """Return an error outside the tool as a result; ``metadata["lost"]`` says whether the slot is
    gone.

    ``metadata["infrastructure"]`` marks an error that the caller did not cause; it must not affect
    a score.

    Args:
        error: the exception.
        slot_id: the slot of the call; "" if unknown.
    """
    message = str(error) or type(error).__name__
    message = (
        message if isinstance(error, HyperRuntimeError) else f"{type(error).__name__}: {message}"
    )
    metadata = {"returncode": None, "lost": isinstance(error, PoolError), "infrastructure": True}
    return ExecutionResult(success=False, error=message, slot_id=slot_id, metadata=metadata)


_MALFORMED = ExecutionResult(
    success=False,
    error="a request must hold a slot, a tool name and arguments",
    metadata={"returncode": None},
)
