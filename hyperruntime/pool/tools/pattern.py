"""From the regular expressions that models write to those that every grep knows. Pure.

Source: POSIX.1-2017 XBD 9.4 "Extended Regular Expressions" and 9.3.5 "RE Bracket Expression"; the GNU grep manual,
"The Backslash Character and Special Expressions".
"""

from __future__ import annotations

from hyperruntime.pool.tools.tool import ToolProblemError

_CLASSES = {"d": "[0-9]", "D": "[^0-9]", "t": "\t"}
_KEPT = frozenset("wWsSbB.*+?()[]{}|^$\\123456789")
_IN_BRACKETS = {"d": "0-9", "w": "[:alnum:]_", "s": "[:space:]", "t": "\t"}
_NAMED = (":", "=", ".")
_END = {"]": "[.].]", "-": "[.-.]"}  # of a range


def to_posix(pattern: str) -> str:
    r"""Return the same pattern as a POSIX extended regular expression.

    ``\d``, ``\t``, ``(?:...)`` and escapes in brackets become what they mean; what POSIX cannot say is refused.

    Raises:
        ToolProblemError: it looks ahead or behind, names a group, spans lines, or has an open bracket.
    """
    out: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            out.append(_escape(pattern[at + 1 : at + 2]))
            at += 2
        elif char == "[":
            at, text = _bracket(pattern, at)
            out.append(text)
        elif pattern.startswith("(?", at):
            if not pattern.startswith("(?:", at):
                raise _problem(f"{pattern[at : at + 4]!r} is not known to grep; groups are '(...)'")
            out.append("(")
            at += 3
        else:
            out.append(char)
            at += 1
    return "".join(out)


def _escape(char: str) -> str:
    if char in ("n", "r"):
        raise _problem("a search looks at one line at a time, so '\\n' matches nothing")
    if not char:
        raise _problem("it ends with a backslash")
    return _CLASSES.get(char) or (f"\\{char}" if char in _KEPT else char)


def _bracket(pattern: str, at: int) -> tuple[int, str]:
    """Return where a bracket expression ends, and what it is in POSIX, where a backslash means itself."""
    head = "[^" if pattern.startswith("[^", at) else "["
    at = start = at + len(head)
    parts: list[str] = []
    singles = set()  # of the characters whose meaning depends on where they stand
    while at == start or not pattern.startswith("]", at):
        at, part, char = _element(pattern, at)
        if char and pattern.startswith("-", at) and pattern[at + 1 : at + 2] not in ("", "]"):
            at, _, end = _element(pattern, at + 1)
            if not end:
                raise _problem("a range in brackets ends with no character")
            parts.append(f"{_END.get(char, char)}-{_END.get(end, end)}")
        elif char and char in "]^-":
            singles.add(char)
        else:
            parts.append(part)
    return at + 1, _brackets(head, sorted(parts, key=lambda part: part.startswith("^")), singles)


def _element(pattern: str, at: int) -> tuple[int, str, str]:
    """Return where an element of a bracket expression ends, what it is in POSIX, and which character, if it is one."""
    char, after = pattern[at : at + 1], pattern[at + 1 : at + 2]
    if not char:
        raise _problem("a '[' has no ']'")
    if char == "[" and after in _NAMED and after and (end := pattern.find(f"{after}]", at + 2)) != -1:
        return end + 2, pattern[at : end + 2], ""
    if char != "\\" or not after:
        return at + 1, char, char
    if after in "DWSn":
        raise _problem(f"'\\{after}' cannot stand in brackets")
    part = _IN_BRACKETS.get(after, after)
    return at + 2, part, part if len(part) == 1 else ""


def _brackets(head: str, parts: list[str], singles: set[str]) -> str:
    """Return a bracket expression: ``]`` first, ``-`` last, ``^`` not first."""
    if not parts and head == "[" and "^" in singles and "]" not in singles:
        return "[-^]" if "-" in singles else "\\^"
    body = "]" * ("]" in singles) + "".join(parts) + "^" * ("^" in singles) + "-" * ("-" in singles)
    return f"{head}[.^.]{body[1:]}]" if head == "[" and body.startswith("^") else f"{head}{body}]"


def _problem(why: str) -> ToolProblemError:
    return ToolProblemError(f"the pattern is not understood: {why}")
