"""What a tool raises when it cannot do what it was asked."""


class ToolError(Exception):
    """One sentence for the model: what is wrong, and what to do instead."""
