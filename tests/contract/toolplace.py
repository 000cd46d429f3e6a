"""One slot for tests of tools, without a pool."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import attrs

import hyperruntime as hr
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.tools import call_tool
from hyperruntime.pool_values.config import ToolPolicy
from hyperruntime.pool_values.results import ExecutionResult


@attrs.define
class Desk:
    """A slot, and calls of tools that wait for their result."""

    slot_exec: SlotExec
    policy: ToolPolicy = attrs.field(factory=ToolPolicy)

    def __call__(self, tool: str, /, **args: Any) -> ExecutionResult:
        """Call a tool, within 120 s."""
        return self.call(tool, args)

    def call(self, tool: Any, args: Any, timeout_s: float | None = None) -> ExecutionResult:
        """Call a tool with arguments of any kind, within 120 s."""

        async def run() -> ExecutionResult:
            return await asyncio.wait_for(
                call_tool(self.slot_exec, tool, args, timeout_s, self.policy), 120
            )

        return asyncio.run(run())

    def sh(self, text: str) -> str:
        """Run a command in the workspace without a tool; return its output."""
        result = self.slot_exec.container.exec(
            ["sh", "-c", text], workdir=self.slot_exec.workspace
        ).check()
        return result.stdout.decode(errors="surrogateescape")


def make_desk(container: hr.Container, **policy: Any) -> Desk:
    """Return a new slot in a container."""
    name = f"slot-{uuid.uuid4().hex[:8]}"
    workspace = f"/tmp/{name}/the workspace"
    container.exec(["mkdir", "-p", workspace]).check()
    slot_exec = SlotExec(container, slot_id=name, workspace=workspace, env={"HOME": workspace})
    return Desk(slot_exec=slot_exec, policy=ToolPolicy(**policy))
