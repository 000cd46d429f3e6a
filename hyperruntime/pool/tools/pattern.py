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
    at += len(head)
    items: list[str] = []
    first, last = "", ""
    start = at
    while True:
        if at >= len(pattern):
            raise _problem("a '[' has no ']'")
        char, after = pattern[at], pattern[at + 1 : at + 2]
        if char == "]" and at > start:
            break
        if char == "[" and after in _NAMED and (end := pattern.find(f"{after}]", at + 2)) != -1:
            items.append(pattern[at : end + 2])
            at = end + 2
        elif char == "\\" and after:
            if after in "DWSn":
                raise _problem(f"'\\{after}' cannot stand in brackets")
            first, last = first or "]" * (after == "]"), last or "-" * (after == "-")
            items.append("" if after in "]-" else _IN_BRACKETS.get(after, after))
            at += 2
        else:
            first = first or "]" * (char == "]")
            items.append("" if char == "]" else char)
            at += 1
    body = first + "".join(items) + last
    if body.startswith("^") and head == "[":
        body = body[1:] + "^" if len(body) > 1 else "\\^"
    return at + 1, f"{head}{body}]" if body != "\\^" else body


def _problem(why: str) -> ToolProblemError:
    return ToolProblemError(f"the pattern is not understood: {why}")
