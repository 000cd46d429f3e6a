"""Split a diff into one part per file, and leave out parts that are not allowed.

Only names and sizes are parsed here; ``git apply`` validates the rest. The store checks the result
of every diff again, so a diff that this parser and git read differently gains nothing.
Source: git-diff(1), "Generating patch text with -p"; diffutils manual, "Detailed Description of
Unified Format".
"""

from __future__ import annotations

import base64
import os
import re
import zlib
from collections.abc import Iterator

import attrs

from hyperruntime.errors import PatchError
from hyperruntime.git.change_rules import ChangeRules, escape_problem

MAX_PATCH_BYTES = 64 * 1024 * 1024
MAX_RESULT_BYTES = 256 * 1024 * 1024
Notes = tuple[tuple[str, str], ...]

_GIT_HEADER = b"diff --git "
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_MOVE = re.compile(rb"(?:rename|copy) (?:from|to|old|new) (.+)")
_BINARY = re.compile(rb"(literal|delta) (\d+)")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"t": b"\t",
    b"n": b"\n",
    b"v": b"\v",
    b"f": b"\f",
    b"r": b"\r",
}
_NOTHING = b"/dev/null"
_SIGNS = (b" ", b"-", b"+", b"\\", b"\n")
_EXTENDED = (
    b"old mode ", b"new mode ", b"deleted file mode ", b"new file mode ", b"copy ", b"rename ",
    b"similarity index ", b"dissimilarity index ", b"index ",
)  # fmt: skip


@attrs.frozen
class FilePatch:
    """The part of a diff for one file (two for a rename or a copy).

    Attributes:
        text: bytes of the part, header included.
        names: every file name in it, without the prefix (such as ``a/``) that ``-p1`` removes.
        size: declared size in bytes of the new binary file; 0 for text.
    """

    text: bytes
    names: tuple[bytes, ...]
    size: int


def parse_patch(patch: bytes) -> tuple[FilePatch, ...]:
    """Return the parts of a git or plain unified diff; text before the first part is dropped.

    Raises:
        PatchError: the diff is too large, or a non-empty text is not a diff.
    """
    if len(patch) > MAX_PATCH_BYTES:
        raise PatchError(f"the diff has {len(patch)} bytes; at most {MAX_PATCH_BYTES} are allowed")
    parts = tuple(_Parser(patch).parts())
    if not parts and patch.strip():
        raise PatchError("the text is not a diff; create it with git diff --binary")
    return parts


def filter_patch(patch: bytes, rules: ChangeRules) -> tuple[bytes, Notes]:
    """Return a diff without the parts that the rules forbid, and ``(path, reason)`` of each such
    part.

    Args:
        patch: the diff.
        rules: rules for its changes.

    Raises:
        PatchError: as for :func:`parse_patch`, a name is not allowed in a repository, or the binary
            files are too large.
    """
    parts = parse_patch(patch)
    refused = [(name, escape_problem(name)) for part in parts for name in part.names]
    if bad := tuple(dict.fromkeys((os.fsdecode(name), why) for name, why in refused if why)):
        raise PatchError(
            f"the diff tries to leave the repository: {bad[0][0]!r} is {bad[0][1]}", bad
        )
    if sum(part.size for part in parts) > MAX_RESULT_BYTES:
        raise PatchError(f"the files of the diff have more than {MAX_RESULT_BYTES} bytes in all")
    kept = []
    dropped = []
    for part in parts:
        reasons = [
            (name, rules.problem(name) or rules.size_problem(part.size)) for name in part.names
        ]
        reason = next(((os.fsdecode(name), why) for name, why in reasons if why), None)
        if reason is None:
            kept.append(part.text)
        else:
            dropped.append(reason)
    return b"".join(kept), tuple(dropped)


