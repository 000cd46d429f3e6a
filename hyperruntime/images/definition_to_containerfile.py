"""Convert definition files to Containerfiles, so that every engine can build them.

Apptainer copies files with ``cp`` and runs scripts with ``sh``. The build steps use the same programs of the image, so
that copied directories, missing parents and shells behave alike. Only the environment becomes ``ENV``, because no
engine sources a script before a command.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hyperruntime.errors import SpecError
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.definition_file import Copied, Definition, Script, parse_definition
from hyperruntime.images.environment_script import Value, parse_assignments, quoted
from hyperruntime.images.pull_errors import registry_of

SUFFIX = ".def"
_WORK = "/.hyperruntime-build"
_PAYLOAD = "payload"
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_LATE_ENVIRONMENT = re.compile(r"(APPTAINER|SINGULARITY)_ENVIRONMENT")
_OF_THE_SHELL = set("$`{}\\'\"();<>|&")  # Apptainer expands sources in a shell
_PUT = """\
put() {
    case $2 in
        */) [ -e "$2" ] || mkdir -p -- "$2" ;;
        *) [ -e "$2" ] || mkdir -p -- "$(dirname -- "$2")" ;;
    esac
    cp -fR -- "$1" "$2"
}
"""


@contextmanager
def containerfile_of(
    definition_file: Path, context: Path, build_args: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Yield a Containerfile that builds the same image as a definition file, in a directory with all files it copies.

    Args:
        definition_file: the file to convert.
        context: directory that the sources of ``%files`` are relative to.
        build_args: values for the placeholders of the definition file.

    Raises:
        SpecError: the definition file is invalid, or no Containerfile can express it.
    """
    try:
        text = definition_file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(
            "containerfile", str(definition_file), f"text in UTF-8; its byte {error.start} is not"
        ) from None
    definition = parse_definition(text, build_args)
    with owned_directory() as directory:
        folder = Path(directory) / "build"
        (folder / _PAYLOAD).mkdir(parents=True)
        copies = "".join(_staged(line, context, folder / _PAYLOAD, n) for n, line in enumerate(definition.files))
        (folder / _PAYLOAD / "files.sh").write_text(f"set -e\n{_PUT}{copies}")
        (folder / _PAYLOAD / "post.sh").write_text(definition.post.text)
        (folder / _PAYLOAD / "test.sh").write_text(definition.test.text)
        (folder / _PAYLOAD / "runscript").write_text(f"#!/bin/sh\n{definition.runscript.text}")
        (folder / _PAYLOAD / "runscript").chmod(0o755)
        (folder / "Containerfile").write_text(render(definition))
        yield folder / "Containerfile"


def render(definition: Definition) -> str:
    """Return the Containerfile of a definition; its files and scripts are in ``payload/`` beside it.

    Raises:
        SpecError: no Containerfile can express the definition.
    """
    check_no_host_sections(definition)
    if _LATE_ENVIRONMENT.search(definition.post.text):
        raise SpecError("definition file", "$APPTAINER_ENVIRONMENT in %post", "set the variables in %environment")
    lines = [f"FROM {_base(definition)}", "USER 0:0", "WORKDIR /"]
    scripts = (definition.post, definition.test, definition.runscript)
    needs_payload = bool(definition.files or any(script.text.strip() for script in scripts))
    if needs_payload:
        lines.append(f"COPY {_PAYLOAD}/ {_WORK}/")
    if definition.files:
        lines.append(_run("/bin/sh", f"{_WORK}/files.sh"))
    if definition.post.text.strip():
        lines.append(_run(*script_args(definition.post, f"{_WORK}/post.sh")))
    if variables := parse_assignments(definition.environment):
        # One instruction, because a reference means the value before the whole script.
        lines.append("ENV " + " ".join(f"{name}={_quoted(value)}" for name, value in variables.items()))
    if definition.labels:
        pairs = (f"{_quoted((name,))}={_quoted((value,))}" for name, value in definition.labels.items())
        lines.append("LABEL " + " ".join(pairs))
    if definition.test.text.strip():
        lines.append(_run(*script_args(definition.test, f"{_WORK}/test.sh")))
    if definition.runscript.text.strip():
        lines.append(_run("/bin/sh", "-c", f"mkdir -p /.singularity.d && cp {_WORK}/runscript /.singularity.d/"))
        lines.append('ENTRYPOINT ["/.singularity.d/runscript"]')
    if needs_payload:
        lines.append(_run("rm", "-rf", _WORK))
    return "\n".join([*lines, ""])


