"""The definition of a tool: a name, a description for models, parameters, a coroutine; and the
check of arguments.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

import attrs

from hyperruntime.errors import SpecError, name_hint
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool_values.config import POLICY_KEYS, ToolPolicy
from hyperruntime.pool_values.results import ExecutionResult
from hyperruntime.settings.reader import WORDS, read
from hyperruntime.settings.schema import schema_of

_INLINE_BYTES = 64 * 1024
_BOOLEANS = {"true": True, "false": False}
_LONGEST_NUMBER = 40
_EXACT = 2**53  # of larger numbers, a float is not the number that was written
_MOST = 2**63  # programs inside have 64 bits
T = TypeVar("T")


@attrs.frozen
class Param:
    """One parameter of a tool, for its schema and for the check of arguments.

    Attributes:
        name: the parameter's name.
        kind: its type: ``str``, ``int``, ``float``, ``bool``, or a ``Literal`` of texts.
        description: text for models.
        default: its value if it is missing or null.
        required: whether it must be given.
        minimum: the smallest allowed number; None allows any.
    """

    name: str
    kind: Any
    description: str
    default: Any = attrs.field(default=None, hash=False)
    required: bool = False
    minimum: int | None = None

    def to_schema(self) -> dict[str, Any]:
        """Return the parameter as JSON schema."""
        schema = {"type": "string", "description": self.description, **schema_of(self.kind)}
        if self.minimum is not None:
            schema["minimum"] = self.minimum
        if self.default is not None:
            schema["default"] = self.default
        return schema


PATH = Param("path", str, "absolute, or relative to the workspace", required=True)
MAX_BYTES = Param("max_bytes", int, "largest number of bytes", minimum=1)
MAX_ENTRIES = Param("max_entries", int, "largest number of entries", minimum=1)
ENCODING = Param(
    "encoding", Literal["auto", "text", "base64"], "encoding of the content", default="auto"
)


@attrs.frozen(kw_only=True)
class ToolRequest:
    """One tool call with checked arguments.

    Attributes:
        slot_exec: the slot that it runs in.
        policy: its limits and rights.
        args: the value of every parameter by name.
        timeout_s: the time limit of all its commands together, from the creation of this object.
        began: monotonic time in seconds of that creation.
    """

    slot_exec: SlotExec
    policy: ToolPolicy
    args: Mapping[str, Any] = attrs.field(hash=False)
    timeout_s: float
    began: float = attrs.field(factory=time.monotonic, init=False)

    def remaining_s(self) -> float:
        """Return the seconds left for the next command, at least 0.01."""
        return max(self.began + self.timeout_s - time.monotonic(), 0.01)


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
        self.result = ExecutionResult(
            success=False, error=message, metadata={"returncode": 1, **metadata}
        )


async def off_loop(size_bytes: int, work: Callable[[], T]) -> T:
    """Run work on ``size_bytes`` of data; above 64 KiB in a thread, so that it does not block the
    event loop.
    """
    return work() if size_bytes <= _INLINE_BYTES else await asyncio.to_thread(work)


def done(output: str, **metadata: Any) -> ExecutionResult:  # noqa: ANN401 - JSON values
    """Return the result of a successful tool call that runs no command; ``truncated`` also sets the
    result's field.
    """
    truncated = metadata.get("truncated", False)
    facts = {"returncode": 0, **metadata}
    return ExecutionResult(
        success=True, output=output, stdout=output, truncated=truncated, metadata=facts
    )


def check_arguments(tool: Tool, args: object) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the value of every parameter by name, and the sorted policy names that were ignored.

    A number or boolean given as text is converted; null counts as not given.

    Args:
        tool: the tool whose parameters are checked.
        args: the arguments as the model gave them.

    Raises:
        ToolProblemError: args is not an object, a name is unknown or missing, or a value is
            invalid.
    """
    if not isinstance(args, Mapping):
        raise ToolProblemError(
            f"the arguments of {tool.name} must be a JSON object, not {_kind_of(args)}"
        )
    known = {param.name: param for param in tool.params}
    noted = tuple(
        sorted(
            key for key in args if isinstance(key, str) and key in POLICY_KEYS and key not in known
        )
    )
    for key in args:
        if not isinstance(key, str) or (key not in known and key not in noted):
            hint = name_hint(str(key)[:100], known)
            raise ToolProblemError(f"{tool.name} has no argument {str(key)[:100]!r}; {hint}")
    missing = [name for name, param in known.items() if param.required and args.get(name) is None]
    if missing:
        raise ToolProblemError(
            f"{tool.name} needs {' and '.join(map(repr, missing))}; {_form(tool.params)}"
        )
    return {name: _value(tool.name, param, args.get(name)) for name, param in known.items()}, noted


def choose_timeout(asked: object, given_s: float | None, policy: ToolPolicy) -> float:
    """Return how many seconds a call may take.

    Args:
        asked: the model's timeout in seconds, limited to the policy's range; None if it set none.
        given_s: the calling program's limit in seconds, not limited by the policy; None if it set
            none.
        policy: the allowed range, and the default if both are None.
    """
    if not isinstance(asked, (int, float)):
        return policy.default_timeout_s if given_s is None else given_s
    wanted = min(max(float(asked), policy.min_timeout_s), policy.max_timeout_s)
    return wanted if given_s is None else min(wanted, given_s)


def _value(tool: str, param: Param, value: object) -> Any:  # noqa: ANN401 - JSON values
    if value is None:
        return param.default
    try:
        return _read(param, value)
    except SpecError as error:
        raise ToolProblemError(
            f"{param.name!r} of {tool} must be {error.allowed}, not {_shown(value)}"
        ) from None
    except UnicodeEncodeError:
        raise ToolProblemError(
            "a string holds a lone surrogate and cannot be encoded; send valid Unicode"
        ) from None


def _read(param: Param, value: Any) -> Any:  # noqa: ANN401 - JSON values
    """Return the value of a parameter, which is not None; numbers may be texts, and whole numbers
    may be written as 2.0.

    Raises:
        SpecError: it has another type, or is too small.
        UnicodeEncodeError: it is not valid text.
    """
    if isinstance(value, str):
        os.fsencode(value)
        if param.kind is bool:
            value = _BOOLEANS.get(value.strip().lower(), value)
        elif param.kind in (int, float) and len(value) < _LONGEST_NUMBER:
            with suppress(ValueError):
                value = float(value)
    if param.kind is int and isinstance(value, float) and abs(value) < _EXACT:
        value = int(value) if value.is_integer() else value
    found = read(param.kind, value, param.name)
    if param.kind is int and abs(found) >= _MOST:
        raise SpecError(param.name, value, WORDS[int])
    if param.minimum is not None and found < param.minimum:
        raise SpecError(param.name, value, f"at least {param.minimum}")
    return found


def _kind_of(value: object) -> str:
    names = {str: "a text", list: "a list", bool: "a boolean", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _form(params: Sequence[Param]) -> str:
    return "it takes " + ", ".join(
        param.name if param.required else f"[{param.name}]" for param in params
    )
