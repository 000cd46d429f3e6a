"""Convert definition files to Containerfiles, so that every engine can build them.

Apptainer copies files with ``cp`` and runs scripts with ``sh``. The build steps use the same
programs of the image, so that copied directories, missing parents and shells behave alike. Only the
environment becomes ``ENV``, because no engine sources a script before a command.
"""

from __future__ import annotations

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
from hyperruntime.images.definition_rewrite import copied_paths, read_definition
from hyperruntime.images.pull_errors import full_name
from hyperruntime.images.variables import Value, parse_assignments, quoted

SUFFIX = ".def"
_WORK = "/.hyperruntime-build"
_PAYLOAD = "payload"
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_LATE_ENVIRONMENT = re.compile(r"(APPTAINER|SINGULARITY)_ENVIRONMENT")
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
    """Yield a Containerfile that builds the same image as a definition file, in a directory with
    all files it copies.

    Args:
        definition_file: the file to convert.
        context: directory that the sources of ``%files`` are relative to.
        build_args: values for the placeholders of the definition file.

    Raises:
        SpecError: the definition file is invalid, or no Containerfile can express it.
    """
    definition = parse_definition(read_definition(definition_file), build_args)
    with owned_directory() as directory:
        folder = Path(directory) / "build"
        (folder / _PAYLOAD).mkdir(parents=True)
        copies = "".join(
            _staged(line, context, folder / _PAYLOAD, n) for n, line in enumerate(definition.files)
        )
        (folder / _PAYLOAD / "files.sh").write_text(f"set -e\n{_PUT}{copies}")
        (folder / _PAYLOAD / "post.sh").write_text(definition.post.text)
        (folder / _PAYLOAD / "test.sh").write_text(definition.test.text)
        (folder / _PAYLOAD / "runscript").write_text(f"#!/bin/sh\n{definition.runscript.text}")
        (folder / _PAYLOAD / "runscript").chmod(0o755)
        (folder / "Containerfile").write_text(render(definition))
        yield folder / "Containerfile"


def render(definition: Definition) -> str:
    """Return the Containerfile of a definition; its files and scripts are in ``payload/`` beside
    it.

    Raises:
        SpecError: no Containerfile can express the definition.
    """
    if _LATE_ENVIRONMENT.search(definition.post.text):
        raise SpecError(
            "definition file",
            "$APPTAINER_ENVIRONMENT in %post",
            "set the variables in %environment",
        )
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
        lines.append(
            "ENV " + " ".join(f"{name}={_quoted(value)}" for name, value in variables.items())
        )
    if definition.labels:
        pairs = (
            f"{_quoted((name,))}={_quoted((value,))}" for name, value in definition.labels.items()
        )
        lines.append("LABEL " + " ".join(pairs))
    if definition.test.text.strip():
        lines.append(_run(*script_args(definition.test, f"{_WORK}/test.sh")))
    if definition.runscript.text.strip():
        lines.append(
            _run(
                "/bin/sh",
                "-c",
                f"mkdir -p /.singularity.d && cp {_WORK}/runscript /.singularity.d/",
            )
        )
        lines.append('ENTRYPOINT ["/.singularity.d/runscript"]')
    if needs_payload:
        lines.append(_run("rm", "-rf", _WORK))
    return "\n".join([*lines, ""])


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
    kind = definition.bootstrap
    base = definition.base.removeprefix("docker://")
    if kind == "scratch":
        return "scratch"
    if kind not in ("docker", "localimage"):
        raise SpecError(
            "definition file",
            f"Bootstrap: {kind}",
            "without Apptainer, use docker, localimage or scratch",
        )
    if not _IMAGE.fullmatch(base) or base.endswith(".sif"):
        raise SpecError(
            "definition file",
            f"From: {base}",
            "without Apptainer, the base must be an image reference",
        )
    return base if kind == "localimage" else full_name(base, "docker.io")


def _run(*args: str) -> str:
    return f"RUN {json.dumps(args)}"


def _quoted(value: Value) -> str:
    for part in value:
        if isinstance(part, str) and "\n" in part:
            raise SpecError("definition file", part, "without Apptainer, a value must be one line")
    return quoted(value, '"\\$')


def _staged(line: Copied, context: Path, payload: Path, number: int) -> str:
    """Copy the sources of a ``%files`` line to the payload, following links; return the commands
    for the build.
    """
    commands = ""
    for index, path in enumerate(copied_paths(line, context)):
        inner = (
            ""
            if path.name and os.path.basename(line.source.rstrip("/")) not in (".", "..")
            else "/."
        )
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
