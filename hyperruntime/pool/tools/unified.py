"""Apply a unified diff to file contents in memory; no I/O.

Line numbers are only a hint, because models get them wrong. A hunk is applied where its old lines
are found; if they are found several times, the hint must select one.

Source: POSIX.1-2017 diff, "Diff -u and -U Output Format", and the extensions of git.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import attrs

from hyperruntime.git.patch import unquote
from hyperruntime.pool.tools.tool import ToolProblemError

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,\d{1,9})? @@")
_LOOSE_HUNK = re.compile(rb"@@(?: .*)?")
_NOTHING = b"/dev/null"
_MAX_HUNKS = 200
_MAX_LINES = 100_000  # in a longer file, a hunk with a wrong line number is not searched for


@attrs.frozen(kw_only=True)
class Hunk:
    """One change of a diff.

    Attributes:
        line: line number at which its old lines should begin (the first is 1); None if the header
            has none.
        body: pairs of a sign (``" "`` kept, ``"-"`` removed, ``"+"`` added) and a line with its
            line end.
    """

    line: int | None
    body: tuple[tuple[bytes, bytes], ...]

    @property
    def old(self) -> list[bytes]:
        """The lines that the file must contain."""
        return [text for mark, text in self.body if mark != b"+"]


@attrs.frozen(kw_only=True)
class FileDiff:
    """The changes of one file.

    Attributes:
        old: its path before; None for a new file.
        new: its path after; None for a removed file.
        hunks: its changes, in the order of the diff.
    """

    old: bytes | None
    new: bytes | None
    hunks: tuple[Hunk, ...]

    @property
    def path(self) -> bytes:
        """The path after the change, or before it for a removed file."""
        return self.new if self.new is not None else self.old or b""


def parse_diff(text: bytes, path: bytes | None = None) -> list[FileDiff]:
    """Parse a unified diff into the changes of its files.

    Args:
        text: the diff of one or more files.
        path: path of the only file; the diff may then begin with a hunk, and paths in its headers
            are ignored.

    Raises:
        ToolProblemError: the diff is invalid, renames or copies files, or is binary.
    """
    lines = _split(text)
    at = 0
    files = []
    while at < len(lines):
        line = lines[at]
        if line.startswith(b"--- ") and at + 1 < len(lines) and lines[at + 1].startswith(b"+++ "):
            old = _name(lines[at][4:], b"a/")
            new = _name(lines[at + 1][4:], b"b/")
            at, hunks = _hunks(lines, at + 2)
            files.append(_file(old, new, hunks))
        elif line.startswith(b"@@") and path is not None and not files:
            at, hunks = _hunks(lines, at)
            files.append(FileDiff(old=path, new=path, hunks=hunks))
        elif line.startswith((b"rename ", b"copy ", b"GIT binary", b"Binary files")):
            raise ToolProblemError(
                "a diff can only change, create and remove text files; not supported: "
                f"{_shown(line)}"
            )
        elif line.startswith(b"@@"):
            raise ToolProblemError(
                "a hunk comes before the lines '--- a/PATH' and '+++ b/PATH' that name its file"
            )
        else:
            at += 1
    if not files:
        raise ToolProblemError(
            "this is not a unified diff: it needs '--- a/PATH', '+++ b/PATH', '@@ -1,3 +1,4 @@' "
            "and then lines"
        )
    if path is not None:
        if len(files) > 1:
            raise ToolProblemError("the diff changes several files; omit 'path'")
        only = files[0]
        files = [attrs.evolve(only, old=only.old and path, new=only.new and path)]
    return files


def apply_hunks(content: bytes, hunks: Sequence[Hunk]) -> bytes:
    """Return a file's content after the changes.

    Args:
        content: the content before.
        hunks: the changes, in the order of the file.

    Raises:
        ToolProblemError: the old lines of a hunk are not found, or are found several times.
    """
    lines = _split(content)
    shift = 0
    floor = 0
    for number, hunk in enumerate(hunks, 1):
        hint = None if hunk.line is None else hunk.line - 1 + shift
        at = _find(lines, hunk, hint, floor, number)
        old_count = len(hunk.old)
        new = _replacement(lines[at : at + old_count], hunk)
        lines[at : at + old_count] = new
        shift += len(new) - old_count
        floor = at + len(new)
    return b"".join([*(_ended(line) for line in lines[:-1]), *lines[-1:]])


def _replacement(old: list[bytes], hunk: Hunk) -> list[bytes]:
    """Return the new lines for the old lines of a hunk; kept lines stay as they are in the file.

    Added lines get a carriage return if the file's lines have one and the diff's old lines do not.
    """
    wanted = hunk.old
    carriage = any(line.endswith(b"\r\n") for line in old) and not any(
        line.endswith(b"\r\n") for line in wanted
    )
    new = []
    rest = iter(old)
    for mark, text in hunk.body:
        if mark == b"+":
            bare = carriage and text.endswith(b"\n") and not text.endswith(b"\r\n")
            new.append(text[:-1] + b"\r\n" if bare else text)
        else:
            line = next(rest)
            new += [line] if mark == b" " else []
    return new


def _find(lines: list[bytes], hunk: Hunk, hint: int | None, floor: int, number: int) -> int:
    """Return the index at which a hunk's old lines begin; line ends are ignored if nothing matches
    exactly.
    """
    old = hunk.old
    if not old:  # "-N,0" adds after line N
        return max(floor, min(len(lines) if hint is None else hint + 1, len(lines)))
    if hint is not None and hint >= floor and lines[hint : hint + len(old)] == old:
        return hint
    if len(lines) > _MAX_LINES:
        raise ToolProblemError(
            f"hunk {number} is not at its line, and the file is too large to search; correct "
            "the line number"
        )
    for ignored in (b"", b"\r\n"):
        wanted = [line.rstrip(ignored) for line in old]
        have = [line.rstrip(ignored) for line in lines]
        places = [
            at
            for at in range(floor, len(lines) - len(wanted) + 1)
            if have[at] == wanted[0] and have[at : at + len(wanted)] == wanted
        ]
        if hint is not None and hint in places:
            return hint
        if len(places) == 1:
            return places[0]
        if places:
            shown = ", ".join(str(place + 1) for place in places[:5])
            raise ToolProblemError(
                f"hunk {number} fits at lines {shown}; include more surrounding lines, or "
                "correct its line"
            )
    raise ToolProblemError(
        f"hunk {number} does not fit: its old lines, from {_shown(old[0])} on, are not in the file"
    )


def _hunks(lines: list[bytes], at: int) -> tuple[int, tuple[Hunk, ...]]:
    """Parse the hunks that begin at a line; return the index after them, and the hunks."""
    hunks = []
    while at < len(lines) and lines[at].startswith(b"@@"):
        match = _HUNK.match(lines[at])
        if match is None and not _LOOSE_HUNK.fullmatch(lines[at].strip()):
            raise ToolProblemError(
                f"{_shown(lines[at])} is not a valid hunk header, such as '@@ -1,3 +1,4 @@'"
            )
        end = at + 1
        while end < len(lines) and not _ends_hunk(lines, end):
            end += 1
        hunks.append(_hunk(match, lines[at + 1 : end]))
        if len(hunks) > _MAX_HUNKS:
            raise ToolProblemError(
                f"the diff has more than {_MAX_HUNKS} hunks for one file; split the diff"
            )
        at = end
    return at, tuple(hunks)


def _ends_hunk(lines: list[bytes], at: int) -> bool:
    line = lines[at]
    after = lines[at + 1 : at + 3]
    if (
        line.startswith(b"--- ")
        and len(after) == 2
        and after[0].startswith(b"+++ ")
        and after[1].startswith(b"@@")
    ):
        return True
    return line[:1] not in b" +-\\\n\r"


def _hunk(match: re.Match[bytes] | None, lines: list[bytes]) -> Hunk:
    body: list[tuple[bytes, bytes]] = []
    for line in lines:
        if line.startswith(b"\\"):  # "\\ No newline at end of file": about the line before
            if body:
                body[-1] = (body[-1][0], body[-1][1].rstrip(b"\r\n"))
        elif line.strip(b"\r\n") == b"":
            body.append((b" ", line))  # a kept empty line that lost its leading blank
        else:
            body.append((line[:1], _ended(line[1:])))
    kept = int(match[2] or 1) if match is not None else 0
    while (
        body
        and lines[-1].strip() == b""
        and body[-1][0] == b" "
        and sum(m != b"+" for m, _ in body) > kept
    ):
        body.pop()  # blank lines after the end of the diff
        lines = lines[:-1]
    if all(mark == b" " for mark, _ in body):
        raise ToolProblemError(
            "a hunk changes nothing; added lines must begin with '+', removed lines with '-'"
        )
    return Hunk(line=int(match[1]) if match is not None else None, body=tuple(body))


def _file(old: bytes | None, new: bytes | None, hunks: tuple[Hunk, ...]) -> FileDiff:
    if old is None and new is None:
        raise ToolProblemError("a diff from /dev/null to /dev/null changes no file")
    if old is not None and new is not None and old != new:
        raise ToolProblemError(
            f"a diff cannot rename {_shown(old)} to {_shown(new)}; move the file with bash first"
        )
    if not hunks:
        raise ToolProblemError(
            f"the diff of {_shown(new or old or b'')} has no hunk, such as '@@ -1,3 +1,4 @@'"
        )
    if old is None and any(hunk.old for hunk in hunks):
        raise ToolProblemError(
            f"{_shown(new or b'')} is a new file, but the diff keeps or removes lines of it"
        )
    return FileDiff(old=old, new=new, hunks=hunks)


def _name(field: bytes, prefix: bytes) -> bytes | None:
    """Return a header's path without its timestamp, git's quotes and prefix; None for
    ``/dev/null``.
    """
    text = field.rstrip(b"\r\n")
    name = unquote(text) if text.startswith(b'"') else text.split(b"\t")[0]
    if name == _NOTHING:
        return None
    name = name.removeprefix(prefix)
    if not name or name.startswith(b'"') or b"\0" in name:
        raise ToolProblemError(
            f"the path {_shown(field)} of the diff is invalid; give it as 'path' instead"
        )
    return name


def _split(text: bytes) -> list[bytes]:
    """Split into lines with their ends; only a line feed ends a line."""
    return io.BytesIO(text).readlines()


def _ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n"


def _shown(text: bytes) -> str:
    return repr(text.decode(errors="replace").rstrip("\n")[:100])