def check_no_host_sections(definition: Definition) -> None:
    """Raise SpecError if a definition has sections that run on the build machine.

    Raises:
        SpecError: the definition has such a section.
    """
    if definition.host_sections:
        named = ", ".join(f"%{name}" for name in definition.host_sections)
        raise SpecError("definition file", named, "no section may run on the host; use %post, or copy with %files")


def check_contained(definition: Definition, context: Path) -> None:
    """Raise SpecError if a definition copies host files from outside its context.

    Args:
        definition: the definition.
        context: directory that the sources of ``%files`` are relative to.

    Raises:
        SpecError: a source of ``%files`` does not exist, leads out of the context, or contains a link that does.
    """
    for line in definition.files:
        for path in _sources(line, context):
            _check_tree(path, context.resolve())


def script_args(script: Script, path: str) -> tuple[str, ...]:
    """Return the argv that runs a section's script, as Apptainer does.

    Args:
        script: the section; ``-c`` in its arguments gives another shell.
        path: path of the script in the image.

    Raises:
        SpecError: no shell follows ``-c``.
    """
    words = script.words
    if "-c" not in words:
        return ("/bin/sh", "-ex", *words, path)
    at = words.index("-c")
    if at + 1 == len(words):
        raise SpecError("definition file", script.arguments, "name a shell after -c")
    return ("/bin/sh", "-ex", *words[:at], "-c", " ".join((*words[at + 1 :], path)))


def _base(definition: Definition) -> str:
    kind, base = definition.bootstrap, definition.base.removeprefix("docker://")
    if kind == "scratch":
        return "scratch"
    if kind not in ("docker", "localimage"):
        raise SpecError("definition file", f"Bootstrap: {kind}", "without Apptainer, use docker, localimage or scratch")
    if not _IMAGE.fullmatch(base) or base.endswith(".sif"):
        raise SpecError("definition file", f"From: {base}", "without Apptainer, the base must be an image reference")
    if kind == "localimage" or base.startswith(f"{registry_of(base)}/"):
        return base
    return f"docker.io/{base}" if "/" in base else f"docker.io/library/{base}"


def _run(*args: str) -> str:
    return f"RUN {json.dumps(args)}"


def _quoted(value: Value) -> str:
    for part in value:
        if isinstance(part, str) and "\n" in part:
            raise SpecError("definition file", part, "without Apptainer, a value must be one line")
    return quoted(value, '"\\$')


def _sources(line: Copied, context: Path) -> list[Path]:
    if set(line.source) & _OF_THE_SHELL:
        raise SpecError("definition file", line.source, "a path in %files may contain only the wildcards *, ? and []")
    found = sorted(glob.glob(line.source, root_dir=context))
    if not found:
        raise SpecError("definition file", line.source, f"the source of %files does not exist in {context}")
    return [context / name for name in found]


def _staged(line: Copied, context: Path, payload: Path, number: int) -> str:
    """Copy the sources of a ``%files`` line to the payload, following links; return the commands for the build."""
    commands = ""
    for index, path in enumerate(_sources(line, context)):
        _check_tree(path, context.resolve())
        inner = "" if path.name and os.path.basename(line.source.rstrip("/")) not in (".", "..") else "/."
        name = f"{number}.{index}/{path.resolve().name if inner else path.name}"
        copy = payload / name
        copy.parent.mkdir()
        if path.is_dir():
            shutil.copytree(path, copy, symlinks=False)
        else:
            shutil.copy2(path, copy)
        target = line.target or os.path.relpath(path, context)
        target = target if target.startswith("/") else f"/{target}"
        commands += f"put {shlex.quote(f'{_WORK}/{name}{inner}')} {shlex.quote(target)}\n"
    return commands


def _check_tree(path: Path, root: Path) -> None:
    """Raise SpecError if a path, or a path below it, leads out of ``root`` or is a special file."""
    for found in (path, *(path.rglob("*") if path.is_dir() else ())):
        real = found.resolve()
        if not real.is_relative_to(root):
            raise SpecError("definition file", str(found), f"the files must lie in {root}; copy them there")
        if not (real.is_file() or real.is_dir()):
            raise SpecError("definition file", str(found), "%files may contain only files and directories")
