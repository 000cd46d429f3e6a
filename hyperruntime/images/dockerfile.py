"""Read Dockerfiles as BuildKit reads them: instructions, continued lines and here-documents.

Source: the Dockerfile reference of docs.docker.com, "Here-Documents" and "Format"; where it is
silent (words such as ``3<<EOF`` or ``<<eo'f'``), the behaviour of BuildKit 0.29.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.json_values import parse_json

_CAN_HAVE = ("RUN", "COPY", "ADD", "ONBUILD")
_INSTRUCTION = re.compile(r"([A-Za-z]+)(?:[ \t]+(.*))?", re.DOTALL)
_CONTINUED = re.compile(r"(^|[^\\])\\[ \t]*$")
# a vertical tab is a blank for some builders, a letter for others
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_BLANKS = re.compile(r"[ \t]+")
_ESCAPE = re.compile(
    r"(?:[ \t]*#[ \t]*syntax[ \t]*=.*\n)?[ \t]*#[ \t]*escape[ \t]*=[ \t]*[^\\\s]", re.IGNORECASE
)
# One word: quoted text, escaped characters, `<<` with the blanks after it, other characters.
_PART = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)|(<<-?[ \t]*)|([^\s'"\\])""", re.DOTALL)
_WORD = re.compile(rf"(?:{_PART.pattern})+", re.DOTALL)
_HEREDOC = re.compile(r"\d*<<(-?)[ \t]*([^<]*)", re.DOTALL)
_SHOWN = 80
_SAME = {"src": "source", "dst": "target", "destination": "target", "readonly": "ro"}
_OF_ARITHMETIC = re.compile(r"\d+|.*[()].*")


@attrs.frozen(kw_only=True)
class Heredoc:
    """A here-document.

    Attributes:
        name: the delimiter, without quotes.
        content: the lines as written.
        expands: whether the delimiter was written without quotes, so that ``COPY`` expands
            variables.
        strips_tabs: whether it was written ``<<-``.
    """

    name: str
    content: str = ""
    expands: bool
    strips_tabs: bool

    @property
    def text(self) -> str:
        """The content, without leading tabs if they are stripped."""
        return (
            re.sub(r"^\t+", "", self.content, flags=re.MULTILINE)
            if self.strips_tabs
            else self.content
        )


@attrs.frozen(kw_only=True)
class Instruction:
    """An instruction, or a line between instructions.

    Attributes:
        line: number of its first line.
        source: its lines as written.
        name: the instruction in capitals; "" for a comment or a blank line.
        rest: the text after the name, with continued lines joined.
        heredocs: its here-documents, in order.
    """

    line: int
    source: str
    name: str = ""
    rest: str = ""
    heredocs: tuple[Heredoc, ...] = ()


def read_dockerfile(path: Path) -> str:
    """Return the text of a Dockerfile with unchanged line ends; bytes that are not UTF-8 become
    lone surrogates.
    """
    return path.read_bytes().decode(errors="surrogateescape")


def write_dockerfile(path: Path, text: str) -> None:
    """Write a text of :func:`read_dockerfile` with the same bytes."""
    path.write_bytes(text.encode(errors="surrogateescape"))


def parse_dockerfile(text: str) -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile, and the lines between them; their sources joined are
    the text.

    Raises:
        SpecError: a line is not an instruction, or a here-document has no end.
    """
    # Not `splitlines`: only a newline ends a line.
    lines = re.findall(r"[^\n]*\n|[^\n]+", text.removeprefix("\ufeff"))
    at = 0
    while at < len(lines):
        first = at
        at, joined = _joined(lines, at)
        if odd := next(
            (line for line in lines[first:at] if _CONTROL.search(_without_end(line))), None
        ):
            refuse(first + 1, _without_end(odd), "it must have no control characters but tabs")
        if not joined:
            yield Instruction(line=first + 1, source=lines[first])
            continue
        found = _INSTRUCTION.fullmatch(joined)
        if found is None:
            refuse(first + 1, joined, "the line must be an instruction")
        name = found[1].upper()
        rest = (found[2] or "").strip()
        at, heredocs = _bodies(lines, at, first + 1, joined, _heredocs(name, rest))
        if heredocs and _ESCAPE.match(text):
            refuse(
                first + 1, joined, "with here-documents, the escape character must be a backslash"
            )
        yield Instruction(
            line=first + 1, source="".join(lines[first:at]), name=name, rest=rest, heredocs=heredocs
        )


def _joined(lines: list[str], at: int) -> tuple[int, str]:
    """Return the index after an instruction and its text; or after a comment or a blank line, and
    "".
    """
    text, at = _without_end(lines[at]).lstrip(), at + 1
    if text.startswith("#"):
        return at, ""
    while _CONTINUED.search(text) and at < len(lines):
        text = _CONTINUED.sub(r"\1", text)
        while at < len(lines) and (not lines[at].strip() or lines[at].lstrip().startswith("#")):
            at += 1
        if at < len(lines):
            text, at = text + _without_end(lines[at]), at + 1
    return at, _CONTINUED.sub(r"\1", text).strip()


def split_flags(rest: str) -> tuple[list[str], str]:
    """Return the options at the start of an instruction's text, and the text after them."""
    flags = []
    while rest.startswith("--"):
        flag, *others = _BLANKS.split(rest, maxsplit=1)
        flags.append(flag)
        rest = others[0] if others else ""
    return flags, rest


