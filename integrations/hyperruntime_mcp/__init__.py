"""An MCP server whose sessions are slots of a pool; the command ``hyperrun mcp`` starts it."""

from hyperruntime.errors import ExtraMissingError

try:
    from hyperruntime_mcp.serve import serve
except ImportError as error:
    raise ExtraMissingError("MCP servers", "the package mcp (2.3 or newer)", "mcp") from error

__all__ = ["serve"]
