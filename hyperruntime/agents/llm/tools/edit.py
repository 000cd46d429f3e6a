"""The tool ``edit``: view files and change them exactly, with undo."""

import inspect
import os
from pathlib import Path

import settings
from shell import Kept

from tools.problem import ToolError

NAME = "edit"
DESCRIPTION = (
    "Look at and change text files. `view` shows a file with line numbers, or a directory; "
    "`lines` is [first, last], last -1 for the end. `create` writes a whole file. `replace` "
    "puts `new` in place of `old`, which must be in the file exactly once. `insert` puts `text` "
    "after the line number `line`, 0 for the top. `undo` takes back the last change of that "
    "file."
)
PARAMETERS = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "enum": ["view", "create", "replace", "insert", "undo"]},
        "path": {"type": "string", "description": "absolute, or relative to the working directory"},
        "lines": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "for view: [first, last]",
        },
        "text": {"type": "string", "description": "for create and insert"},
        "old": {"type": "string", "description": "for replace"},
        "new": {"type": "string", "description": "for replace; '' where not given"},
        "line": {"type": "integer", "description": "for insert"},
    },
    "required": ["command", "path"],
}
_LISTED = 200


def run(desk, command, path, **arguments):
    """Run one of the editor's commands and return its text.

    Args:
        desk: the state that tools share.
        command: the name of the command.
        path: a path, absolute or relative to the working directory.
        **arguments: the arguments of the command.

    Raises:
        ToolError: an argument is invalid, or the command cannot be done.
    """
    if "\0" in path:
        raise ToolError("a path cannot hold a NUL character")
    commands = {"view": view, "create": create, "replace": replace, "insert": insert, "undo": undo}
    if command not in commands:
        raise ToolError(f"unknown command {command!r} of edit; known: {', '.join(commands)}")
    try:
        inspect.signature(commands[command]).bind(desk, path, **arguments)
    except TypeError as error:
        raise ToolError(f"{command}: {error}") from error
    return commands[command](desk, Path(os.path.normpath(Path(desk.workdir, path))), **arguments)


def view(desk, path, *, lines=None):
    """Return a file's lines with their numbers, or a directory's entries."""
    if path.is_dir():
        names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
        more = [f"[... {len(names) - _LISTED} more ...]"] if len(names) > _LISTED else []
        return "\n".join([f"{path} has {len(names)} entries:", *names[:_LISTED], *more])
    content = _split(read(path))
    first, last = _range(lines, len(content))
    kept = Kept(settings.OUTPUT_BYTES)
    for number, line in enumerate(content[first - 1 : last], first):
        kept.add(f"{number:6}\t{line}\n".encode("utf-8", "surrogateescape"))
    return kept.text().rstrip("\n") or f"{path} is empty"


def create(desk, path, *, text):
    """Write a whole file, new or existing."""
    before = path.read_bytes() if path.exists() else None
    write(desk, path, text, before)
    return f"{path} is written: {len(_split(text))} lines" + (
        "; it was there before" if before is not None else ""
    )


def replace(desk, path, *, old, new=""):
    """Replace a text that is in the file exactly once."""
    content = read(path)
    count = content.count(old) if old else 0
    if not old:
        raise ToolError("`old` is empty; to add lines use insert")
    if count == 0:
        hint = "; the file's lines end with \\r\\n" if "\r\n" in content and "\n" in old else ""
        raise ToolError(f"`old` is not in {path}; it must match exactly, blanks included{hint}")
    if count > 1:
        raise ToolError(f"`old` is {count} times in {path}; give more of the lines around it")
    at = content.index(old)
    if content.find(old, at + 1) != -1:
        raise ToolError(
            f"`old` is in {path} more than once, overlapping; give more of the lines around it"
        )
    write(desk, path, content[:at] + new + content[at + len(old) :], path.read_bytes())
    return f"{path} is changed at line {content.count(chr(10), 0, at) + 1}"


def insert(desk, path, *, line, text):
    """Insert lines after a line."""
    content = read(path)
    rows = content.split("\n")
    total = len(_split(content))
    if not 0 <= line <= total:
        raise ToolError(f"{path} has {total} lines; `line` must be from 0 to {total}")
    text = text if text.endswith("\n") else text + "\n"
    head = "".join(row + "\n" for row in rows[:line])
    write(desk, path, head + text + content[len(head) :], path.read_bytes())
    return f"{path} has {len(_split(text))} more lines after line {line}"


def undo(desk, path):
    """Undo this tool's last change of a file."""
    changes = desk.undo.get(str(path))
    if not changes:
        raise ToolError(f"there is no change of {path} to undo")
    before = changes.pop()
    if before is None:
        path.unlink(missing_ok=True)
        return f"{path} is removed, as it was before"
    path.write_bytes(before)
    return f"{path} is as it was before"


def read(path):
    """Return a file as text; bytes that are not UTF-8 become surrogates, which :func:`write`
    restores.
    """
    if not path.exists():
        raise ToolError(f"{path} does not exist")
    if not path.is_file():
        raise ToolError(f"{path} is not a regular file")
    if path.stat().st_size > settings.FILE_BYTES:
        raise ToolError(f"{path} has more than {settings.FILE_BYTES} bytes; use bash")
    return path.read_bytes().decode("utf-8", "surrogateescape")


def write(desk, path, text, before):
    """Write a file and record its earlier content for undo.

    Args:
        desk: the state that tools share.
        path: the file.
        text: the new content.
        before: the earlier content in bytes; None if the file did not exist.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    desk.undo.setdefault(str(path), []).append(before)


def _split(text):
    """Return the lines of a text; only a newline ends a line."""
    rows = text.split("\n")
    return rows[:-1] if rows[-1] == "" else rows


def _range(lines, total):
    if lines is None:
        return 1, total
    if len(lines) != 2 or not all(type(number) is int for number in lines):
        raise ToolError("`lines` must be [first, last]")
    first, last = lines[0], total if lines[1] == -1 else lines[1]
    if not 1 <= first <= max(total, 1) or last < first:
        raise ToolError(f"`lines` {lines} is not in the file, which has lines 1 to {total}")
    return first, min(last, total)
