"""Parse Apptainer definition files into values, without an engine and without access to files.

Source: the Apptainer user guide, "Definition Files"; where the guide is silent, the behaviour of
Apptainer 1.4.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NoReturn

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.pickling import frozen_mapping
from hyperruntime.spec import is_image_name, is_image_path

_HOST_SECTIONS = ("pre", "setup")  # they run on the build machine, as the user who builds
_SECTIONS = (
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
# All others run programs of this machine, or read its files or its daemon.
_BOOTSTRAPS = ("docker", "library", "localimage", "oras", "scratch", "shub")
_HEADERS = ("bootstrap", "fingerprints", "from", "library", "namespace", "registry", "stage")
_STAGE = re.compile(r"^bootstrap:", re.IGNORECASE | re.MULTILINE)
# Apptainer takes fewer blanks before the %. Other ends of lines than \n are refused, so that all
# read the same lines.
_SECTION = re.compile(r"^[^\S\n]*%+", re.MULTILINE)
_OTHER_ENDS = re.compile(r"[\0\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}", re.ASCII)
_IN_A_COMMENT = re.compile(r"#[^!]")  # Apptainer fills no placeholder after it
_FROM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
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
    """

    bootstrap: str
    base: str
    files: tuple[Copied, ...] = ()
    post: Script = Script()
    environment: str = ""
    labels: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping)
    runscript: Script = Script()
    test: Script = Script()


@attrs.frozen(kw_only=True)
class Section:
    """A section of a definition file.

    Attributes:
        name: its name in small letters.
        arguments: the text after the name.
        body: the lines after the first one.
    """

    name: str
    arguments: str = ""
    body: str = ""


@attrs.frozen(kw_only=True)
class Stage:
    """A stage of a definition file, whose placeholders are filled in.

    Attributes:
        header: the values of the header, by their names in small letters.
        sections: the sections in order; none of them runs on the host.
    """

    header: Mapping[str, str]
    sections: tuple[Section, ...]


def parse_definition(text: str, build_args: Mapping[str, str] | None = None) -> Definition:
    """Return the parsed definition file, with build arguments filled in.

    Args:
        text: the definition file.
        build_args: values that override the defaults in ``%arguments``.

    Raises:
        SpecError: the file is invalid, has more than one stage, or has an unknown section.
    """
    stages = parse_stages(text, build_args)
    if len(stages) > 1:
        _refuse(
            "a second Bootstrap line",
            "only one stage is supported; build the first stage as a separate image",
        )
    fields = stages[0].header
    sections = stages[0].sections
    if staged := next((each for each in sections if each.name == "files" and stage_of(each)), None):
        _refuse(f"%files {staged.arguments}", "write %files without a stage")
    scripts: dict[str, Script] = defaultdict(Script)
    for each in sections:
        before = scripts[each.name]
        scripts[each.name] = Script(
            text=before.text + each.body, arguments=each.arguments or before.arguments
        )
    return Definition(
        bootstrap=fields["bootstrap"],
        base="/".join(
            filter(None, (fields.get("registry"), fields.get("namespace"), fields.get("from")))
        ),
        files=tuple(
            line for each in sections if each.name == "files" for line in copied_files(each)
        ),
        post=scripts["post"],
        environment=scripts["environment"].text,
        labels=_pairs(scripts["labels"].text, " "),
        runscript=scripts["runscript"],
        test=scripts["test"],
    )


def parse_stages(text: str, build_args: Mapping[str, str] | None = None) -> tuple[Stage, ...]:
    """Return the stages of a definition file, with build arguments filled in; the one check of what
    may touch the host.

    Args:
        text: the definition file.
        build_args: values that override the defaults in ``%arguments``.

    Raises:
        SpecError: the file is invalid, has a section that runs on the host or an unknown one, or a
            base that is made by programs of the host.
    """
    filled = fill_placeholders(text.removeprefix("\ufeff"), build_args or {}).replace("\r\n", "\n")
    if odd := _OTHER_ENDS.search(filled):
        _refuse(odd[0], "the text may contain no control characters")
    starts = [found.start() for found in _STAGE.finditer(filled)][1:]
    parts = (filled[start:end] for start, end in zip((0, *starts), (*starts, None), strict=True))
    return tuple(_stage(part) for part in parts)


def _stage(text: str) -> Stage:
    header, sections = _split(text)
    hosts = [each.name for each in sections if each.name in _HOST_SECTIONS and each.body.strip()]
    if hosts:
        named = ", ".join(f"%{name}" for name in dict.fromkeys(hosts))
        _refuse(named, "no section may run on the host; use %post, or copy with %files")
    return Stage(
        header=_header(header), sections=tuple(e for e in sections if e.name not in _HOST_SECTIONS)
    )


