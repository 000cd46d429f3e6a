"""The definition of a tool: a name, a description for models, parameters, and a coroutine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

import attrs

from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.values.policy import ToolPolicy
from hyperruntime.pool.values.result import ExecutionResult

_INLINE_BYTES = 64 * 1024
T = TypeVar("T")
Kind = Literal["string", "integer", "number", "boolean"]


@attrs.frozen
class Param:
    """One parameter of a tool, for its schema and for the check of arguments.

    Attributes:
        name: the parameter's name.
        kind: its JSON type.
        description: text for models.
        default: its value if it is missing or null.
        required: whether it must be given.
        minimum: the smallest allowed number; None allows any.
        choices: the allowed texts; empty allows any.
    """

    name: str
    kind: Kind
    description: str
    default: Any = None
    required: bool = False
    minimum: int | None = None
    choices: tuple[str, ...] = ()

    def to_schema(self) -> dict[str, Any]:
        """Return the parameter as JSON schema."""
        schema: dict[str, Any] = {"type": self.kind, "description": self.description}
        if self.minimum is not None:
            schema["minimum"] = self.minimum
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.default is not None:
            schema["default"] = self.default
        return schema


@attrs.frozen(kw_only=True)
class ToolRequest:
    """One tool call with checked arguments.

    Attributes:
        slot_exec: the slot that it runs in.
        policy: its limits and rights.
        args: the value of every parameter by name.
        timeout_s: the time limit of all its commands together, from the creation of this object.
    """

    slot_exec: SlotExec
    policy: ToolPolicy
    args: Mapping[str, Any]
    timeout_s: float
    _deadline: float = attrs.field(init=False)

    @_deadline.default
    def _deadline_default(self) -> float:
        return time.monotonic() + self.timeout_s

    def remaining_s(self) -> float:
        """Return the seconds left for the next command, at least 0.01."""
        return max(self._deadline - time.monotonic(), 0.01)


@attrs.frozen(kw_only=True)
class Tool:
    """A tool of a slot.

    Attributes:
        name: the name that models use.
        description: text for models.
        params: its parameters.
        run: carries out a call.
        hidden: whether :func:`tool_schemas` returns it only by name.
    """

    name: str
    description: str
    params: tuple[Param, ...]
    run: Callable[[ToolRequest], Awaitable[ExecutionResult]]
    hidden: bool = False

    def to_schema(self) -> dict[str, Any]:
        """Return the tool as a function of the OpenAI chat API."""
        parameters = {
            "type": "object",
            "properties": {param.name: param.to_schema() for param in self.params},
            "required": [param.name for param in self.params if param.required],
            "additionalProperties": False,
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


class ToolProblemError(Exception):
    """A tool call failed; the message is one sentence that a model can act on.

    Attributes:
        result: the failure as a result.
    """

    def __init__(self, message: str, **metadata: Any) -> None:  # noqa: ANN401 - JSON values
        """Build the result from the message and the metadata."""
        super().__init__(message)
        self.result = ExecutionResult(success=False, error=message, metadata={"returncode": 1, **metadata})


async def off_loop(size_bytes: int, work: Callable[[], T]) -> T:
    """Run work on ``size_bytes`` of data; above 64 KiB in a thread, so that it does not block the event loop."""
    return work() if size_bytes <= _INLINE_BYTES else await asyncio.to_thread(work)


def done(output: str, **metadata: Any) -> ExecutionResult:  # noqa: ANN401 - JSON values
    """Return the result of a successful tool call that runs no command; ``truncated`` also sets the result's field."""
    truncated, facts = metadata.get("truncated", False), {"returncode": 0, **metadata}
    return ExecutionResult(success=True, output=output, stdout=output, truncated=truncated, metadata=facts)
