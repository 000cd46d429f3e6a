"""Read the values of variables in Dockerfiles, and in scripts that only set variables, such as the
``%environment`` of most definition files.

Source: the Dockerfile reference of docs.docker.com, "Environment replacement", "ENV" and "ARG".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.images.dockerfile import split_words

# Set when a container runs; unknown when its image is built.
OF_THE_RUN = (
    "HOME",
    "USER",
    "LOGNAME",
    "PWD",
    "OLDPWD",
    "SHELL",
    "HOSTNAME",
    "UID",
    "TERM",
    "TMPDIR",
)
# operator of a reference to an argument whose value, not empty, is put there when the image is
# built
GIVEN = "given"
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SPECIAL = re.compile(r"[0-9]+|[@*#?$!-]")
_OPERATOR = re.compile(r":?[-+]")
_SAFE_WORD = re.compile(r"[\w./:@%+,= -]*")
_GAP = re.compile(r"(?:[\s;]|#[^\n]*)*")
_ASSIGNED = re.compile(r"(?a:[A-Za-z_]\w*)(?==|[ \t]*(?:[;\n#]|$)|[ \t]+[A-Za-z_])")
_END = re.compile(r"$|(?=[;\n#])")
_REFERENCE = r"\$(?a:[A-Za-z_]\w*+|\{[A-Za-z_]\w*+(?::-[\w./:@%+,=-]*+)?\})"
# A word of a script: quoted text, escaped characters, references and plain characters.
_WORD = re.compile(
    rf"""(?![#~{{}}!])(?:'[^']*'|"(?:\\.|{_REFERENCE}|[^"$\\`])*+"|\\.|{_REFERENCE}|[^\s"'\\$`;&|<>()*?])*+"""
    r"(?=[ \t\n;]|\Z)"
)
_OF_DOUBLE_QUOTES = '"$\\'


@attrs.frozen
class Reference:
    """A reference to the value of a variable before the script.

    Attributes:
        name: name of the variable.
        default: the text after the operator.
        operator: of a shell; ``:-`` gives the default if the variable is unset or empty.
    """

    name: str
    default: str = ""
    operator: str = ":-"


Part = str | Reference
Value = tuple[Part, ...]


def merged(parts: list[str | Reference]) -> Value:
    """Return parts with their texts joined."""
    found: list[str | Reference] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        elif part != "":
            found.append(part)
    return tuple(found)


def quoted(value: Value, escaped: str) -> str:
    """Return a value in double quotes.

    Args:
        value: text and references.
        escaped: characters of the text that get a backslash.
    """
    text = ""
    for part in value:
        if not isinstance(part, Reference):
            text += re.sub(f"([{re.escape(escaped)}])", r"\\\1", part)
        else:
            word = f"{part.operator}{part.default}" if part.default or part.operator != ":-" else ""
            text += f"${{{part.name}{word}}}"
    return f'"{text}"'


def plain_value(text: str) -> Value:
    """Return a value without variables; an empty one has no parts."""
    return (text,) if text else ()


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


def parse_value(
    text: str,
    lookup: Callable[[str], Value | None],
    *,
    quotes: bool = True,
    escapes: str = _OF_DOUBLE_QUOTES,
) -> Value:
    """Return a value without its quotes and escapes, with its variables replaced.

    Args:
        text: as it is written.
        lookup: returns the value of a variable; None if it is not set. A reference stays one.
        quotes: whether quotes are removed; they are text in a here-document.
        escapes: characters before which a backslash counts in double quotes.

    Raises:
        SpecError: a quote or brace is not closed, or the form of a variable is not supported or
            nested too deeply.
    """
    try:
        return merged(_Reader(text, lookup, quotes, escapes).read(""))
    except RecursionError:
        raise SpecError("Containerfile", text, "its variables are nested too deeply") from None


class _Reader:
    """Reads a value from start to end."""

    def __init__(
        self, text: str, lookup: Callable[[str], Value | None], quotes: bool, escapes: str
    ) -> None:
        self._text = text
        self._at = 0
        self._lookup = lookup
        self._quotes = quotes
        self._escapes = escapes

    def read(self, end: str) -> list[str | Reference]:
        """Read up to a character outside of quotes, and past it; "" is the end of the text."""
        parts: list[str | Reference] = []
        while (letter := self._next()) != end:
            if not letter:
                self._refuse(f"{end} is missing")
            elif letter == "'" and self._quotes:
                close = self._text.find("'", self._at)
                if close < 0:
                    self._refuse("a quote is not closed")
                parts.append(self._text[self._at : close])
                self._at = close + 1
            elif letter == '"' and self._quotes:
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
                parts.append(escaped if escaped in self._escapes else f"\\{escaped}")
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
        if value and all(map(_may_be_empty, value)):
            plain = "".join(part for part in word if isinstance(part, str))
            if value != (Reference(name),) or len(word) > 1 or not _SAFE_WORD.fullmatch(plain):
                self._refuse(f"the value of ${name} is not known: it may be empty")
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


def _may_be_empty(part: Part) -> bool:
    return isinstance(part, Reference) and part.operator != GIVEN and not part.default


def parse_assignments(script: str) -> dict[str, Value]:
    """Return the variables that a script exports, in the order of their export.

    Raises:
        SpecError: the script does more than set variables to text and to values of other variables.
    """
    scanner = _Script(script)
    values: dict[str, Value] = {}
    exported: dict[str, None] = {}
    while scanner.take(_GAP) and not scanner.is_at_end():
        exporting = scanner.take(r"export[ \t]+")
        while name := scanner.take(_ASSIGNED):
            if scanner.take("="):
                values[name[0]] = scanner.value(values)
            elif not exporting:
                scanner.refuse()
            # exported in every environment, so a plain assignment has an effect
            if exporting or name[0] == "PATH":
                exported[name[0]] = None
            scanner.take(r"[ \t]*")
        if not scanner.take(_END):
            scanner.refuse()
    return {name: values[name] for name in exported if name in values}


class _Script:
    """Reads a script from start to end."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\\\n", "")
        self._at = 0

    def is_at_end(self) -> bool:
        """Return whether nothing is left."""
        return self._at == len(self._text)

    def take(self, pattern: str | re.Pattern[str]) -> re.Match[str] | None:
        """Read what matches a pattern, and return the match; return None if the pattern does not
        match here.
        """
        found = re.compile(pattern).match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def value(self, known: Mapping[str, Value]) -> Value:
        """Read the rest of a word.

        Args:
            known: the variables that the script has set, whose values replace references.

        Raises:
            SpecError: the word uses unsupported syntax.
        """

        def lookup(name: str) -> Value:
            if name in OF_THE_RUN:
                self.refuse()
            return known.get(name, (Reference(name),))

        word = self.take(_WORD) or self.refuse()
        try:
            return parse_value(word[0], lookup, escapes=f"{_OF_DOUBLE_QUOTES}`")
        except SpecError as error:
            raise SpecError("%environment", error.value, error.allowed) from None

    def refuse(self) -> NoReturn:
        """Raise the error for the current line.

        Raises:
            SpecError: always.
        """
        start = self._text.rfind("\n", 0, self._at) + 1
        line = self._text[start:].partition("\n")[0].strip()
        raise SpecError(
            "%environment",
            line,
            "without Apptainer, write `export NAME=value`; only quotes and $OTHER are supported",
        )