def with_base(text: str, bootstrap: str, base: str) -> str:
    """Return a definition file with another base.

    Args:
        text: the definition file.
        bootstrap: source of the base, such as ``localimage``.
        base: the new base.
    """
    header, percent, rest = _cut(text)
    kept = [
        line
        for line in header.splitlines()
        if line.partition(":")[0].strip().lower() not in _HEADERS
    ]
    return "\n".join([f"Bootstrap: {bootstrap}", f"From: {base}", *kept, ""]) + percent + rest


def fill_placeholders(text: str, given: Mapping[str, str]) -> str:
    """Return a definition file with its placeholders replaced by build arguments, or by defaults of
    ``%arguments``.

    Args:
        text: the definition file.
        given: values that override the defaults.

    Raises:
        SpecError: a placeholder has no value, or its value contains a placeholder without a value.
    """
    if not _PLACEHOLDER.search(text):
        return text
    body = "".join(each.body for each in _split(text)[1] if each.name == "arguments")
    values = {**_pairs(body, "="), **given}

    def value(match: re.Match[str]) -> str:
        if _IN_A_COMMENT.search(
            match.string, match.string.rfind("\n", 0, match.start()) + 1, match.start()
        ):
            return match[0]
        if match[1] not in values:
            _refuse(
                match[0],
                "the build argument has no value; pass it, or give it a default in %arguments",
            )
        return _PLACEHOLDER.sub(lambda inner: values.get(inner[1], inner[0]), values[match[1]])

    return _PLACEHOLDER.sub(value, text)


def _cut(text: str) -> tuple[str, str, str]:
    """Return the header, the first ``%``, and the text after it."""
    found = _SECTION.search(text)
    return (text, "", "") if found is None else (text[: found.start()], "%", text[found.end() :])


def _split(text: str) -> tuple[str, list[Section]]:
    """Return the header and the sections; a line that starts with ``%`` starts one."""
    header, percent, rest = _cut(text)
    sections = []
    for part in _SECTION.split(rest) if percent else ():
        line, _, body = part.partition("\n")
        words = line.split(None, 1) or [""]
        name = words[0].lower()
        if name not in (*_SECTIONS, *_HOST_SECTIONS):
            _refuse(
                f"%{words[0]}",
                f"a line that starts with % must start a section: {', '.join(_SECTIONS)}",
            )
        sections.append(Section(name=name, arguments=words[1] if len(words) > 1 else "", body=body))
    return header, sections


def _header(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in _lines(text):
        name, colon, value = (part.strip() for part in line.split("#")[0].partition(":"))
        if not colon or value.endswith("\\"):
            _refuse(line, "a header line must have the form `Name: value`, in one line")
        if name.lower() not in _HEADERS or name.lower() in fields:
            _refuse(
                line, f"each header may be given once, and must be one of {', '.join(_HEADERS)}"
            )
        fields[name.lower()] = value
    if not fields.get("bootstrap"):
        _refuse(
            "no Bootstrap line",
            "add `Bootstrap: docker` or `Bootstrap: localimage`, and a `From:` line",
        )
    fields["bootstrap"] = fields["bootstrap"].lower()
    if fields["bootstrap"] not in _BOOTSTRAPS:
        _refuse(
            f"Bootstrap: {fields['bootstrap']}",
            f"it would use this machine; use one of {', '.join(_BOOTSTRAPS)}",
        )
    if fields["bootstrap"] == "scratch":
        return fields
    if not fields.get("from"):
        _refuse("no From line", "add `From:` and the base image")
    _check_base(fields)
    return fields


def _check_base(fields: Mapping[str, str]) -> None:
    """Refuse a base that is neither a name nor, of a local image, a path."""
    base = (
        fields["from"].removeprefix("docker://")
        if fields["bootstrap"] == "docker"
        else fields["from"]
    )
    fits = (
        _FROM.fullmatch(base)
        if fields["bootstrap"] in ("library", "oras", "shub")
        else is_image_name(base)
    )
    if not fits and not (fields["bootstrap"] == "localimage" and is_image_path(base)):
        _refuse(
            f"From: {fields['from']}",
            "the base must be the name of an image; load an archive first with `hyperrun image "
            "load FILE`",
        )


def stage_of(section: Section) -> str:
    """Return the stage that a ``%files`` section copies from; "" for the host."""
    words = section.arguments.partition("#")[0].split()
    if words and (len(words) != 2 or words[0] != "from"):
        _refuse(f"%files {section.arguments}", "write %files, or %files from STAGE")
    return words[1] if words else ""


def copied_files(section: Section) -> list[Copied]:
    """Return the lines of a ``%files`` section."""
    copies = []
    for line in _lines(section.body):
        words = [_QUOTED.sub(r"\1", word) for word in _WORD.findall(line)]
        if not words or len(words) > 2:
            _refuse(
                line,
                'a line of %files must have a source and a target; write "a b" for a name with '
                "spaces",
            )
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
