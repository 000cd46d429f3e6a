"""Expand variables, quotes and escapes in the words of Dockerfiles.

Source: the Dockerfile reference of docs.docker.com, "Environment replacement"; where it is silent,
the behaviour of BuildKit 0.29.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

from hyperruntime.errors import SpecError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]", re.ASCII)
# In a text, it stands for the $ of a variable whose value is not known; no Dockerfile has it.
UNKNOWN = "\0"
_KEPT = re.compile(r":?[-+][\w./:@%+,= -]*\}", re.ASCII)

MODE_ALLOWED = "--chmod must be a number such as 755, or a symbolic mode such as u=rwX,go=rX"
_OCTAL = re.compile(r"[0-7]{3,4}")
_SYMBOLIC = re.compile(
    r"(?:[ugoa]*(?:[-+=](?:[rwxXst]*|[ugo]))+)(?:,[ugoa]*(?:[-+=](?:[rwxXst]*|[ugo]))+)*"
)


def expand(text: str, values: Mapping[str, str], *, quotes: bool = True) -> str:
    """Return a text without its quotes and escapes, with its variables replaced.

    Args:
        text: as it is written.
        values: of the variables, also those of :func:`unknown`; others are empty.
        quotes: whether quotes are removed; they are text in a here-document.

    Raises:
        SpecError: a quote or a brace is not closed, a form of a variable is unknown, or one that
            must be set (``${NAME:?}``) is not.
    """
    try:
        return "".join(map(str, _Reader(text, values, quotes=quotes).read("")))
    except RecursionError:
        raise SpecError("Containerfile", text, "its variables are nested too deeply") from None


def expand_known(text: str, values: Mapping[str, str], *, quotes: bool = True) -> str:
    """Return a text as :func:`expand` does; variables without a value stay, with UNKNOWN as $."""
    names = re.findall(r"[A-Za-z_]\w*", text, re.ASCII)
    return expand(text, {**{name: unknown(name) for name in names}, **values}, quotes=quotes)


def unknown(name: str) -> str:
    """Return the value of a variable whose value is not known: a reference to it."""
    return f"{UNKNOWN}{{{name}}}"


def pattern(glob: str) -> str:
    """Return the regular expression of a pattern of Go's ``path.Match``.

    Raises:
        SpecError: a class or an escape has no end.
    """
    found = ""
    at = 0
    while at < len(glob):
        letter = glob[at]
        at += 1
        if letter == "*":
            found += "[^/]*"
        elif letter == "?":
            found += "[^/]"
        elif letter == "\\" and at < len(glob):
            found += re.escape(glob[at])
            at += 1
        elif letter == "[":
            one = re.compile(r"(\^?)((?:\\.|[^\\\]])+)\]").match(glob, at)
            if one is None:
                raise SpecError("Containerfile", glob, "a pattern must close its [")
            letters = re.sub(r"\\(.)|([\[&~|^])", lambda m: re.escape(m[1] or m[2]), one[2])
            found += f"(?!/)[{one[1]}{letters}]"
            at = one.end()
        else:
            found += re.escape(letter)
    return found


def is_mode(text: str) -> bool:
    """Return whether a text is a mode: a number such as 755, or a symbolic mode such as
    ``u=rwX,go=rX``.
    """
    return bool(_OCTAL.fullmatch(text) or _SYMBOLIC.fullmatch(text))


class _Reader:
    """Reads a text from start to end."""

    def __init__(self, text: str, values: Mapping[str, str], *, quotes: bool) -> None:
        self._text = text
        self._at = 0
        self._values = values
        self._quotes = quotes

    def read(self, ends: str, *, raw: bool = False) -> list[str]:
        """Read up to one of some characters outside of quotes, and past it.

        Args:
            ends: the characters; "" stands for the end of the text.
            raw: whether escapes stay, as in patterns.
        """
        parts: list[str] = []
        while (letter := self._next()) and letter not in ends:
            if letter == "'" and self._quotes:
                close = self._text.find("'", self._at)
                if close < 0:
                    self._refuse("a quote is not closed")
                parts.append(self._text[self._at : close])
                self._at = close + 1
            elif letter == '"' and self._quotes:
                parts += self._double_quoted()
            elif letter == "\\":
                parts.append("\\" * raw + self._next())
            else:
                parts.append(self._variable() if letter == "$" else letter)
        if ends and not letter:
            self._refuse(f"{ends[-1]} is missing")
        return parts

    def _double_quoted(self) -> list[str]:
        parts: list[str] = []
        while (letter := self._next()) != '"':
            if not letter:
                self._refuse("a quote is not closed")
            elif letter == "\\":
                escaped = self._next()
                parts.append(escaped if escaped in '"$\\' else f"\\{escaped}")
            else:
                parts.append(self._variable() if letter == "$" else letter)
        return parts

    def _variable(self) -> str:
        braces = self._text.startswith("{", self._at)
        found = _NAME.match(self._text, self._at + braces)
        if found is None:
            if braces:
                self._refuse("the form of a variable is unknown")
            return "$"
        self._at = found.end()
        value = self._values.get(found[0])
        if not braces or self._text.startswith("}", self._at):
            self._at += braces
            return value or ""
        if value and UNKNOWN in value:
            return self._reference(found[0], value)
        return self._operated(found[0], value)

    def _operated(self, name: str, value: str | None) -> str:
        operator = self._next()
        is_set = value is not None
        if operator == ":":
            is_set = bool(value)
            operator = self._next()
            if operator not in ("-", "+", "?"):
                self._refuse("the form of a variable is unknown")
        if operator in ("-", "+", "?"):
            word = "".join(self.read("}"))
            if operator == "+":
                return word if is_set else ""
            if operator == "?" and not is_set:
                self._refuse(f"${name} must be set: {word}")
            return value or "" if is_set else word
        return self._cut(operator, value or "")

    def _reference(self, name: str, value: str) -> str:
        """Return a reference to an unknown variable with its operator and a plain word."""
        kept = _KEPT.match(self._text, self._at)
        if value != unknown(name) or kept is None:
            self._refuse(f"the value of ${name} is not known: it may be empty")
        self._at = kept.end()
        return f"{UNKNOWN}{{{name}{kept[0]}"

    def _cut(self, operator: str, value: str) -> str:
        """Return a value without a prefix or a suffix, or with a part replaced."""
        if operator not in ("#", "%", "/"):
            self._refuse("the form of a variable is unknown")
        twice = self._text.startswith(operator, self._at)
        self._at += twice
        glob = "".join(self.read("/" if operator == "/" else "}", raw=True))
        made = pattern(glob).replace("[^/]", r"[\s\S]")
        if operator == "/":
            new = "".join(self.read("}"))
            return re.sub(made, lambda _: new, value, count=0 if twice else 1)
        ends = range(len(value) + 1)
        if operator == "#":
            fits = [n for n in ends if re.fullmatch(made, value[:n])]
            return value[(fits[-1] if twice else fits[0]) :] if fits else value
        fits = [n for n in ends if re.fullmatch(made, value[n:])]
        return value[: (fits[0] if twice else fits[-1])] if fits else value

    def _next(self) -> str:
        letter = self._text[self._at : self._at + 1]
        self._at += len(letter)
        return letter

    def _refuse(self, why: str) -> NoReturn:
        raise SpecError("Containerfile", self._text, why)
