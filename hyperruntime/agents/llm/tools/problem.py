"""The error of tools."""


class ToolError(Exception):
    """A tool call failed; the message tells the model what is wrong and what to do instead."""
