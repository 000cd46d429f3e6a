"""Read a ``.env`` file: lines of ``NAME=value``."""

from __future__ import annotations

import re

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)\"""")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def parse_dotenv(text: str) -> dict[str, str]:
    """Return the variables that a text sets; other lines are skipped, and the last value of a name wins.

    A value may be in single or double quotes; in double quotes a backslash escapes the next character. A value without
    quotes ends at `` #``. Variable references in values are not expanded.
    """
    found = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None:
            found[match[1]] = _value(match[2])
    return found


def _value(text: str) -> str:
    quoted = _QUOTED.match(text)
    if quoted is None:
        return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    if quoted[1] is not None:
        return quoted[1]
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), quoted[2])
