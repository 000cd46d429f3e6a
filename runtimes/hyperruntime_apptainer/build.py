"""Make SIF files with ``apptainer build``, and find another engine that can build Containerfiles."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from hyperruntime import registry
from hyperruntime.driver import Driver
from hyperruntime.errors import HyperRuntimeError, ImageError
from hyperruntime.host.engine_program import csv_line
from hyperruntime.host.process import run_process
from hyperruntime_apptainer.archive import SavedImage, extract_sif, write_single
from hyperruntime_apptainer.args import environment
from hyperruntime_apptainer.scratch import scratch_directory

# Several times faster than the default; the file is a tenth larger.
_FAST = ("--mksquashfs-args", "-comp gzip -Xcompression-level 1")
# Without the cache: two concurrent builds can corrupt it.
BUILD = ("build", "--disable-cache", "--force", *_FAST)
_CREDENTIALS = ("APPTAINER_DOCKER_USERNAME", "APPTAINER_DOCKER_PASSWORD", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE")
_KEPT = ("SSL_CERT_FILE", "SSL_CERT_DIR", *_CREDENTIALS)
BUILDERS = ("podman", "docker")


def tool_environment() -> dict[str, str]:
    """Return the environment for image builds: the user's, without variables that change Apptainer's behaviour."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.lower().endswith("_proxy")}
    scratch = scratch_directory()
    return {**environment(os.environ), **kept, "APPTAINER_TMPDIR": scratch, "TMPDIR": scratch}


def sif_from_archive(image: SavedImage, directory: Path) -> None:
    """Write one image of an archive to ``image.sif``, converted unless the archive has a SIF.

    Args:
        image: the image.
        directory: takes the SIF, and a temporary archive.

    Raises:
        ImageError: Apptainer failed, or the archive is damaged.
    """
    if image.has_sif:
        extract_sif(image, directory / "image.sif")
        return
    path = image.path
    if image.entry is not None:
        path = directory / "one.tar"
        write_single(image, path)
    make_sif(directory / "image.sif", f"{image.kind}:{path}", f"the image {image.reference} of {image.path}")


def make_sif(sif: Path, source: str, what: str) -> None:
    """Make a SIF of a directory or an archive.

    Args:
        sif: the file to write.
        source: the directory, or the kind and the path of the archive.
        what: the source, for the error message.

    Raises:
        ImageError: Apptainer failed.
    """
    result = run_process(["apptainer", "--silent", *BUILD, str(sif), source], cwd="/", env=tool_environment())
    if result.exit_code != 0 or not sif.is_file():
        raise ImageError(f"{what} cannot be converted to a SIF: {result.error_text}")


def own_temporary(place: Path) -> list[str]:
    """Return the options that hide the host's temporary directories from the steps of a build.

    Args:
        place: takes the directories that the steps get instead.
    """
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


def bases(containerfile: str) -> tuple[str, ...]:
    """Return the base images of a Containerfile's stages; bases with a variable are left out."""
    return tuple(re.findall(r"^\s*FROM\s+(?:--\S+\s+)*([^\s$]+)(?:\s|$)", containerfile, re.IGNORECASE | re.MULTILINE))


def find_builder() -> tuple[Driver | None, str]:
    """Return the first driver of an engine that can build Containerfiles and works here; or None and the reasons."""
    reasons = []
    for name in BUILDERS:
        try:
            driver = registry.load_driver(name)
            driver.probe()
        except HyperRuntimeError as error:
            reasons.append(str(error))
            continue
        return driver, ""
    return None, "; ".join(reasons)
