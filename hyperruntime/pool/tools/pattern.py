"""Translate the regular expressions that models write to those that every grep supports; no I/O.

Source: POSIX.1-2017 XBD 9.4 "Extended Regular Expressions" and 9.3.5 "RE Bracket Expression"; the
GNU grep manual, "The Backslash Character and Special Expressions".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hyperruntime.pool.tools.tool import ToolProblemError

_SPECIAL = frozenset(".*+?()[]{}|^$\\")
_KEPT = frozenset("wWsSbB123456789")
_CLASSES = {"d": "[0-9]", "D": "[^0-9]", "A": "^", "Z": "$"}
_IN_BRACKETS = {"d": "0-9", "w": "[:alnum:]_", "s": "[:space:]"}
_CHARACTERS = {"t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_NUMBERED = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")
_NAMED = re.compile(
    r"\[:(?:alnum|alpha|blank|cntrl|digit|graph|lower|print|punct|space|upper|xdigit):\]"
)
_QUANTIFIER = re.compile(r"([*+?]|\{(?:[0-9]+(?:,[0-9]*)?|,[0-9]+)\})([+?]?)")
_END = {"]": "[.].]", "-": "[.-.]", "[": "[.[.]"}  # of a range


def to_posix(pattern: str) -> str:
    r"""Return the same pattern as a POSIX extended regular expression.

    ``\d``, ``\t``, ``(?:...)``, ``*?`` and escapes in brackets are translated.

    Raises:
        ToolProblemError: POSIX has no equivalent (lookahead, lookbehind, named groups, several
            lines), or a bracket is not closed.
    """
    out: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at, text = _escape(pattern, at + 1)
        elif char == "[":
            at, text = _bracket(pattern, at)
        elif pattern.startswith("(?", at):
            if not pattern.startswith("(?:", at):
                raise _problem(
                    f"{pattern[at : at + 4]!r} is not supported by grep; write groups as '(...)'"
                )
            at, text = at + 3, "("
        elif found := _QUANTIFIER.match(pattern, at):
            if found[2] == "+":
                raise _problem("'+' after a quantifier is not supported by grep")
            # a lazy quantifier matches the same lines as a greedy one
            at = found.end()
            text = found[1]
        else:
            at, text = at + 1, char
        out.append(text)
    return "".join(out)


def _escape(pattern: str, at: int) -> tuple[int, str]:
    """Return the index after an escape, and its POSIX form; ``at`` is after the backslash."""
    name = pattern[at : at + 1]
    if name in _CLASSES or name in _KEPT:
        return at + 1, _CLASSES.get(name, f"\\{name}")
    at, char = _character(pattern, at, _CHARACTERS)
    return at, f"\\{char}" if char in _SPECIAL else char


def _character(pattern: str, at: int, known: Mapping[str, str]) -> tuple[int, str]:
    """Return the index after an escaped character, and the character; ``at`` is after the
    backslash.
    """
    name = pattern[at : at + 1]
    if not name:
        raise _problem("it ends with a backslash")
    if found := _NUMBERED.match(pattern, at):
        char = chr(int(found[1] or found[2], 16))
        at = found.end()
    else:
        char = known.get(name, name)
        at += 1
    if char == "\n" or (name in ("n", "r") and name not in known):
        raise _problem("a search looks at one line at a time, so '\\n' matches nothing")
    if (char == name and name.isascii() and name.isalnum()) or char == "\0":
        raise _problem(f"'\\{name}' is not supported by grep")
    return at, char


def _bracket(pattern: str, at: int) -> tuple[int, str]:
    """Return the index after a bracket expression, and its POSIX form; a backslash is an ordinary
    character there.
    """
    head = "[^" if pattern.startswith("[^", at) else "["
    at = start = at + len(head)
    parts: list[str] = []
    singles = set()  # characters whose meaning depends on their position
    while at == start or not pattern.startswith("]", at):
        at, part, char = _element(pattern, at)
        if char and pattern.startswith("-", at) and pattern[at + 1 : at + 2] not in ("", "]"):
            at, _, end = _element(pattern, at + 1)
            if not end:
                raise _problem("a range in brackets must end with a character")
            parts.append(f"{_END.get(char, char)}-{_END.get(end, end)}")
        elif char and char in "]^-[":
            singles.add(char)
        else:
            parts.append(part)
    return at + 1, _brackets(head, sorted(parts, key=lambda part: part.startswith("^")), singles)


def _element(pattern: str, at: int) -> tuple[int, str, str]:
    """Return the index after a bracket element, its POSIX form, and its character ("" if it is a
    class).
    """
    char = pattern[at : at + 1]
    after = pattern[at + 1 : at + 2]
    if not char:
        raise _problem("a '[' has no ']'")
    if found := _NAMED.match(pattern, at):
        return found.end(), found[0], ""
    if char != "\\":
        return at + 1, char, char
    if after in _IN_BRACKETS:
        return at + 2, _IN_BRACKETS[after], ""
    if after and after in "DWSn":
        raise _problem(f"'\\{after}' is not allowed in brackets")
    at, char = _character(pattern, at + 1, {**_CHARACTERS, "r": "\r", "b": "\b"})
    return at, char, char


def _brackets(head: str, parts: list[str], singles: set[str]) -> str:
    """Return a bracket expression: ``]`` first, ``[`` and ``-`` last, ``^`` not first."""
    if not parts and head == "[" and singles <= {"^", "-"} and "^" in singles:
        return "[-^]" if "-" in singles else "\\^"
    body = (
        "]" * ("]" in singles) + "".join(parts) + "".join(char for char in "[^-" if char in singles)
    )
    return f"{head}[.^.]{body[1:]}]" if head == "[" and body.startswith("^") else f"{head}{body}]"


def _problem(why: str) -> ToolProblemError:
    return ToolProblemError(f"invalid pattern: {why}")
