"""Two faces of one slot's tools: results for programs, JSON texts for agent loops."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.logs import get_logger
from hyperruntime.pool.tools import artifact, canonical, is_slot_tool
from hyperruntime.pool.tools.batch import failed
from hyperruntime.pool.values.result import ExecutionResult

log = get_logger(__name__)

HostTool = Callable[[Mapping[str, Any]], Awaitable[Any]]
Preview = Callable[[str, str, Mapping[str, Any]], None]

SANDBOX_LABEL, HOST_LABEL = "[sandbox]", "[host]"
_COMMANDS = ("bash", "bash_stateful")
_ARTIFACTS = ("read_artifact", "list_artifacts", "archive_artifacts")
_NOT_FOR_MODELS = frozenset(("returncode", "tool", "network", "isolation", "sandboxed", "entries", "sha256", "reason"))


class Execute(Protocol):
    """Runs a tool in one slot; ``lease.tool`` is one."""

    def __call__(
        self, name: str, args: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> Awaitable[ExecutionResult]:
        """Return its result."""
        ...


@attrs.frozen(kw_only=True)
class ToolError:
    """A call that an agent made and that could not be carried out; a command that fails is none.

    Attributes:
        tool: its name.
        arguments: as given.
        error: one sentence.
        task_id: whose call it was.
    """

    tool: str
    arguments: Any
    error: str
    task_id: str


class SlotTools:
    """The tools of one slot, and nothing of the host but what is named.

    Attributes:
        errors: what could not be carried out so far.
    """

    def __init__(
        self,
        execute: Execute,
        *,
        host_tools: Mapping[str, HostTool] | None = None,
        on_preview: Preview | None = None,
        raise_lost: bool = False,
    ) -> None:
        """Give a slot's tools these faces.

        Args:
            execute: runs a tool in the slot, such as ``lease.tool``.
            host_tools: the only ones that run outside it, by name: ``async (args) -> JSON values``.
            on_preview: called with a label (``[sandbox]`` or ``[host]``), a name and its arguments before each call.
            raise_lost: let :meth:`tool_handler` raise where the slot is gone or this machine failed, which no answer
                to a model can mend; without it that is an answer too.

        Raises:
            SpecError: a host tool has the name of a tool of the slot.
        """
        self._execute, self._host_tools, self._on_preview = execute, dict(host_tools or {}), on_preview
        self._raise_lost = raise_lost
        self.errors: list[ToolError] = []
        for name in self._host_tools:
            if is_slot_tool(name):
                raise SpecError("host_tools", name, "names that no tool of the slot has, for those run in the slot")

    async def exec_tool(self, tool: str, args: Mapping[str, Any], timeout: float | None = 300) -> ExecutionResult:
        """Call a tool of the slot and return its result, for programs.

        Raises:
            PoolError: the slot is gone.
        """
        return await self._execute(tool, args, timeout_s=timeout)

    async def tool_handler(self, tool_name: str, args: Mapping[str, Any], task_id: str = "") -> str:
        """Call a tool and return a JSON text for a model; whatever goes wrong is such a text too.

        A command comes as ``{"output", "exit_code"}``; other tools as ``success``, ``output``, ``error`` where there is
        one, and what else they say; artifacts in their one schema; what could not be carried out as ``{"error"}``.
        """
        on_host = tool_name in (*self._host_tools,)
        try:
            self._preview(HOST_LABEL if on_host else SANDBOX_LABEL, tool_name, args)
            if on_host:
                return _dump(await self._host_tools[tool_name](args))
            result = await self._execute(tool_name, args)
        except Exception as error:
            result = failed(error)
            self._record(tool_name, args, task_id, result.error)
            if self._raise_lost and not on_host:
                raise
            return _dump(answer(tool_name, result))
        if result.metadata.get("returncode") is None:
            self._record(tool_name, args, task_id, result.error)
        return _dump(answer(tool_name, result))

    def _preview(self, label: str, tool: str, args: Mapping[str, Any]) -> None:
        log.debug("tool call", label=label, tool=str(tool)[:100])
        if self._on_preview is not None:
            self._on_preview(label, tool, args)

    def _record(self, tool: str, args: object, task_id: str, error: str) -> None:
        self.errors.append(ToolError(tool=str(tool), arguments=args, error=error, task_id=task_id))


def answer(tool: object, result: ExecutionResult) -> dict[str, Any]:
    """Return what a model is told of a result: JSON values."""
    name = canonical(tool) if isinstance(tool, str) else ""
    code = result.metadata.get("returncode")
    problem = {"error": result.error} if result.error and (code is None or result.exit_code is None) else {}
    if name in _COMMANDS:
        output = f"{result.output}\n[{result.error}]".lstrip("\n") if result.timed_out else result.output
        return {"output": output, "exit_code": -1 if code is None else code, **problem}
    if code is None:
        return problem
    if name in _ARTIFACTS:
        return artifact(result)
    facts = {key: value for key, value in result.metadata.items() if key not in _NOT_FOR_MODELS}
    return {"success": result.success, "output": result.output, **problem, **facts}


def _dump(value: object) -> str:
    """Return a value as JSON that any encoder takes, whatever it is."""
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace").decode()
