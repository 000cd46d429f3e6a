"""The tools of one slot in two forms: results for programs, JSON texts for agent loops."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.logs import get_logger
from hyperruntime.pool.tools.artifacts import artifact
from hyperruntime.pool.tools.dispatch import canonical, failed
from hyperruntime.pool_values.config import TOOL_NAMES
from hyperruntime.pool_values.results import ExecutionResult

log = get_logger(__name__)

Execute = Callable[..., Awaitable[ExecutionResult]]
HostTool = Callable[[Mapping[str, Any]], Awaitable[Any]]

_COMMANDS = ("bash", "bash_stateful")
_ARTIFACTS = ("read_artifact", "list_artifacts", "archive_artifacts")
_NOT_FOR_MODELS = frozenset(
    ("returncode", "tool", "network", "isolation", "sandboxed", "entries", "sha256", "reason")
)


@attrs.frozen(kw_only=True)
class FailedToolCall:
    """A tool call of an agent that could not be carried out; a command that fails does not count.

    Attributes:
        tool: the tool's name.
        arguments: the arguments as given.
        error: what went wrong, one sentence.
        task_id: the task that made the call.
    """

    tool: str
    arguments: Any = attrs.field(hash=False)
    error: str
    task_id: str


class SlotTools:
    """The tools of one slot, plus the named tools of the host.

    Attributes:
        errors: the calls that could not be carried out so far.
    """

    def __init__(
        self,
        execute: Execute,
        *,
        host_tools: Mapping[str, HostTool] | None = None,
        raise_lost: bool = False,
    ) -> None:
        """Wrap the tools of a slot.

        Args:
            execute: runs a tool in the slot with the arguments of ``lease.tool``: name, arguments,
                ``timeout_s``.
            host_tools: the only tools that run outside the slot, by name:
                ``async (args) -> JSON values``.
            raise_lost: whether :meth:`tool_handler` raises if the slot is gone or this machine
                failed; False returns that as an answer too.

        Raises:
            SpecError: a host tool has the name of a tool of the slot.
        """
        self._execute = execute
        self._host_tools = dict(host_tools or {})
        self._raise_lost = raise_lost
        self.errors: list[FailedToolCall] = []
        for name in self._host_tools:
            if name in TOOL_NAMES:
                raise SpecError("host_tools", name, "a name that no tool of the slot has")

    async def exec_tool(
        self, tool: str, args: Mapping[str, Any], timeout: float | None = 300
    ) -> ExecutionResult:
        """Call a tool of the slot and return its result, for programs.

        Args:
            tool: the tool's name.
            args: the tool's arguments.
            timeout: maximum seconds for the call; None leaves it to the model and the policy.

        Raises:
            PoolError: the slot is gone.
        """
        return await self._execute(tool, args, timeout_s=timeout)

    async def tool_handler(self, tool_name: str, args: Mapping[str, Any], task_id: str = "") -> str:
        """Call a tool and return a JSON text for a model; errors are returned as such a text too.

        A command returns ``{"output", "exit_code"}``. Other tools return ``success``, ``output``,
        ``error`` if there is one, and their own facts. Artifact tools use their common schema. A
        call that could not be carried out returns ``{"error"}``.

        Args:
            tool_name: a tool of the slot or of the host.
            args: the tool's arguments, as the model gave them.
            task_id: recorded with an error.

        Raises:
            Exception: only with ``raise_lost``: the slot is gone or this machine failed.
        """
        on_host = tool_name in (*self._host_tools,)
        log.debug(
            "tool call", label="[host]" if on_host else "[sandbox]", tool=str(tool_name)[:100]
        )
        lost: Exception | None = None
        try:
            if on_host:
                return _dump(await self._host_tools[tool_name](args))
            result = await self._execute(tool_name, args)
        except Exception as error:  # noqa: BLE001 - raised below if the caller wants that
            result = failed(error)
            lost = error
        if result.metadata.get("returncode") is None:
            problem = FailedToolCall(
                tool=str(tool_name), arguments=args, error=result.error, task_id=task_id
            )
            self.errors.append(problem)
        if lost is not None and self._raise_lost and not on_host:
            raise lost
        return _dump(answer(tool_name, result))


def answer(tool: object, result: ExecutionResult) -> dict[str, Any]:
    """Return the JSON values that a model gets for a result.

    Args:
        tool: the name that the model called.
        result: the result of the call.
    """
    name = canonical(tool) if isinstance(tool, str) else ""
    code = result.metadata.get("returncode")
    problem = (
        {"error": result.error}
        if result.error and (code is None or result.exit_code is None)
        else {}
    )
    if name in _COMMANDS:
        output = (
            f"{result.output}\n[{result.error}]".lstrip("\n") if result.timed_out else result.output
        )
        return {"output": output, "exit_code": -1 if code is None else code, **problem}
    if code is None:
        return problem
    if name in _ARTIFACTS:
        return artifact(result)
    facts = {key: value for key, value in result.metadata.items() if key not in _NOT_FOR_MODELS}
    return {"success": result.success, "output": result.output, **problem, **facts}


def _dump(value: object) -> str:
    """Return a value as JSON text that can be encoded as UTF-8; unknown types become their
    ``str``.
    """
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace").decode()
