"""Build images: from an Apptainer definition file, or from a Containerfile through an engine that builds those."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from hyperruntime.errors import ImageBuildError
from hyperruntime.process import find_program, stream_process
from hyperruntime_apptainer.sif import BUILD, tool_environment

_TAIL_LINES = 12
BASE_ARGUMENT = "BASE"


def definition_beside(containerfile: Path) -> Path | None:
    """Return the one definition file that lies beside a Containerfile, if there is one."""
    found = sorted(containerfile.parent.glob("*.def"))
    return found[0] if len(found) == 1 else None


def build_definition(
    definition: Path,
    sif: Path,
    context: Path,
    build_args: Mapping[str, str],
    path_of: Callable[[str], str | None],
    on_output: Callable[[str], None],
) -> None:
    """Build a definition file; ``From: <reference>`` of a local image becomes that image's file.

    Raises:
        ImageBuildError: a step failed; the message holds its last lines.
    """
    args = [*(word for word in BUILD if word != "--silent")]
    text = local_bases(definition.read_text(), path_of)
    private = sif.parent / definition.name
    private.write_text(text)
    for name, value in build_args.items():
        if "{{" in text and re.search(r"\{\{\s*" + re.escape(name) + r"\s*\}\}", text):
            args += ["--build-arg", f"{name}={value}"]
    result = stream_process(
        [*args, "--fakeroot", "--ignore-subuid", str(sif), str(private)],
        on_line=on_output,
        cwd=context,
        env=tool_environment(),
    )
    if result.exit_code != 0 or not sif.is_file():
        raise ImageBuildError(f"no image was built from {definition}; its last lines:\n{_tail(result.stderr)}")


def local_bases(text: str, path_of: Callable[[str], str | None]) -> str:
    """Return a definition whose ``localimage`` bases that are references name files instead."""
    if not re.search(r"^bootstrap:\s*localimage\s*$", text, re.IGNORECASE | re.MULTILINE):
        return text
    return re.sub(
        r"^(from:\s*)(\S+)\s*$",
        lambda match: match[1] + (path_of(match[2]) or match[2]),
        text,
        flags=re.IGNORECASE | re.MULTILINE,
    )


def build_archive(
    context: Path,
    reference: str,
    archive: Path,
    containerfile: Path,
    build_args: Mapping[str, str],
    force: bool,
    on_output: Callable[[str], None],
) -> None:
    """Build a Containerfile with Podman or Docker and save the image as an archive.

    Raises:
        ImageBuildError: a step failed, or there is neither Podman nor Docker.
    """
    engine = next((name for name in ("podman", "docker") if find_program(name)), None)
    if engine is None:
        raise ImageBuildError(
            f"nothing on this machine can build {containerfile}: there is neither Podman nor Docker, and no .def file "
            "beside it; write a definition file, or build it elsewhere and use `hyperrun image load`"
        )
    for args in engine_steps(engine, context, reference, archive, containerfile, build_args, force):
        result = stream_process(args, on_line=on_output, cwd="/")
        if result.exit_code != 0:
            words = f"image {reference!r} was not built from {containerfile} by {engine}"
            raise ImageBuildError(f"{words}; its last lines:\n{_tail(result.stderr)}")


def engine_steps(
    engine: str,
    context: Path,
    reference: str,
    archive: Path,
    containerfile: Path,
    build_args: Mapping[str, str],
    force: bool,
) -> list[list[str]]:
    """Return the commands that build and save: pure."""
    path = str(containerfile)
    build = [engine, "build", "--network", "host", "--file", csv_line(path) if engine == "podman" else path]
    build += ["--tag", reference, *(["--no-cache"] if force else [])]
    for name, value in build_args.items():
        build += ["--build-arg", f"{name}={value}"]
    save = [engine, "save", "--output", str(archive)]
    save += ["--format", "docker-archive", "--quiet"] if engine == "podman" else []
    return [[*build, str(context)], [*save, reference]]


def csv_line(field: str) -> str:
    """Return one field as a line of CSV, which is how Podman reads the value of ``--file``."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([field])
    return line.getvalue()


def _tail(output: bytes) -> str:
    return "\n".join(output.decode(errors="replace").strip().splitlines()[-_TAIL_LINES:])
