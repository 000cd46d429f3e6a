"""The model's tools: each is a file with NAME, DESCRIPTION, PARAMETERS (a JSON schema) and
``run(desk, ...)``.

To add a tool, write such a file and add it to TOOLS. ``run`` returns the text of the result for the
model.
"""

from shell import Shell

from tools import bash, edit
from tools.problem import ToolError

TOOLS = {tool.NAME: tool for tool in (bash, edit)}

_TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


class Desk:
    """The state that the tools of one agent share: its directory, its shell, and the editor's undo
    history.
    """

    def __init__(self, workdir):
        self.workdir = str(workdir)
        self.undo = {}
        self._shell = None

    @property
    def shell(self):
        """The shell; the first access creates it."""
        if self._shell is None:
            self._shell = Shell(self.workdir)
        return self._shell

    def close(self):
        """End the shell and its processes."""
        if self._shell is not None:
            self._shell.close()
            self._shell = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def call(desk, name, arguments):
    """Run a tool and return its text; an error becomes one sentence for the model.

    Args:
        desk: the state that tools share.
        name: the name of the tool.
        arguments: the model's arguments, any JSON value.
    """
    try:
        tool = TOOLS.get(name)
        if tool is None:
            raise ToolError(f"unknown tool {name!r}; known: {', '.join(TOOLS)}")
        _check(tool, arguments)
        return tool.run(desk, **arguments)
    except (ToolError, OSError, ValueError) as error:
        return f"Error: {error}"


def _check(tool, arguments):
    """Raise ToolError unless the arguments match the tool's schema."""
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments of {tool.NAME} must be a JSON object")
    known = tool.PARAMETERS["properties"]
    for name in tool.PARAMETERS["required"]:
        if name not in arguments:
            raise ToolError(f"{tool.NAME} needs the argument {name!r}")
    for name, value in arguments.items():
        if name not in known:
            raise ToolError(f"{tool.NAME} has no argument {name!r}; it has: {', '.join(known)}")
        kind = known[name]["type"]
        wrong_bool = isinstance(value, bool) and kind != "boolean"
        if wrong_bool or not isinstance(value, _TYPES[kind]):
            raise ToolError(f"the argument {name!r} of {tool.NAME} must be of type {kind}")
