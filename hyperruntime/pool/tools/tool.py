"""What a tool is: a name, a description for models, parameters, and a coroutine."""

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
    """One argument of a tool, as models are told of it and as it is checked.

    Attributes:
        name: of the argument.
        kind: its JSON type.
        description: for models.
        default: what it is where not given, or given as null.
        required: whether it must be given.
        minimum: the least number.
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
        """Return it as JSON schema."""
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
    """One call whose arguments have been checked.

    Attributes:
        place: where it runs.
        policy: what it may.
        args: every parameter of the tool by name.
        timeout_s: how long it may take, all its commands together.
    """

    place: SlotExec
    policy: ToolPolicy
    args: Mapping[str, Any]
    timeout_s: float
    _deadline: float = attrs.field(init=False)

    @_deadline.default
    def _deadline_default(self) -> float:
        return time.monotonic() + self.timeout_s

    def remaining_s(self) -> float:
        """Return how long its next command may take; a little more than nothing where the time is over."""
        return max(self._deadline - time.monotonic(), 0.01)


@attrs.frozen(kw_only=True)
class Tool:
    """A tool that works in a slot.

    Attributes:
        name: that models call it by.
        description: for models.
        params: its arguments.
        run: does it.
        hidden: whether models are told of it only when it is asked for by name.
    """

    name: str
    description: str
    params: tuple[Param, ...]
    run: Callable[[ToolRequest], Awaitable[ExecutionResult]]
    hidden: bool = False

    def to_schema(self) -> dict[str, Any]:
        """Return it as a function of the OpenAI chat API."""
        parameters = {
            "type": "object",
            "properties": {param.name: param.to_schema() for param in self.params},
            "required": [param.name for param in self.params if param.required],
            "additionalProperties": False,
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


class ToolProblemError(Exception):
    """A tool cannot do what it was asked; the message is one sentence that a model can act on.

    Attributes:
        result: the same as a result.
    """

    def __init__(self, message: str, **metadata: Any) -> None:  # noqa: ANN401 - JSON values
        """Make the result beside the sentence."""
        super().__init__(message)
        self.result = ExecutionResult(success=False, error=message, metadata={"returncode": 1, **metadata})


async def off_loop(size_bytes: int, work: Callable[[], T]) -> T:
    """Do work on so much data, in a thread where it would keep the event loop from its other tasks."""
    return work() if size_bytes <= _INLINE_BYTES else await asyncio.to_thread(work)


def done(output: str, **metadata: Any) -> ExecutionResult:  # noqa: ANN401 - JSON values
    """Return the result of a tool that runs no command and did what it was asked."""
    return ExecutionResult(success=True, output=output, stdout=output, metadata={"returncode": 0, **metadata})
