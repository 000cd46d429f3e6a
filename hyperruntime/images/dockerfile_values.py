"""Read the values of ``ARG``, ``ENV`` and ``FROM`` in Dockerfiles, with their quotes and variables.

Source: the Dockerfile reference of docs.docker.com, "Environment replacement", "ENV" and "ARG".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NoReturn

from hyperruntime.errors import SpecError
from hyperruntime.images.dockerfile import split_words
from hyperruntime.images.environment_script import Reference, Value, merged

# operator of a reference to an argument whose value, not empty, is put there when the image is
# built
GIVEN = "given"
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SPECIAL = re.compile(r"[0-9@*#?$!-]")
_OPERATOR = re.compile(r":?[-+]")
_OF_DOUBLE_QUOTES = '"$\\'
_SAFE_WORD = re.compile(r"[\w./:@%+,= -]*")


def assignments(rest: str, *, old_form: bool = False) -> Iterator[tuple[str, str | None]]:
    """Yield the names and values of ``ARG`` or ``ENV`` as they are written; a name without ``=``
    has None.

    Args:
        rest: the text after the instruction's name.
        old_form: whether ``NAME TEXT`` sets one variable to the whole text, as in ``ENV``.

    Raises:
        SpecError: a quote is not closed.
    """
    name, *others = re.split(r"[ \t]+", rest, maxsplit=1)
    text = others[0] if others else ""
    if old_form and others and "=" not in name:
        yield name, text.strip()
        return
    words = split_words(rest)
    if rest.strip() and not words:
        raise SpecError("Containerfile", rest, "a quote is not closed")
    for word in words:
        name, equals, text = word.partition("=")
        yield name.strip("\"'"), text if equals else None


def parse_value(text: str, lookup: Callable[[str], Value | None]) -> Value:
    """Return a value without its quotes and escapes, with its variables replaced.

    Args:
        text: as it is written.
        lookup: returns the value of a variable; None if it is not set. A reference stays one.

    Raises:
        SpecError: a quote or brace is not closed, or the form of a variable is not supported.
    """
    reader = _Reader(text, lookup)
    parts = reader.read("")
    return merged(parts)


class _Reader:
    """Reads a value from start to end."""

    def __init__(self, text: str, lookup: Callable[[str], Value | None]) -> None:
        self._text = text
        self._at = 0
        self._lookup = lookup

    def read(self, end: str) -> list[str | Reference]:
        """Read up to a character outside of quotes, and past it; "" is the end of the text."""
        parts: list[str | Reference] = []
        while (letter := self._next()) != end:
            if not letter:
                self._refuse(f"{end} is missing")
            elif letter == "'":
                close = self._text.find("'", self._at)
                if close < 0:
                    self._refuse("a quote is not closed")
                parts.append(self._text[self._at : close])
                self._at = close + 1
            elif letter == '"':
                parts += self._double_quoted()
            elif letter == "\\":
                parts.append(self._next())
            else:
                parts += self._variable() if letter == "$" else [letter]
        return parts

    def _double_quoted(self) -> list[str | Reference]:
        parts: list[str | Reference] = []
        while (letter := self._next()) != '"':
            if not letter:
                self._refuse("a quote is not closed")
            elif letter == "\\":
                escaped = self._next()
                parts.append(escaped if escaped in _OF_DOUBLE_QUOTES else f"\\{escaped}")
            else:
                parts += self._variable() if letter == "$" else [letter]
        return parts

    def _variable(self) -> list[str | Reference]:
        in_braces = self._take("{")
        found = _NAME.match(self._text, self._at) or _SPECIAL.match(self._text, self._at)
        if found is None:
            if in_braces:
                self._refuse("the form of a variable is not supported")
            return ["$"]
        self._at = found.end()
        # a builder has no arguments
        value = self._lookup(found[0]) if _NAME.fullmatch(found[0]) else None
        if not in_braces or self._take("}"):
            return list(value or ())
        operator = _OPERATOR.match(self._text, self._at)
        if operator is None:
            self._refuse("the form of a variable is not supported")
        self._at = operator.end()
        return self._chosen(found[0], value, operator[0], merged(self.read("}")))

    def _chosen(
        self, name: str, value: Value | None, operator: str, word: Value
    ) -> list[str | Reference]:
        is_set = value is not None and (bool(value) or ":" not in operator)
        # may be empty
        if value and all(isinstance(part, Reference) and part.operator != GIVEN for part in value):
            plain = "".join(part for part in word if isinstance(part, str))
            if value != (Reference(name),) or len(word) > 1 or not _SAFE_WORD.fullmatch(plain):
                self._refuse(f"the value of {name} is not known")
            return [Reference(name, plain, operator)]
        if "+" in operator:
            return list(word) if is_set else []
        return list(value or ()) if is_set else list(word)

    def _next(self) -> str:
        letter = self._text[self._at : self._at + 1]
        self._at += len(letter)
        return letter

    def _take(self, letter: str) -> bool:
        is_next = self._text[self._at : self._at + 1] == letter
        self._at += is_next
        return is_next

    def _refuse(self, why: str) -> NoReturn:
        raise SpecError("Containerfile", self._text, why)
