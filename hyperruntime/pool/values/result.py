"""The result of a tool call, in one form for all tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class ExecutionResult:
    """The result of one tool call in a slot.

    Attributes:
        success: whether the tool succeeded; for a command, whether its exit code is 0.
        output: the text for the model: standard output, then standard error after a line ``[stderr]``.
        error: one sentence if the call failed, else "".
        execution_id: unique id of this call.
        slot_id: the slot that it ran in.
        exit_code: exit code of the command; None if no command ran to its end.
        stdout: standard output as text; bytes that are not valid UTF-8 become U+FFFD.
        stderr: standard error, decoded in the same way.
        timed_out: whether the call ended at its deadline.
        truncated: whether output was dropped.
        duration_s: seconds from the call to its end.
        metadata: JSON values. ``returncode`` is always present: the exit code; 124 at a deadline; 0 or 1 for tools that
            run no command; None if the call could not be carried out.
    """

    success: bool
    output: str = ""
    error: str = ""
    execution_id: str = ""
    slot_id: str = ""
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    truncated: bool = False
    duration_s: float = 0.0
    metadata: Mapping[str, Any] = attrs.field(factory=dict)

    def to_tool_result(self) -> dict[str, Any]:
        """Return the result as JSON values with the keys of a generic tool result."""
        return {
            "success": self.success,
            "output": self.output,
            "error": self.error,
            "metadata": dict(self.metadata),
            "uniq_id": self.execution_id,
        }


ToolResult = ExecutionResult
"""The name by which new code calls it; both names stay."""
