"""The tools of an agent: their schemas for the model, and the handler that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.rollout.agent.agent import ToolHandler
from hyperruntime.rollout.agent.tool_calls import Message

if TYPE_CHECKING:
    from hyperruntime.pool.lease import Lease

DEFAULT_TOOLS = ("bash", "read_file", "write_file", "edit_file", "list_files", "search")


@attrs.define(kw_only=True)
class Tools:
    """The tools of one trajectory.

    Attributes:
        schemas: tool schemas in OpenAI's form, for the model.
        handler: runs the calls.
        errors: the failed calls that the handler records: ``tool`` and ``error`` of each.
    """

    schemas: Sequence[Message]
    handler: ToolHandler
    errors: Sequence[Any] = ()


Toolset = Callable[["Lease"], Tools]


def slot_tools(names: Sequence[str] = DEFAULT_TOOLS) -> Toolset:
    """Return the named slot tools; they run in the slot, never on the host.

    Raises:
        SpecError: a tool name is unknown.
    """
    from hyperruntime.pool.tools import tool_schemas
    from hyperruntime.pool.tools.agent_tools import SlotTools

    schemas = tuple(tool_schemas(tuple(names)))

    def given(lease: Lease) -> Tools:
        tools = SlotTools(lease.tool, raise_lost=True)
        return Tools(schemas=schemas, handler=tools.tool_handler, errors=tools.errors)

    return given
