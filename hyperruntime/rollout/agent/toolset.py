"""Which tools an agent is given: their schemas for the model, and who carries them out."""

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
        schemas: in OpenAI's form, for the model.
        handler: who carries calls out.
        errors: calls that could not be carried out, as the handler notes them: ``tool`` and ``error`` of each.
    """

    schemas: Sequence[Message]
    handler: ToolHandler
    errors: Sequence[Any] = ()


Toolset = Callable[["Lease"], Tools]


def slot_tools(names: Sequence[str] = DEFAULT_TOOLS) -> Toolset:
    """Return the tools of the slot by name; every one of them works in the slot, none on the host.

    Raises:
        SpecError: there is no such tool.
    """
    from hyperruntime.pool.tools import tool_schemas
    from hyperruntime.pool.tools.agent_tools import SlotTools

    schemas = tuple(tool_schemas(tuple(names)))

    def given(lease: Lease) -> Tools:
        tools = SlotTools(lease.tool, raise_lost=True)
        return Tools(schemas=schemas, handler=tools.tool_handler, errors=tools.errors)

    return given
