"""Build images with BuildKit by the ``docker`` command, and make build contexts for the daemon's
own builder.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hyperruntime.host.engine_limits import engine_call
from hyperruntime.host.process import run_process, stream_process
from hyperruntime_docker.args import NAME
from hyperruntime_docker.client import endpoint

CONTAINERFILE = ".hyperruntime.Dockerfile"
_FIRST_WITH_BUILDKIT = 23
_OUTPUT = re.compile(r"#\d+ (?:\d+\.\d+ )?(.*)")
# A step begins; at the end, the failed step and its last lines are repeated.
_STEP = re.compile(r"(?:#\d+| >) \[(?:[^\]]* )?(\d+/\d+)\] (.*?):?")
_IN_THE_END = re.compile(r"\d+\.\d+ (.*)")


def has_buildkit(version: str) -> bool:
    """Return whether images are built with BuildKit.

    Args:
        version: the daemon's version.
    """
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) < _FIRST_WITH_BUILDKIT or shutil.which("docker") is None:
        return False
    with engine_call(NAME, "call") as timeout_s:
        return run_process(["docker", "buildx", "version"], timeout_s=timeout_s).exit_code == 0


def buildkit_args(
    context: Path,
    reference: str,
    containerfile: Path,
    build_args: Mapping[str, str],
    *,
    force: bool,
) -> list[str]:
    """Return the argv that builds with the daemon's BuildKit and the host's network.

    Args:
        context: the build context.
        reference: the name of the image, as the daemon lists it.
        containerfile: the Containerfile.
        build_args: values of its ``ARG`` instructions.
        force: ignore cached layers.
    """
    # Not a builder that the user has made: a builder in a container does not see the daemon's
    # images.
    args = [
        "docker",
        "buildx",
        "build",
        "--builder",
        "default",
        "--progress",
        "plain",
        "--provenance=false",
    ]
    args += ["--network", "host", "--file", str(containerfile), "--tag", reference]
    args += ["--no-cache"] if force else []
    for name, value in build_args.items():
        args += ["--build-arg", f"{name}={value}"]
    return [*args, str(context)]


def build_by_buildkit(args: list[str], on_output: Callable[[str], None]) -> str:
    """Run a build; return its error, or "".

    Args:
        args: the argv.
        on_output: called with each line of output; a step is announced as ``STEP 2/4: RUN ...``.
    """
    known = {name: value for name, value in os.environ.items() if name != "DOCKER_CONTEXT"}
    result = stream_process(
        args,
        env={**known, "DOCKER_HOST": endpoint()},
        on_line=lambda line: on_output(plain_line(line)),
    )
    return "" if result.exit_code == 0 else result.error_text


def plain_line(line: str) -> str:
    """Return a line of BuildKit's plain progress in the form of other builders: steps, and output
    without its time.
    """
    if step := _STEP.fullmatch(line):
        return f"STEP {step[1]}: {step[2]}"
    output = _OUTPUT.fullmatch(line) or _IN_THE_END.fullmatch(line)
    return output[1] if output is not None else line


@contextmanager
def context_tar(context: Path, containerfile: Path) -> Iterator[IO[bytes]]:
    """Yield a build context as a tar, with a Containerfile that no step copies.

    Args:
        context: the build context; its ``.dockerignore`` is respected.
        containerfile: becomes ``CONTAINERFILE``.
    """
    from docker.utils import tar as make_tar

    ignore = context / ".dockerignore"
    text = ignore.read_text("utf-8-sig", "surrogateescape") if ignore.is_file() else ignore.name
    lines = (line.strip() for line in text.splitlines())
    with make_tar(
        str(context), exclude=[line for line in lines if line and not line.startswith("#")]
    ) as made:
        with tarfile.open(fileobj=made, mode="a") as tar:
            tar.add(containerfile, CONTAINERFILE)
            kept = f"{text}\n{CONTAINERFILE}\n".encode(errors="surrogateescape")
            member = tarfile.TarInfo(ignore.name)
            member.size = len(kept)
            tar.addfile(member, io.BytesIO(kept))
        made.seek(0)
        yield made


def tar_of_root(files: Path) -> bytes:
    """Return a directory as a tar whose files belong to root."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.add(files, ".", filter=_of_root)
    return made.getvalue()


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
