"""Build images from Apptainer definition files, or from Containerfiles through another engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from hyperruntime import registry
from hyperruntime.driver import Driver, Images
from hyperruntime.errors import HyperRuntimeError, ImageBuildError
from hyperruntime.host.engine_program import csv_line
from hyperruntime.host.process import stream_process
from hyperruntime_apptainer.sif import BUILD, tool_environment

_TAIL_LINES = 12
BUILDERS = ("podman", "docker")


class NoBuilderError(ImageBuildError):
    """No engine on this machine can build Containerfiles."""


def definition_beside(containerfile: Path) -> Path | None:
    """Return the definition file in a Containerfile's directory; None unless there is exactly one."""
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
    """Build a definition file; ``From: <reference>`` of a local image becomes that image's path.

    Args:
        definition: the definition file.
        sif: the SIF to write; its directory also takes temporary files.
        context: the working directory of the build.
        build_args: values of ``{{ NAME }}`` templates; names that the definition does not use are ignored.
        path_of: returns the path of a local image, or None if the reference is unknown.
        on_output: called with each line of output.

    Raises:
        ImageBuildError: a step failed; the message ends with its last lines.
    """
    args = [*(word for word in BUILD if word != "--silent")]
    text = local_bases(definition.read_text(), path_of)
    private = sif.parent / definition.name
    private.write_text(text)
    for name, value in build_args.items():
        if "{{" in text and re.search(r"\{\{\s*" + re.escape(name) + r"\s*\}\}", text):
            args += ["--build-arg", f"{name}={value}"]
    result = stream_process(
        [*args, *_own_temporary(sif.parent), "--fakeroot", "--ignore-subuid", str(sif), str(private)],
        on_line=on_output,
        cwd=context,
        env=tool_environment(),
    )
    if result.exit_code != 0 or not sif.is_file():
        raise ImageBuildError(f"{definition} cannot be built; the last lines of the build:\n{_tail(result.stderr)}")


def _own_temporary(place: Path) -> list[str]:
    """Return the options that hide the host's temporary directories from the steps of a build."""
    options = []
    for number, target in enumerate(("/tmp", "/var/tmp")):  # noqa: S108 - in the image
        directory = place / f"temporary-{number}"
        directory.mkdir()
        directory.chmod(0o1777)
        options += ["--mount", csv_line(["type=bind", f"source={directory}", f"destination={target}"])]
    return options


def local_bases(text: str, path_of: Callable[[str], str | None]) -> str:
    """Return a definition in which ``localimage`` bases name paths instead of references.

    Args:
        text: the definition.
        path_of: returns the path of a local image, or None if the reference is unknown.
    """
    if not re.search(r"^bootstrap:[ \t]*localimage[ \t]*$", text, re.IGNORECASE | re.MULTILINE):
        return text
    return re.sub(
        r"^(from:[ \t]*)(\S+)[ \t]*$",
        lambda match: match[1] + (path_of(match[2]) or match[2]),
        text,
        flags=re.IGNORECASE | re.MULTILINE,
    )


def build_archive(
    context: Path,
    reference: str,
    archive: Path,
    *,
    containerfile: Path,
    build_args: Mapping[str, str],
    force: bool,
    on_output: Callable[[str], None],
    lend_base: Callable[[str, Images], None],
) -> None:
    """Build a Containerfile with the driver of another engine and save the image as an archive.

    Args:
        context: the build context.
        reference: the image's name in the other engine.
        archive: the archive to write.
        containerfile: the Containerfile.
        build_args: values of its ``ARG`` instructions.
        force: ignore cached layers.
        on_output: called with each line of output.
        lend_base: called with each base image that the other engine does not have, and that engine's images; it may
            load the image there.

    Raises:
        ImageBuildError: a step failed.
        NoBuilderError: no engine here can build Containerfiles.
        ImageError: the image was built but cannot be saved.
    """
    driver = _builder(containerfile)
    try:
        for base in bases(containerfile.read_text()):
            if not driver.images.exists(base):
                lend_base(base, driver.images)
        driver.images.build(
            context, reference, containerfile=containerfile, build_args=build_args, force=force, on_output=on_output
        )
        driver.images.save(reference, archive)
    finally:
        driver.close()


def bases(containerfile: str) -> tuple[str, ...]:
    """Return the base images of a Containerfile's stages; bases with a variable are left out."""
    return tuple(re.findall(r"^\s*FROM\s+(?:--\S+\s+)*([^\s$]+)(?:\s|$)", containerfile, re.IGNORECASE | re.MULTILINE))


def _builder(containerfile: Path) -> Driver:
    """Return the first driver of an engine that can build Containerfiles and works here."""
    reasons = []
    for name in BUILDERS:
        try:
            driver: Driver = registry.load_driver(name)
            driver.probe()
        except HyperRuntimeError as error:
            reasons.append(str(error))
            continue
        return driver
    raise NoBuilderError(
        f"no engine on this machine can build {containerfile}, and there is no single .def file beside it; write one, "
        f"or build it elsewhere and use `hyperrun image load` ({'; '.join(reasons)})"
    )


def _tail(output: bytes) -> str:
    return "\n".join(output.decode(errors="replace").strip().splitlines()[-_TAIL_LINES:])
