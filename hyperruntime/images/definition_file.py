"""Parse Apptainer definition files into values, without an engine and without access to files.

Source: the Apptainer user guide, "Definition Files"; where the guide is silent, the behaviour of
Apptainer 1.4.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NoReturn

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.pickling import frozen_mapping
from hyperruntime.settings.image_names import is_image_name, is_image_path

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
_HEADERS = ("bootstrap", "from", "namespace", "registry", "stage")
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
        stage: the stage of the source, which is a path in it then; "" for the host.
    """

    source: str
    target: str = ""
    stage: str = ""


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
    """A stage of a definition file, whose placeholders are filled in; none of it runs on the host.

    Attributes:
        stage: its name, or "".
        bootstrap: source of the base: ``docker``, ``localimage``, ``scratch``, ...
        base: the base as written, with registry and namespace as prefixes.
        files: files that are copied into the image before ``post`` runs.
        post: script that runs in the new image.
        environment: shell script that sets the environment of every command in a container.
        labels: labels of the image.
        runscript: default program of the image.
        test: script that runs at the end of the build; the build fails if it fails.
    """

    stage: str = ""
    bootstrap: str
    base: str
    files: tuple[Copied, ...] = ()
    post: Script = Script()
    environment: str = ""
    labels: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping)
    runscript: Script = Script()
    test: Script = Script()


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
    if staged := next((each.stage for each in stages[0].files if each.stage), None):
        _refuse(f"%files from {staged}", "write %files without a stage")
    return stages[0]


def parse_stages(text: str, build_args: Mapping[str, str] | None = None) -> tuple[Definition, ...]:
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


def _stage(text: str) -> Definition:
    header, sections = _split(text)
    hosts = [name for name, _, body in sections if name in _HOST_SECTIONS and body.strip()]
    if hosts:
        named = ", ".join(f"%{name}" for name in dict.fromkeys(hosts))
        _refuse(named, "no section may run on the host; use %post, or copy with %files")
    fields = _header(header)
    scripts: dict[str, Script] = defaultdict(Script)
    files: list[Copied] = []
    for name, arguments, body in sections:
        before = scripts[name]
        scripts[name] = Script(text=before.text + body, arguments=arguments or before.arguments)
        if name == "files":
            files += _copied_files(arguments, body)
    places = (fields.get(name) for name in ("registry", "namespace", "from"))
    return Definition(
        stage=fields.get("stage", ""),
        bootstrap=fields["bootstrap"],
        base="/".join(filter(None, places)),
        files=tuple(files),
        post=scripts["post"],
        environment=scripts["environment"].text,
        labels=_pairs(scripts["labels"].text, " "),
        runscript=scripts["runscript"],
        test=scripts["test"],
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
    body = "".join(body for name, _, body in _split(text)[1] if name == "arguments")
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


def _split(text: str) -> tuple[str, list[tuple[str, str, str]]]:
    """Return the header, and the name, arguments and body of each section; a line that starts with
    ``%`` starts one.
    """
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
        sections.append((name, words[1] if len(words) > 1 else "", body))
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


def _copied_files(arguments: str, body: str) -> Iterator[Copied]:
    """Yield the lines of a ``%files`` section."""
    from_stage = arguments.partition("#")[0].split()
    if from_stage and (len(from_stage) != 2 or from_stage[0] != "from"):
        _refuse(f"%files {arguments}", "write %files, or %files from STAGE")
    for line in _lines(body):
        words = [_QUOTED.sub(r"\1", word) for word in _WORD.findall(line)]
        if not words or len(words) > 2:
            _refuse(
                line,
                'a line of %files must have a source and a target; write "a b" for a name with '
                "spaces",
            )
        yield Copied(source=words[0], target="".join(words[1:]), stage="".join(from_stage[1:]))


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
