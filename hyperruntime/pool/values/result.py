"""What a tool came to, in one form for every tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class ExecutionResult:
    """The result of one tool call in a slot.

    Attributes:
        success: whether the tool did what it was asked; for a command: exit code 0.
        output: what the model is shown: standard output, then standard error after a line ``[stderr]``.
        error: one sentence where it did not succeed, else "".
        execution_id: names this call.
        slot_id: where it ran.
        exit_code: of the command; None where no command ran to its end.
        stdout: text; bytes that are no UTF-8 become U+FFFD.
        stderr: the same of the other stream.
        timed_out: whether it was ended at its deadline.
        truncated: whether output was dropped.
        duration_s: seconds from the call to its end.
        metadata: JSON values; ``returncode`` is always there (the exit code; 124 at a deadline; 0 or 1 for tools that
            run no command; None where it could not be run at all).
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
        """Return it as JSON values, in the words of programs that know only a tool's result."""
        return {
            "success": self.success,
            "output": self.output,
            "error": self.error,
            "metadata": dict(self.metadata),
            "uniq_id": self.execution_id,
        }
