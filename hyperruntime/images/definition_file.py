"""Parse Apptainer definition files into values, without an engine and without access to files.

Source: the Apptainer user guide, "Definition Files"; where the guide is silent, the behaviour of Apptainer 1.4.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NoReturn

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.pickling import frozen_mapping

# These sections run on the build machine, as the user who builds.
HOST_SECTIONS = ("pre", "setup")
_KNOWN = (
    *HOST_SECTIONS,
    "arguments",
    "environment",
    "files",
    "help",
    "labels",
    "post",
    "runscript",
    "startscript",
    "test",
)
_HEADERS = ("bootstrap", "from", "registry", "namespace", "stage")
_STAGE = re.compile(r"^bootstrap:", re.IGNORECASE | re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_WORD = re.compile(r"""((?:[^\s"']|"[^"]*"|'[^']*')+)""")
_QUOTED = re.compile(r'"([^"]*)"')


@attrs.frozen(kw_only=True)
class Copied:
    """A line of ``%files``.

    Attributes:
        source: path on the host, relative to the directory of the build; may contain wildcards.
        target: path in the image; "" for the path of the source.
    """

    source: str
    target: str = ""


@attrs.frozen(kw_only=True)
class Script:
    """A section that is a script.

    Attributes:
        text: the script.
        arguments: the text after the section's name, such as ``-c /bin/bash``.
    """

    text: str = ""
    arguments: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the arguments, without a comment."""
        return tuple(self.arguments.split("#")[0].split())


@attrs.frozen(kw_only=True)
class Definition:
    """A definition file of one stage.

    Attributes:
        bootstrap: source of the base: ``docker``, ``localimage``, ``scratch``, ...
        base: the base as written, with registry and namespace as prefixes.
        files: files that are copied into the image before ``post`` runs.
        post: script that runs in the new image.
        environment: shell script that sets the environment of every command in a container.
        labels: labels of the image.
        runscript: default program of the image.
        test: script that runs at the end of the build; the build fails if it fails.
        host_sections: names of the non-empty sections that would run on the host.
    """

    bootstrap: str
    base: str
    files: tuple[Copied, ...] = ()
    post: Script = Script()
    environment: str = ""
    labels: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping)
    runscript: Script = Script()
    test: Script = Script()
    host_sections: tuple[str, ...] = ()


def parse_definition(text: str, build_args: Mapping[str, str] | None = None) -> Definition:
    """Return the parsed definition file, with build arguments filled in.

    Args:
        text: the definition file.
        build_args: values that override the defaults in ``%arguments``.

    Raises:
        SpecError: the file is invalid, has more than one stage, or has an unknown section.
    """
    filled = _fill(text, build_args or {})
    if len(_STAGE.findall(filled)) > 1:
        _refuse("a second Bootstrap line", "only one stage is supported; build the first stage as a separate image")
    header, sections = _split(filled)
    fields = _header(header)
    scripts: dict[str, Script] = defaultdict(Script)
    for name, arguments, body in sections:
        before = scripts[name]
        scripts[name] = Script(text=before.text + body, arguments=arguments or before.arguments)
    return Definition(
        bootstrap=fields.get("bootstrap", "").lower(),
        base="/".join(filter(None, (fields.get("registry"), fields.get("namespace"), fields.get("from")))),
        files=tuple(line for name, args, body in sections if name == "files" for line in _files(args, body)),
        post=scripts["post"],
        environment=scripts["environment"].text,
        labels=_pairs(scripts["labels"].text, " "),
        runscript=scripts["runscript"],
        test=scripts["test"],
        host_sections=tuple(name for name in HOST_SECTIONS if scripts[name].text.strip()),
    )


def with_base(text: str, bootstrap: str, base: str) -> str:
    """Return a definition file with another base.

    Args:
        text: the definition file.
        bootstrap: source of the base, such as ``localimage``.
        base: the new base.
    """
    header, percent, rest = _cut(text)
    kept = [line for line in header.splitlines() if line.partition(":")[0].strip().lower() not in _HEADERS]
    return "\n".join([f"Bootstrap: {bootstrap}", f"From: {base}", *kept, ""]) + percent + rest


def _fill(text: str, given: Mapping[str, str]) -> str:
    """Replace the placeholders by build arguments, or by their defaults from ``%arguments``."""
    if not _PLACEHOLDER.search(text):
        return text
    body = "".join(body for name, _, body in _split(text)[1] if name == "arguments")
    values = {**_pairs(body, "="), **given}

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            _refuse(match[0], "the build argument has no value; pass it, or give it a default in %arguments")
        return values[match[1]]

    return _PLACEHOLDER.sub(value, text)


def _cut(text: str) -> tuple[str, str, str]:
    """Return the header, the first ``%``, and the text after it."""
    found = re.search(r"^[ \t]*%", text, re.MULTILINE)
    return (text, "", "") if found is None else (text[: found.start()], "%", text[found.end() :])


def _split(text: str) -> tuple[str, list[tuple[str, str, str]]]:
    """Return the header and ``(name, arguments, body)`` of each section; a line that starts with ``%`` starts one."""
    header, percent, rest = _cut(text.replace("\r\n", "\n"))
    sections = []
    for part in re.split(r"^[ \t]*%", rest, flags=re.MULTILINE) if percent else ():
        line, _, body = part.partition("\n")
        name, _, arguments = line.strip().lstrip("%").partition(" ")
        if name.lower() not in _KNOWN:
            _refuse(f"%{name}", f"a line that starts with % must start a section: {', '.join(_KNOWN)}")
        sections.append((name.lower(), arguments.strip(), body))
    return header, sections


def _header(text: str) -> dict[str, str]:
    fields = {}
    for line in _lines(text):
        name, colon, value = line.split("#")[0].partition(":")
        if not colon:
            _refuse(line, "a header line must have the form `Name: value`")
        fields[name.strip().lower()] = value.strip()
    if not fields.get("bootstrap"):
        _refuse("no Bootstrap line", "add `Bootstrap: docker` or `Bootstrap: localimage`, and a `From:` line")
    if not fields.get("from") and fields["bootstrap"].lower() != "scratch":
        _refuse("no From line", "add `From:` and the base image")
    return fields


def _files(arguments: str, body: str) -> list[Copied]:
    if arguments.partition("#")[0].strip():
        _refuse(f"%files {arguments}", "write %files without a stage")
    copies = []
    for line in _lines(body):
        words = [_QUOTED.sub(r"\1", word) for word in _WORD.findall(line)]
        if not words or len(words) > 2:
            _refuse(line, 'a line of %files must have a source and a target; write "a b" for a name with spaces')
        copies.append(Copied(source=words[0], target=words[1] if len(words) > 1 else ""))
    return copies


def _pairs(body: str, separator: str) -> dict[str, str]:
    """Return the names and values in the lines of a section."""
    pairs = (line.partition(separator) for line in _lines(body))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _lines(text: str) -> list[str]:
    """Return the stripped lines of a text, without empty ones and comments."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _refuse(value: str, allowed: str) -> NoReturn:
    raise SpecError("definition file", value, allowed)
