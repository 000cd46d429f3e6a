"""The tool ``bash``: run commands in a persistent shell."""

import settings

from tools.problem import ToolError

NAME = "bash"
DESCRIPTION = (
    "Run commands in bash and get their output (both streams together) and exit code. The shell "
    "stays: directory, variables and functions are as the last command left them. Standard "
    "input is empty. Of long output the middle is left out. Redirect the output of background "
    "jobs to a file."
)
PARAMETERS = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "one or more lines of bash"},
        "timeout_s": {
            "type": "number",
            "description": f"seconds it may take; {settings.COMMAND_TIMEOUT_S:g} where not given",
        },
    },
    "required": ["command"],
}


def run(desk, command, timeout_s=settings.COMMAND_TIMEOUT_S):
    """Run a command and return its output, followed by its exit code.

    Args:
        desk: the state that tools share.
        command: any number of lines of bash.
        timeout_s: the deadline in seconds.

    Raises:
        ToolError: an argument is invalid.
    """
    if not 0 < timeout_s <= settings.COMMAND_TIMEOUT_MOST_S:
        raise ToolError(
            f"timeout_s must be above 0 and at most {settings.COMMAND_TIMEOUT_MOST_S:g}"
        )
    if "\0" in command:
        raise ToolError("a command cannot hold a NUL character; write it as an escape")
    result = desk.shell.run(command, timeout_s)
    how = "no exit code" if result.exit_code is None else f"exit code {result.exit_code}"
    end = f"[{how}; {result.note}]" if result.note else f"[{how}]"
    return "\n".join(part for part in (result.output.rstrip("\n"), end) if part)
