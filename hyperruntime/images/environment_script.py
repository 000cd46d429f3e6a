"""Shell scripts that only set variables, as values: what ``%environment`` of a definition file mostly is."""

from __future__ import annotations

import re
from typing import NoReturn

import attrs

from hyperruntime.errors import SpecError

# Known when a container runs, not when its image is made.
_OF_THE_RUN = ("HOME", "USER", "LOGNAME", "PWD", "OLDPWD", "SHELL", "HOSTNAME", "UID", "TERM", "TMPDIR")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_REFERENCE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::-([\w./:@%+,=-]*))?\})", re.ASCII)
_PLAIN = re.compile(r"[^\s\"'\\$`;&|<>()#*?\[\]~{}!]+|(?<!^)[#~{}!\[\]]")
_ESCAPED_IN_QUOTES = '"\\$`'


@attrs.frozen
class Reference:
    """The value that a variable has before the script.

    Attributes:
        name: of the variable.
        default: what it is where the variable is not set or empty.
    """

    name: str
    default: str = ""


Part = str | Reference
Value = tuple[Part, ...]


def parse_assignments(script: str) -> dict[str, Value]:
    """Return the variables that a script exports, in the order in which they are set.

    Raises:
        SpecError: it does more than set variables to texts and to values of others.
    """
    scanner = _Scanner(script)
    values: dict[str, Value] = {}
    exported: dict[str, None] = {}
    always = ("PATH",)  # in every environment already, so that a plain assignment is seen
    while scanner.next_command():
        exporting = scanner.take("export")
        while (name := scanner.name()) is not None:
            if scanner.value_follows():
                values[name] = _resolve(scanner.value(), values)
            elif not exporting:
                scanner.refuse()
            if exporting or name in always:
                exported[name] = None
        scanner.end_command()
    return {name: values[name] for name in exported if name in values}


def _resolve(value: Value, known: dict[str, Value]) -> Value:
    """Return a value in which variables that the script itself has set are no references any more."""
    parts: list[Part] = []
    for part in value:
        if not isinstance(part, Reference) or part.name not in known:
            parts.append(part)
        elif not part.default or any(isinstance(p, str) or p.default for p in known[part.name]):
            parts += known[part.name]
        elif known[part.name]:
            raise SpecError("%environment", f"${{{part.name}:-{part.default}}}", "no default of what may be empty")
        else:
            parts.append(part.default)
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    return tuple(merged)


class _Scanner:
    """Reads a script from its start."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text.replace("\\\n", ""), 0

    def next_command(self) -> bool:
        """Go to the next command; tell whether there is one."""
        while match := re.compile(r"[\s;]+|#[^\n]*").match(self._text, self._at):
            self._at = match.end()
        return self._at < len(self._text)

    def take(self, word: str) -> bool:
        """Read a word and the blanks behind it, if it comes next."""
        return self._match(rf"{word}[ \t]+") is not None

    def name(self) -> str | None:
        """Return a variable's name if one comes next."""
        self._match(r"[ \t]*")
        found = _NAME.match(self._text, self._at)
        if found is None or not re.match(r"=|[ \t]*(?:[;\n#]|$)|[ \t]+[A-Za-z_]", self._text[found.end() :]):
            return None
        self._at = found.end()
        return found[0]

    def value_follows(self) -> bool:
        """Read ``=`` if it comes next."""
        return self._match("=") is not None

    def value(self) -> Value:
        """Read the rest of a word."""
        parts: list[Part] = []
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in " \t\n;":
            if text := self._match(r"'([^']*)'"):
                parts.append(text[1])
            elif self._match('"'):
                parts += self._double_quoted()
            elif text := self._match(r"\\(.)"):
                parts.append(text[1])
            elif self._text[self._at] == "$":
                parts.append(self._reference())
            elif plain := _PLAIN.match(self._text, self._at):
                if self._at == start and plain[0][0] in "#~{}!":
                    self.refuse()
                self._at = plain.end()
                parts.append(plain[0])
            else:
                self.refuse()
        return tuple(parts)

    def end_command(self) -> None:
        """Check that nothing but the command's end comes next."""
        if not re.compile(r"[ \t]*(?:$|[;\n]|#)").match(self._text, self._at):
            self.refuse()

    def _double_quoted(self) -> list[Part]:
        parts: list[Part] = []
        while not self._match('"'):
            if self._at >= len(self._text):
                self.refuse()
            if self._text[self._at] == "$":
                parts.append(self._reference())
            elif escaped := self._match(r"\\(.)"):
                parts.append(escaped[1] if escaped[1] in _ESCAPED_IN_QUOTES else escaped[0])
            elif text := self._match(r'[^"$\\`]+'):
                parts.append(text[0])
            else:
                self.refuse()
        return parts

    def _reference(self) -> Reference:
        found = _REFERENCE.match(self._text, self._at)
        if found is None or (found[1] or found[2]) in _OF_THE_RUN:
            self.refuse()
        self._at = found.end()
        return Reference(found[1] or found[2], found[3] or "")

    def _match(self, pattern: str) -> re.Match[str] | None:
        found = re.compile(pattern).match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def refuse(self) -> NoReturn:
        """Say that the script does more than it may.

        Raises:
            SpecError: always.
        """
        start = self._text.rfind("\n", 0, self._at) + 1
        line = self._text[start:].partition("\n")[0].strip()
        raise SpecError(
            "%environment", line, "`export NAME=value`, with quotes and $OTHER at most, where no Apptainer builds it"
        )
