"""Which tools an agent is given: their schemas for the model, and who carries them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hyperruntime.rollout.agent import ToolHandler
from hyperruntime.rollout.calls import Message

if TYPE_CHECKING:
    from hyperruntime.pool.lease import Lease

DEFAULT_TOOLS = ("bash", "read_file", "write_file", "edit_file", "list_files", "search")
Toolset = Callable[["Lease"], tuple[Sequence[Message], ToolHandler]]


def slot_tools(names: Sequence[str] = DEFAULT_TOOLS) -> Toolset:
    """Return the tools of the slot by name; every one of them works in the slot, none on the host.

    Raises:
        SpecError: there is no such tool.
    """
    from hyperruntime.pool.facade import SlotTools
    from hyperruntime.pool.tools import tool_schemas

    schemas = tuple(tool_schemas(tuple(names)))

    def given(lease: Lease) -> tuple[Sequence[Message], ToolHandler]:
        return schemas, SlotTools(lease.tool).tool_handler

    return given
