"""Parse shell scripts that only set variables, such as the ``%environment`` of most definition
files.
"""

from __future__ import annotations

import re
from typing import NoReturn

import attrs

from hyperruntime.errors import SpecError

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
_GAP = re.compile(r"(?:[\s;]|#[^\n]*)*")
_NAME = re.compile(r"(?a:[A-Za-z_]\w*)(?==|[ \t]*(?:[;\n#]|$)|[ \t]+[A-Za-z_])")
_END = re.compile(r"$|(?=[;\n#])")
_REFERENCE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::-([\w./:@%+,=-]*))?\})", re.ASCII)
_PLAIN = re.compile(r"[^\s\"'\\$`;&|<>()#*?\[\]~{}!]+|(?<!^)[#~{}!\[\]]")
_ESCAPED_IN_QUOTES = '"\\$`'


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


def parse_assignments(script: str) -> dict[str, Value]:
    """Return the variables that a script exports, in the order of their export.

    Raises:
        SpecError: the script does more than set variables to text and to values of other variables.
    """
    scanner = _Scanner(script)
    values: dict[str, Value] = {}
    exported: dict[str, None] = {}
    while scanner.take(_GAP) and not scanner.is_at_end():
        exporting = scanner.take(r"export[ \t]+")
        while name := scanner.take(_NAME):
            if scanner.take("="):
                values[name[0]] = _resolve(scanner.value(), values)
            elif not exporting:
                scanner.refuse()
            # exported in every environment, so a plain assignment has an effect
            if exporting or name[0] == "PATH":
                exported[name[0]] = None
            scanner.take(r"[ \t]*")
        if not scanner.take(_END):
            scanner.refuse()
    return {name: values[name] for name in exported if name in values}


def _resolve(value: Value, known: dict[str, Value]) -> Value:
    """Return a value in which references to variables set by the script are replaced by their
    values.
    """
    parts: list[Part] = []
    for part in value:
        if not isinstance(part, Reference) or part.name not in known:
            parts.append(part)
        elif not part.default or any(isinstance(p, str) or p.default for p in known[part.name]):
            parts += known[part.name]
        elif known[part.name]:
            raise SpecError(
                "%environment",
                f"${{{part.name}:-{part.default}}}",
                "it may be empty; remove the default",
            )
        else:
            parts.append(part.default)
    return merged(parts)


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


class _Scanner:
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

    def value(self) -> Value:
        """Read the rest of a word.

        Raises:
            SpecError: the word uses unsupported syntax.
        """
        parts: list[Part] = []
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in " \t\n;":
            if text := self.take(r"'([^']*)'"):
                parts.append(text[1])
            elif self.take('"'):
                parts += self._double_quoted()
            elif text := self.take(r"\\(.)"):
                parts.append(text[1])
            elif self._text[self._at] == "$":
                parts.append(self._reference())
            elif plain := self.take(_PLAIN):
                if plain.start() == start and plain[0][0] in "#~{}!":
                    self.refuse()
                parts.append(plain[0])
            else:
                self.refuse()
        return tuple(parts)

    def _double_quoted(self) -> list[Part]:
        parts: list[Part] = []
        while not self.take('"'):
            if self._at >= len(self._text):
                self.refuse()
            if self._text[self._at] == "$":
                parts.append(self._reference())
            elif escaped := self.take(r"\\(.)"):
                parts.append(escaped[1] if escaped[1] in _ESCAPED_IN_QUOTES else escaped[0])
            elif text := self.take(r'[^"$\\`]+'):
                parts.append(text[0])
            else:
                self.refuse()
        return parts

    def _reference(self) -> Reference:
        found = self.take(_REFERENCE)
        if found is None or (found[1] or found[2]) in OF_THE_RUN:
            self.refuse()
        return Reference(found[1] or found[2], found[3] or "")

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
