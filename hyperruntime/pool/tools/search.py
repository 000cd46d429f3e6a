"""The tool ``search``: find lines of files that match a pattern."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from hyperruntime.exec.streams import whole_end
from hyperruntime.pool.tools.pattern import to_posix
from hyperruntime.pool.tools.slot_scripts import run_inside, show
from hyperruntime.pool.tools.tool import Param, Tool, ToolProblemError, ToolRequest, done
from hyperruntime.pool_values.results import ExecutionResult

_MAX_CONTEXT = 20
_MAX_PATTERN = 10_000
_LINE_BYTES = 400
_RECORD_BYTES = 64 * 1024
_MAX_GLOBS = 64
_BRACES = re.compile(r"(?<!\\)\{([^{},]*,[^{}]*)\}")
_RECORD = re.compile(rb"([^\0]*)\0([^\n]*)\n")
_LINE = re.compile(rb"([0-9]{1,18})([:-])([^\0]*)")


class EnoughError(Exception):
    """The limit of matches or of text is reached; the search is stopped."""


class SearchLines:
    """Collects the output of ``search.sh`` in bounded memory.

    Attributes:
        found: the lines found so far: path of the file ("" if one file was searched), and the rest
            as shown, such as ``:7:text`` for a matching line and ``-8-text`` for a context line; a
            text is truncated after 400 bytes.
        matches: number of matching lines among them.
    """

    def __init__(self, most: int, most_chars: int) -> None:
        """Stop after ``most`` matches, or ``most_chars`` characters of paths and text."""
        self.found: list[tuple[str, str]] = []
        self.matches = 0
        self._most = most
        self._room = most_chars
        self._buffer = b""

    def write(self, chunk: bytes) -> None:
        """Add the next bytes of the output.

        Raises:
            EnoughError: there are more matches, or there is more text, than allowed.
        """
        self._buffer += chunk
        end = 0
        while record := _RECORD.match(self._buffer, end):
            self._take(record[1], record[2])
            end = record.end()
        # only the beginning of a long line is shown
        self._buffer = self._buffer[end : end + _RECORD_BYTES]

    def _take(self, name: bytes, rest: bytes) -> None:
        name = name.removeprefix(b"--\n")
        line = _LINE.fullmatch(rest)
        if line is None:
            return  # a binary file, or an invalid record
        number, mark, text = line.groups()
        matches = mark == b":"
        if matches and self.matches == self._most:
            raise EnoughError
        self.matches += matches
        shown = whole_end(text[:_LINE_BYTES]).decode(errors="replace") + (
            "..." if len(text) > _LINE_BYTES else ""
        )
        path = "" if name.startswith(b".//") else show(os.fsdecode(name.removeprefix(b"./")))
        self._room -= len(path) + len(shown)
        if self._room < 0:
            raise EnoughError
        self.found.append((path, f"{mark.decode()}{number.decode()}{mark.decode()}{shown}"))


async def run_search(call: ToolRequest) -> ExecutionResult:
    """Return the lines that match."""
    args = call.args
    most = min(args["max_results"], call.policy.max_entries)
    lines = SearchLines(most, call.policy.output_chars)
    truncated = False
    try:
        await run_inside(
            call, "search", args["path"], variables=_variables(args), on_stdout=lines.write
        )
    except EnoughError:
        truncated = True
    found = sorted(lines.found, key=lambda line: line[0])
    shown = [_name(path, args["path"]) + rest for path, rest in found] or ["(no line matches)"]
    if truncated:
        shown.append(
            f"[only the first {lines.matches} matches are shown; narrow the pattern, the path "
            "or the glob]"
        )
    return done(
        "\n".join(shown), path=show(args["path"]), matches=lines.matches, truncated=truncated
    )


def _variables(args: Mapping[str, Any]) -> dict[str, str | int]:
    pattern: str = args["pattern"]
    if not pattern or len(pattern) > _MAX_PATTERN or "\0" in pattern or "\n" in pattern:
        raise ToolProblemError(
            f"the pattern must be one line of 1 to {_MAX_PATTERN} characters without NUL"
        )
    return {
        "pattern": pattern if args["literal"] else to_posix(pattern),
        "form": "F" if args["literal"] else "E",
        "globs": "\n".join(_globs(args["glob"] or "")),
        "context": min(args["context"], _MAX_CONTEXT),
        "ignore_case": "1" if args["ignore_case"] else "",
        "hidden": "1" if args["hidden"] else "",
    }


def _globs(glob: str) -> list[str]:
    """Return the patterns of file names that a glob stands for: ``*.{py,txt}`` stands for ``*.py``
    and ``*.txt``.

    Raises:
        ToolProblemError: it is not a pattern of file names, or stands for too many.

    Source: bash(1), "Brace Expansion"; neither grep nor find expands braces.
    """
    if set("/\0\n") & set(glob):
        raise ToolProblemError(
            "'glob' matches only file names, for example '*.py'; give the directory as 'path'"
        )
    found = [glob] if glob else []
    while any(_BRACES.search(each) for each in found):
        found = list(dict.fromkeys(part for each in found for part in _without_one_brace(each)))
        if len(found) > _MAX_GLOBS:
            raise ToolProblemError(
                f"'glob' stands for more than {_MAX_GLOBS} patterns; use '*' in it"
            )
    return found


def _without_one_brace(glob: str) -> list[str]:
    """Return the patterns that a glob stands for after its first innermost braces are expanded."""
    braces = _BRACES.search(glob)
    if braces is None:
        return [glob]
    return [glob[: braces.start()] + part + glob[braces.end() :] for part in braces[1].split(",")]


def _name(path: str, searched: str) -> str:
    name = posixpath.normpath(posixpath.join(show(searched), path)) if path else show(searched)
    return name.replace("\\", "\\\\").replace("\n", "\\n")


SEARCH = Tool(
    name="search",
    description=(
        "Find lines in the files of a directory, or in one file. Returns path:line:text for "
        "each matching line; with 'context' also path-line-text for the lines around it. Binary "
        "files are skipped."
    ),
    params=(
        Param(
            "pattern",
            str,
            "an extended regular expression (also \\d, \\w, \\s, \\b), for one line",
            required=True,
        ),
        Param(
            "path",
            str,
            "directory or file, absolute or relative to the workspace",
            default=".",
        ),
        Param("literal", bool, "treat the pattern as plain text", default=False),
        Param("glob", str, "search only files with matching names, for example *.py or *.{js,ts}"),
        Param("context", int, "number of lines to show around each match", default=0, minimum=0),
        Param("ignore_case", bool, "ignore the case of letters", default=False),
        Param("hidden", bool, "also search names that begin with a dot", default=False),
        Param("max_results", int, "largest number of matches", default=200, minimum=1),
    ),
    run=run_search,
)
