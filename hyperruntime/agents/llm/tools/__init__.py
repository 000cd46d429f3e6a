"""The tools a model has: one file each, with NAME, DESCRIPTION, PARAMETERS (a JSON schema) and ``run(desk, ...)``.

To add one, write such a file and put it in TOOLS. ``run`` returns the text that the model is answered with.
"""

from shell import Shell

from tools import bash, edit
from tools.problem import ToolError

TOOLS = {tool.NAME: tool for tool in (bash, edit)}

_TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


class Desk:
    """What tools share while one agent works: its directory, its shell, and what the editor can undo."""

    def __init__(self, workdir):
        self.workdir = str(workdir)
        self.undo = {}
        self._shell = None

    @property
    def shell(self):
        """The shell; started when it is first asked for."""
        if self._shell is None:
            self._shell = Shell(self.workdir)
        return self._shell

    def close(self):
        """End what the shell still runs."""
        if self._shell is not None:
            self._shell.close()
            self._shell = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def call(desk, name, arguments):
    """Run a tool and return its text; whatever a model may have got wrong is answered by a sentence."""
    try:
        tool = TOOLS.get(name)
        if tool is None:
            raise ToolError(f"there is no tool {name!r}; there are: {', '.join(TOOLS)}")
        _check(tool, arguments)
        return tool.run(desk, **arguments)
    except (ToolError, OSError, ValueError) as error:
        return f"Error: {error}"


def _check(tool, arguments):
    """Raise ToolError unless the arguments are what the tool's schema says."""
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
