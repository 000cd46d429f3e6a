"""The tools of a slot: files, commands, searches. Design: docs/design/pool.md#tools.

Each call runs one or a few commands in the slot's container as the slot's user; nothing runs on the
host.
"""

from __future__ import annotations

from hyperruntime.pool.tools.artifacts import artifact
from hyperruntime.pool.tools.dispatch import call_tool, run_batch, tool_schemas

__all__ = ["artifact", "call_tool", "run_batch", "tool_schemas"]
