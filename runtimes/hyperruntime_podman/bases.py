"""Get the images that a build names before the build, and check what they do in it.

An image may have instructions for builds from it (ONBUILD), which Podman runs as if the Dockerfile
said so: ``COPY --from=docker-archive:FILE`` of an image from a registry reads a file of this
machine. No command of Podman shows them, so they are read where it keeps the image, or from a saved
copy.
"""

from __future__ import annotations

import base64
import json
import platform
import re
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hyperruntime.errors import ImageError, SpecError
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.process import ProcessResult
from hyperruntime.images.dockerfile import read_dockerfile
from hyperruntime.images.dockerfile_bases import AUTOMATIC, NamedImage, named_images
from hyperruntime.images.dockerfile_checks import check_triggers
from hyperruntime.images.pull_errors import is_loopback
from hyperruntime_podman.edge import inspect_image, run_podman, stream_podman
from hyperruntime_podman.own_store import user_store

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_VARIANTS = {"arm": "7", "arm64": "8"}


def get_bases(
    dockerfile: Path, context: Path, own: str, on_output: Callable[[str], None]
) -> ProcessResult | None:
    """Pull the images that a Dockerfile names and that are missing, and check them all; return a
    pull that failed.

    Args:
        dockerfile: a checked Dockerfile.
        context: the build context.
        own: a name that stands for no image.
        on_output: called with each line of output.

    Raises:
        SpecError: an image would do in the build what its Dockerfile may not.
    """
    for named in dict.fromkeys(named_images(read_dockerfile(dockerfile))):
        if named.reference == own:
            continue
        image = NamedImage(
            AUTOMATIC.sub(_platform_value, named.reference), AUTOMATIC.sub("", named.platform)
        )
        configuration = _found(image)
        if configuration is None:
            plain_http = ["--tls-verify=false"] if is_loopback(image.reference) else []
            platform_args = ["--platform", image.platform] if image.platform else []
            args = ["pull", *plain_http, *platform_args, "--", image.reference]
            result = stream_podman(args, on_output)
            if result.exit_code != 0:
                return result
            configuration = _found(NamedImage(image.reference))
        if configuration is not None:
            check_triggers(image.reference, triggers_of(configuration), context)
    return None


def _platform_value(found: re.Match[str]) -> str:
    name = found[2].removeprefix("TARGET").removeprefix("BUILD")
    values = {"OS": "linux", "ARCH": _ARCHITECTURES.get(platform.machine(), "")}
    if not values.get(name):
        raise SpecError(
            "Containerfile",
            f"FROM ...{found[0]}",
            "on Podman, a base may have only TARGETARCH and TARGETOS",
        )
    return values[name]


def _found(image: NamedImage) -> bytes | None:
    """Return the configuration of an image of Podman's store; None if it has none for the
    platform.
    """
    known = inspect_image(image.reference)
    if known is None:
        return None
    configuration = _configuration(str(known["Id"]).removeprefix("sha256:"))
    return configuration if not image.platform or is_for(image.platform, configuration) else None


def is_for(platform_name: str, configuration: bytes) -> bool:
    """Return whether an image is for a platform, with the default variants that Podman uses.

    Args:
        platform_name: such as ``linux/arm64/v8``.
        configuration: JSON of the image.
    """
    try:
        found = dict(json.loads(configuration))
    except (ValueError, TypeError, RecursionError):  # hostile JSON
        return False
    return _normal(*platform_name.lower().split("/")) == _normal(
        *(str(found.get(name) or "") for name in ("os", "architecture", "variant"))
    )


def _normal(system: str, architecture: str = "", variant: str = "", *more: str) -> tuple[str, ...]:
    known = _ARCHITECTURES.get(architecture, architecture)
    number = variant.removeprefix("v") or _VARIANTS.get(known, "")
    return (system, known, number, *more)


def triggers_of(configuration: bytes) -> list[str]:
    """Return the instructions that an image has for builds from it.

    Args:
        configuration: JSON of the image.
    """
    found: list[Any] = []

    # Podman ignores the case of names, and joins objects
    def note(pairs: list[tuple[str, Any]]) -> None:
        found.extend(value for name, value in pairs if name.casefold() == "onbuild" and value)

    try:
        json.loads(configuration, object_pairs_hook=note)
    except (ValueError, RecursionError):  # hostile JSON; this is no instruction
        return ["?"]
    return [
        str(trigger)
        for value in found
        for trigger in (value if isinstance(value, list) else [value])
    ]


def _configuration(identifier: str) -> bytes:
    key = base64.b64encode(f"sha256:{identifier}".encode()).decode()
    # it may be in another store, which Podman only reads
    with suppress(OSError):
        if (store := user_store()) is not None:
            place = Path(store.root, f"{store.driver}-images", identifier)
            return (place / f"={key}").read_bytes()
    return _saved_configuration(identifier)


def _saved_configuration(identifier: str) -> bytes:
    with owned_directory() as directory:
        archive = Path(directory) / "image.tar"
        args = [
            "save",
            "--quiet",
            "--format",
            "docker-archive",
            "--output",
            str(archive),
            identifier,
        ]
        result = run_podman(args, None)
        if result.exit_code != 0:
            raise ImageError(f"image {identifier} cannot be read for a build: {result.error_text}")
        with tarfile.open(archive) as tar:
            member = json.loads(_member(tar, "manifest.json"))[0]["Config"]
            return _member(tar, member)


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()
