"""From a tool's name and a model's arguments to a result."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from hyperruntime.errors import ExecLostError, ExecStartError, SpecError, unknown_name
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.tools.arguments import check_arguments, choose_timeout
from hyperruntime.pool.tools.artifacts import ARCHIVE_ARTIFACTS, LIST_ARTIFACTS, READ_ARTIFACT
from hyperruntime.pool.tools.command import BASH, BASH_STATEFUL
from hyperruntime.pool.tools.edit import EDIT_FILE, PATCH
from hyperruntime.pool.tools.files import READ_FILE, WRITE_FILE
from hyperruntime.pool.tools.listing import LIST_FILES
from hyperruntime.pool.tools.search import SEARCH
from hyperruntime.pool.tools.tool import Tool, ToolProblemError, ToolRequest
from hyperruntime.pool.values.policy import ToolPolicy
from hyperruntime.pool.values.result import ExecutionResult
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
_TIMEOUT = "timeout"
_DEFAULT = ToolPolicy()


def canonical(name: str) -> str:
    """Return the one name of a tool that has several."""
    return ALIASES.get(name, name)


def is_slot_tool(name: object) -> bool:
    """Tell whether a tool of this name works in a slot."""
    return isinstance(name, str) and canonical(name) in TOOLS


def tool_schemas(names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return tools as functions of the OpenAI chat API: all that models are usually told of, or those named.

    Raises:
        SpecError: there is no tool of a name.
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
    place: SlotExec,
    name: str,
    args: Mapping[str, Any],
    timeout_s: float | None = None,
    policy: ToolPolicy | None = None,
) -> ExecutionResult:
    """ToolRequest a tool in a slot, after all calls that it was asked for earlier.

    Whatever is wrong with the call, or goes wrong by the slot's own doing, is a result whose ``error`` says so.

    Args:
        place: the slot.
        name: of the tool; ``terminal`` is ``bash``.
        args: as the model gave them; nothing of them is believed.
        timeout_s: most that it may take, counted from when it begins; None leaves it to the model and the policy.
        policy: what it may do.

    Raises:
        ContainerLostError: the container ended.
        ContainerStateError: it was closed.
        SpecError: ``timeout_s`` is no positive number.
        StorageError: this machine has no room left for the streams.
    """
    started = time.monotonic()
    if timeout_s is not None:
        check_seconds("timeout_s", timeout_s)
    result = await _checked(place, name, args, timeout_s, policy or _DEFAULT)
    facts = {"tool": str(name)[:100], "network": place.network, "isolation": place.isolation, "sandboxed": True}
    return attrs.evolve(
        result,
        execution_id=uuid.uuid4().hex,
        slot_id=place.slot_id,
        duration_s=time.monotonic() - started,
        metadata={**facts, **result.metadata},
    )


async def _checked(
    place: SlotExec, name: str, args: Mapping[str, Any], timeout_s: float | None, policy: ToolPolicy
) -> ExecutionResult:
    """ToolRequest a tool if the call is one, in its turn."""
    try:
        tool = _find(name, policy)
        check_rights(place, policy)
        checked, noted = check_arguments(tool, args)
    except ToolProblemError as problem:
        return attrs.evolve(problem.result, metadata={"returncode": None})
    limit_s = choose_timeout(checked.get(_TIMEOUT), timeout_s, policy)
    async with place.turn():
        result = await _run(tool, ToolRequest(place=place, policy=policy, args=checked, timeout_s=limit_s))
    if noted:
        result = attrs.evolve(result, metadata={"ignored_arguments": list(noted), **result.metadata})
    return result


async def _run(tool: Tool, call: ToolRequest) -> ExecutionResult:
    try:
        return await tool.run(call)
    except ToolProblemError as problem:
        return problem.result
    except (ExecLostError, ExecStartError, SpecError) as error:
        return ExecutionResult(success=False, error=str(error), metadata={"returncode": None})


def check_rights(place: SlotExec, policy: ToolPolicy) -> None:
    """Refuse what the slot's container cannot honour; nothing is weakened.

    Raises:
        ToolProblemError: the policy asks for a network, or for none, and the container is the other way.
    """
    network = place.network
    if policy.allow_network is False and network != "none":
        raise ToolProblemError(
            f"no network was asked for, and this slot's container has one ({network}); use a profile with network "
            "'none'"
        )
    if policy.allow_network is True and network == "none":
        raise ToolProblemError("a network was asked for, and this slot's container has none; use a profile with one")


def _find(name: object, policy: ToolPolicy) -> Tool:
    allowed = [known for known in (*TOOLS, *ALIASES) if policy.tools is None or _is_allowed(known, policy.tools)]
    if not isinstance(name, str) or canonical(name) not in TOOLS:
        raise ToolProblemError(unknown_name("tool", str(name)[:100], allowed))
    if name not in allowed:
        raise ToolProblemError(f"the tool {name!r} is not allowed here; allowed: {', '.join(allowed)}")
    return TOOLS[canonical(name)]


def _is_allowed(name: str, tools: tuple[str, ...]) -> bool:
    return canonical(name) in {canonical(tool) for tool in tools}