def _without_end(line: str) -> str:
    """Return a line without its end; a builder removes no second carriage return and no blanks
    there.
    """
    return line.removesuffix("\n").removesuffix("\r")


def split_words(text: str) -> list[str]:
    """Return the words of a text as written, with their quotes; empty if a quote is not closed."""
    words = [found[0] for found in _WORD.finditer(text)]
    return [] if _WORD.sub("", text).strip() else words


def mount_fields(flag: str) -> dict[str, str]:
    """Return the fields of a ``--mount=`` by their names, of which each has one spelling."""
    pairs = (part.partition("=") for part in flag.partition("=")[2].split(","))
    return {_SAME.get(name.lower(), name.lower()): value for name, _, value in pairs}


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
    words = split_words(rest)
    if old_form and others and "=" not in next(iter(words), name):
        yield name, text.strip()
        return
    if rest.strip() and not words:
        raise SpecError("Containerfile", rest, "a quote is not closed")
    for word in words:
        name, equals, text = word.partition("=")
        yield name.strip("\"'"), text if equals else None


def trigger(rest: str) -> tuple[str, str]:
    """Return the instruction, in capitals, that the text after ``ONBUILD`` is, and the text after
    its name.
    """
    name, *others = _BLANKS.split(rest, maxsplit=1)
    return name.upper(), others[0].strip() if others else ""


def json_words(text: str) -> list[str]:
    """Return the words of a JSON list of strings; empty for any other text."""
    if not text.startswith("["):
        return []
    try:
        words = parse_json(text)
    except ValueError:
        return []
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else []


def parse_heredoc(word: str) -> Heredoc | None:
    """Return the here-document that a word such as ``<<-"EOF"`` begins, without its content; None
    for another word.
    """
    found = _HEREDOC.fullmatch(word)
    parts = list(_PART.finditer(found[2])) if found is not None else []
    name = "".join(_unquoted(part) for part in parts)
    if found is None or not name:
        return None
    quoted = any(part[1] is not None or part[2] is not None for part in parts)
    return Heredoc(name=name, expands=not quoted, strips_tabs=found[1] == "-")


def _unquoted(part: re.Match[str]) -> str:
    if part[2] is not None:
        return re.sub(r'\\(["$\\])', r"\1", part[2])
    return next(text for text in (part[1], part[3], part[4], part[5]) if text is not None)


def _heredocs(name: str, rest: str) -> list[Heredoc]:
    """Return the here-documents that an instruction begins; its JSON form begins none."""
    if name not in _CAN_HAVE or "<<" not in rest or json_words(rest):
        return []
    if name == "ONBUILD":
        name, rest = trigger(rest)
        return _heredocs(name, rest) if name != "ONBUILD" else []
    return [heredoc for word in split_words(rest) if (heredoc := parse_heredoc(word)) is not None]


def _bodies(
    lines: list[str], at: int, line: int, joined: str, heredocs: list[Heredoc]
) -> tuple[int, tuple[Heredoc, ...]]:
    """Return the index after the here-documents of an instruction, and the here-documents with
    their contents.
    """
    after = at
    found = []
    for heredoc in heredocs:
        start = after
        while after < len(lines) and not _is_end(lines[after], heredoc):
            after += 1
        if after == len(lines):
            if _OF_ARITHMETIC.fullmatch(heredoc.name):  # a shift, such as $((1 << 20))
                return at, ()
            refuse(
                line,
                joined,
                f"the here-document has no end; add a line that has only {heredoc.name}",
            )
        found.append(attrs.evolve(heredoc, content="".join(lines[start:after])))
        after += 1
    return after, tuple(found)


def _is_end(line: str, heredoc: Heredoc) -> bool:
    plain = line.rstrip("\r\n")
    return (plain.lstrip("\t") if heredoc.strips_tabs else plain) == heredoc.name


def refuse(line: int, text: str, allowed: str) -> NoReturn:
    """Raise the error for an instruction.

    Args:
        line: number of its first line.
        text: the instruction; the message has its start.
        allowed: what to write instead.

    Raises:
        SpecError: always.
    """
    shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
    raise SpecError("Containerfile", f"line {line}: {shown}", allowed)
