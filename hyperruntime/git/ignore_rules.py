"""Decide which paths the ``.gitignore`` files of a state ignore, in bounded time.

An agent writes these files, and git's own matcher needs exponential time for some patterns. Here a
pattern is a set of positions that is moved over the path byte by byte, so its time grows with the
length of the path only. Source: gitignore(5); git's ``dir.c`` and ``wildmatch.c``, whose results a
test compares with these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hyperruntime.errors import PatchError

MAX_STEPS = 300_000_000
MAX_BYTES = 256 * 1024
"""The most bytes of all ``.gitignore`` files of a state: a parsed rule can take a thousand times as
much memory.
"""
_MAX_PATTERN_BYTES = 4096
_SPECIAL = re.compile(rb"[*?\[\\]")
_NAMED = re.compile(rb"\[:([^]]*):\]")
_STARS = re.compile(rb"\*+")
_ANY_BUT_SLASH = frozenset(range(256)) - {ord("/")}
_BYTE_CLASSES = {
    b"alnum": rb"[0-9A-Za-z]", b"alpha": rb"[A-Za-z]", b"blank": rb"[ \t]", b"cntrl": rb"[\x00-\x1f\x7f]",
    b"digit": rb"[0-9]", b"graph": rb"[!-~]", b"lower": rb"[a-z]", b"print": rb"[ -~]", b"punct": rb"[!-/:-@\[-`{-~]",
    b"space": rb"[ \t\n\v\f\r]", b"upper": rb"[A-Z]", b"xdigit": rb"[0-9A-Fa-f]",
}  # fmt: skip
_NAMED_BYTES = {
    name: frozenset(n for n in range(256) if re.fullmatch(one, bytes([n])))
    for name, one in _BYTE_CLASSES.items()
}


class Glob:
    """A pattern with wildcards, as a non-deterministic automaton whose states are the bits of a
    number.

    State *n* means that the first *n* tokens matched. A token is a set of bytes, or a star, which
    stays in its state.

    Attributes:
        cost: steps of a comparison with one byte.
    """

    def __init__(self, pattern: bytes) -> None:
        """Parse a pattern; an invalid one matches nothing.

        Args:
            pattern: without its literal beginning, if it has one.
        """
        self._next = [0] * 256  # by byte: the states that this byte ends
        self._stay = [0] * 256  # by byte: the stars that match it
        # a state, and the distance to one that is reached without a byte
        self._empty: list[tuple[int, int]] = []
        self._tokens = 0
        self._parse(pattern)
        self._start = self._close(1)
        self.cost = 1 + len(self._empty) + self._tokens // 64

    def matches(self, text: bytes) -> bool:
        """Return whether the pattern matches all of a text."""
        states = self._start
        for byte in text:
            states = self._close((states & self._next[byte]) << 1 | states & self._stay[byte])
            if not states:
                return False
        return bool(states >> self._tokens)

    def _close(self, states: int) -> int:
        for state, distance in self._empty:  # in the order of the pattern, so one pass is enough
            if states & state:
                states |= state << distance
        return states

    def _parse(self, pattern: bytes) -> None:
        at = 0
        while at < len(pattern):
            byte = pattern[at : at + 1]
            if byte == b"*":
                at = self._add_stars(pattern, at)
            elif byte == b"[":
                found, at = _parse_class(pattern, at)
                self._add(found & _ANY_BUT_SLASH)
            elif byte == b"?":
                self._add(_ANY_BUT_SLASH)
                at += 1
            else:
                at += byte == b"\\"
                self._add(frozenset(pattern[at : at + 1]))  # nothing matches a backslash at the end
                at += 1

    def _add(self, found: Iterable[int]) -> None:
        for byte in found:
            self._next[byte] |= 1 << self._tokens
        self._tokens += 1

    def _add_stars(self, pattern: bytes, at: int) -> int:
        """Add one token for adjacent stars; return the place after them."""
        stars = _STARS.match(pattern, at)
        assert stars is not None
        end = stars.end()
        whole = len(stars[0]) > 1 and pattern[at - 1 : at] in (b"", b"/")
        whole = whole and (end == len(pattern) or pattern.startswith((b"/", b"\\/"), end))
        # "**/" matches no directory, too: a state that skips it
        if whole and pattern.startswith(b"/", end):
            self._empty += [(1 << self._tokens, 3), (1 << self._tokens, 1)]
            self._tokens += 1
        for byte in range(256) if whole else _ANY_BUT_SLASH:
            self._stay[byte] |= 1 << self._tokens
        self._empty.append((1 << self._tokens, 1))
        self._tokens += 1
        return end


def _parse_class(pattern: bytes, at: int) -> tuple[frozenset[int], int]:
    """Return the bytes of a ``[...]`` that begins at ``at``, and the place after it; an invalid one
    has no bytes.
    """
    invalid = frozenset[int](), len(pattern)
    at += 1
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    found: set[int] = set()
    before = -1  # the byte that may begin a range
    first = True
    while first or pattern[at : at + 1] != b"]":
        first = False
        if at >= len(pattern):
            return invalid
        byte = pattern[at]
        following = pattern[at + 1 : at + 2]
        if byte == ord("-") and before >= 0 and following not in (b"", b"]"):
            at += 1
            at += following == b"\\"
            if at >= len(pattern):
                return invalid
            found.update(range(before, pattern[at] + 1))
            before = -1
        elif (name := _NAMED.match(pattern, at)) is not None:
            if name[1] not in _NAMED_BYTES:
                return invalid
            found |= _NAMED_BYTES[name[1]]
            before = -1
            at = name.end() - 1
        else:
            at += byte == ord("\\")
            if at >= len(pattern):
                return invalid
            before = pattern[at]
            found.add(before)
        at += 1
    everything = frozenset(range(256))
    return (everything - found if negated else frozenset(found)), at + 1


class _Rule:
    """One line of a ``.gitignore`` file.

    Attributes:
        negated: whether it takes paths back.
        cost: steps of a comparison with one byte.
    """

    def __init__(self, line: bytes) -> None:
        self.negated = line.startswith(b"!")
        line = line[self.negated :]
        self._directory = line.endswith(b"/")
        line = line[: len(line) - self._directory]
        self._by_name = b"/" not in line
        line = line.removeprefix(b"/")
        special = _SPECIAL.search(line)
        literal = len(line) if special is None else special.start()
        if self._by_name and special is not None:
            # git compares a name with the whole pattern, and the rest of a path with the rest of it
            literal = 0
        self._literal = line[:literal]
        rest = line[literal:]
        self._suffix = (
            rest[1:]
            if self._by_name and rest[:1] == b"*" and not _SPECIAL.search(rest, 1)
            else None
        )
        self._glob = Glob(rest) if rest and self._suffix is None else None
        self.cost = 1 if self._glob is None else self._glob.cost

    def matches(self, path: bytes, name: bytes, *, is_directory: bool) -> bool:
        """Return whether the line is about a path.

        Args:
            path: relative to the directory of the file.
            name: last component of the path.
            is_directory: whether it is a directory.
        """
        if self._directory and not is_directory:
            return False
        text = name if self._by_name else path
        if self._suffix is not None:
            return text.endswith(self._suffix)
        if self._glob is None:
            return text == self._literal
        return text.startswith(self._literal) and self._glob.matches(text[len(self._literal) :])


def _parse_rules(content: bytes) -> list[_Rule]:
    """Return the rules of a file, the last one first, because it decides."""
    rules = []
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if not line or line.startswith(b"#"):
            continue
        pattern = _without_trailing_spaces(line.removesuffix(b"\r").partition(b"\0")[0])
        if len(pattern) <= _MAX_PATTERN_BYTES:
            rules.append(_Rule(pattern))
    return rules[::-1]


def _without_trailing_spaces(line: bytes) -> bytes:
    stripped = line.rstrip(b" ")
    backslashes = len(stripped) - len(stripped.rstrip(b"\\"))
    return line[: len(stripped) + 1] if backslashes % 2 and len(stripped) < len(line) else stripped


def check_size(sizes: Iterable[int]) -> None:
    """Check the sizes in bytes of the ``.gitignore`` files of a state, before they are read.

    Raises:
        PatchError: they are too large in all.
    """
    if (total := sum(sizes)) > MAX_BYTES:
        raise PatchError(
            f"the .gitignore files of the parent have {total} bytes in all, more than {MAX_BYTES}"
        )


class IgnoreRules:
    """The ``.gitignore`` files of one state."""

    def __init__(self, files: Mapping[bytes, bytes], max_steps: int = MAX_STEPS) -> None:
        """Parse the files.

        Args:
            files: content by directory; the top directory is ``b""``.
            max_steps: bound of the work of all comparisons.

        Raises:
            PatchError: the files are too large.
        """
        check_size(map(len, files.values()))
        self._rules = {directory: _parse_rules(content) for directory, content in files.items()}
        self._directories = {b"": False}  # whether they are ignored
        self._left = max_steps

    def ignored(self, paths: Iterable[bytes]) -> set[bytes]:
        """Return those of the paths that the files ignore; no path is a directory.

        Raises:
            PatchError: the files have too many rules for so many paths.
        """
        return {path for path in paths if self._is_ignored(path)}

    def _is_ignored(self, path: bytes) -> bool:
        above = b""
        for end in (at for at, byte in enumerate(path) if byte == ord("/")):
            directory = path[:end]
            if directory not in self._directories:
                ignored = self._directories[above] or self._decide(directory, is_directory=True)
                self._directories[directory] = ignored
            above = directory
        return self._directories[above] or self._decide(path, is_directory=False)

    def _decide(self, path: bytes, *, is_directory: bool) -> bool:
        """Return whether a path is ignored whose directories are not."""
        base, _, name = path.rpartition(b"/")
        while True:
            rest = path[len(base) + 1 :] if base else path
            for rule in self._rules.get(base, ()):
                self._left -= rule.cost * len(rest)
                if self._left < 0:
                    raise PatchError(
                        "the .gitignore files of the parent have too many rules for so many new "
                        "files"
                    )
                if rule.matches(rest, name, is_directory=is_directory):
                    return not rule.negated
            if not base:
                return False
            base = base.rpartition(b"/")[0]
