"""The tools of a slot as those of an MCP server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

import hyperruntime as hr
from hyperruntime.pool.tools import tool_schemas
from hyperruntime_mcp.slot_session import SlotSession

TOOLS = ("bash", "read_file", "write_file", "edit_file", "list_files", "search")
_READ_ONLY = (
    "read_file",
    "list_files",
    "search",
    "read_artifact",
    "list_artifacts",
    "archive_artifacts",
)
_INSTRUCTIONS = (
    "Commands and files are those of a container for this session alone, which is removed with "
    "the session."
)


def make_server(pool: hr.SlotPool) -> Server[SlotSession]:
    """Return a server that makes a session for each of its runs.

    Args:
        pool: the started pool; its tool policy says which tools there are, by default those of
            ``TOOLS``.
    """
    policy = attrs.evolve(pool.config.tools, tools=pool.config.tools.tools or TOOLS)
    listed = types.ListToolsResult(
        tools=[_tool(schema["function"]) for schema in tool_schemas(policy.tools)]
    )

    async def list_tools(_: object, __: object) -> types.ListToolsResult:
        return listed

    async def call_tool(
        context: ServerRequestContext[SlotSession], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        return to_result(await context.lifespan_context.call(params.name, params.arguments or {}))

    return Server(
        "hyperruntime",
        version=hr.__version__,
        instructions=_INSTRUCTIONS,
        lifespan=lambda _: SlotSession(pool, policy),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _tool(function: Mapping[str, Any]) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=function["name"] in _READ_ONLY)
    words = {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }
    return types.Tool(**words, annotations=hints)


def to_result(result: hr.ToolResult) -> types.CallToolResult:
    """Return the result of a tool as that of an MCP call: its text, and a sentence if it failed.

    A non-zero exit code is a result; a timeout is an error.

    Args:
        result: the result of a tool.
    """
    has_code = bool(result.exit_code) and not result.timed_out
    parts = (result.output, f"[exit code {result.exit_code}]" if has_code else result.error)
    text = "\n".join(part.removesuffix("\n") for part in parts if part)
    # without lone surrogates
    shown = types.TextContent(type="text", text=text.encode(errors="replace").decode())
    return types.CallToolResult(content=[shown], is_error=not result.success and not has_code)