def changed_lines(text: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the added and the removed lines of a diff, without their signs and ends; none of a
    binary file.

    Args:
        text: one part of a diff or several; it may be truncated.
    """
    added: list[bytes] = []
    removed: list[bytes] = []
    old = new = 0
    for line in text.split(b"\n"):
        if old <= 0 and new <= 0:
            if hunk := _HUNK.match(line):
                old, new = (1 if count is None else int(count) for count in hunk.groups())
            continue
        sign = line[:1]
        old -= sign in (b" ", b"-", b"")
        new -= sign in (b" ", b"+", b"")
        if sign in (b"+", b"-"):
            (added if sign == b"+" else removed).append(line[1:])
    return added, removed


class _Parser:
    """Parses the lines of a diff in one pass."""

    def __init__(self, patch: bytes) -> None:
        *whole, last = patch.split(b"\n")
        self._lines = [line + b"\n" for line in whole] + ([last + b"\n"] if last else [])
        self._at = 0

    def parts(self) -> Iterator[FilePatch]:
        """Yield each part; like git, include all lines up to the next part."""
        while self._at < len(self._lines) and not self._is_start():
            self._at += 1
        while self._at < len(self._lines):
            start = self._at
            names = []
            size = 0
            if self._line().startswith(_GIT_HEADER):
                names += _header_names(self._line()[len(_GIT_HEADER) : -1])
                self._at += 1
                names += self._extended_header()
            if self._line().startswith(b"--- ") and self._line(1).startswith(b"+++ "):
                names += [_file_name(self._line()[4:-1]), _file_name(self._line(1)[4:-1])]
                self._at += 2
                self._skip_hunks()
            elif self._line() == b"GIT binary patch\n":
                size = self._skip_binary()
            while self._at < len(self._lines) and not self._is_start():
                self._at += 1
            unique = dict.fromkeys(name for name in names if name != _NOTHING)
            yield FilePatch(b"".join(self._lines[start : self._at]), tuple(unique), size)

    def _line(self, ahead: int = 0) -> bytes:
        at = self._at + ahead
        return self._lines[at] if at < len(self._lines) else b""

    def _is_start(self) -> bool:
        if self._line().startswith(b"--- "):
            return self._line(1).startswith(b"+++ ") and self._line(2).startswith(b"@@ -")
        return self._line().startswith(_GIT_HEADER)

    def _extended_header(self) -> list[bytes]:
        names = []
        while self._line().startswith(_EXTENDED):
            if move := _MOVE.fullmatch(self._line()[:-1]):
                names.append(unquote(move[1]))
            self._at += 1
        return names

    def _skip_hunks(self) -> None:
        while hunk := _HUNK.match(self._line()):
            old, new = (1 if count is None else int(count) for count in hunk.groups())
            self._at += 1
            while (old > 0 or new > 0) and (sign := self._line()[:1]) in _SIGNS:
                old -= sign in b" -\n"
                new -= sign in b" +\n"
                self._at += 1
            if self._line().startswith(b"\\"):
                self._at += 1

    def _skip_binary(self) -> int:
        """Skip both directions of a binary part; return the size of the file that the first one
        makes.
        """
        sizes = []
        self._at += 1
        while binary := _BINARY.match(self._line()):
            literal = binary[1] == b"literal"
            sizes.append(int(binary[2]) if literal else _delta_result_size(self._line(1)[:-1]))
            while self._line().strip():
                self._at += 1
            self._at += 1
        return sizes[0] if sizes else 0


def _header_names(rest: bytes) -> list[bytes]:
    """Return the names of a ``diff --git`` line; none if the line is ambiguous (names not quoted
    and not the same).
    """
    if b'"' in rest:
        quoted = [unquote(match[0]) for match in _QUOTED.finditer(rest)]
        plain = _QUOTED.sub(b"", rest).strip()
        return [_without_first(name) for name in (*quoted, plain) if name]
    for at in (at for at, byte in enumerate(rest) if byte == 0x20):
        old = _without_first(rest[:at])
        new = _without_first(rest[at + 1 :])
        if old == new:
            return [old]
    return []


def _file_name(rest: bytes) -> bytes:
    """Return the name in a ``---`` or ``+++`` line, without a timestamp after a tab."""
    name = unquote(rest) if rest.startswith(b'"') else rest.split(b"\t", 1)[0]
    return name if name == _NOTHING else _without_first(name)


def _without_first(name: bytes) -> bytes:
    """Return a name as ``-p1`` reads it; an absolute name stays absolute, so that it is refused
    later.
    """
    return name.partition(b"/")[2] if b"/" in name[1:] and not name.startswith(b"/") else name


def unquote(name: bytes) -> bytes:
    """Return a name without its quotes and escapes, if it has any. Source: git-config(1),
    ``core.quotePath``.
    """
    quoted = _QUOTED.match(name)
    if quoted is None:
        return name
    return _ESCAPE.sub(
        lambda match: (
            bytes([int(match[1], 8) & 255])
            if match[1].isdigit()
            else _ESCAPES.get(match[1], match[1])
        ),
        quoted[1],
    )


def _delta_result_size(line: bytes) -> int:
    """Return the size of the file that a binary delta makes: the second number in the delta.

    Source: git's gitformat-pack(5), "Deltified representation".
    """
    try:
        delta = zlib.decompressobj().decompress(base64.b85decode(line[1:]), 64)
    except (ValueError, zlib.error):
        return 0  # git reports the error
    sizes = [0]
    shift = 0
    for byte in delta:
        sizes[-1] |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            sizes.append(0)
            shift = 0
    return sizes[1] if len(sizes) > 2 else 0
