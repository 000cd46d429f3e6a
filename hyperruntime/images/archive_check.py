"""Check that a file is a saved image, before an engine reads it."""

from __future__ import annotations

import tarfile
from pathlib import Path

from hyperruntime.errors import ImageError, SpecError

# Source: the Docker image specification 1.2 ("Combined Image JSON + Filesystem Changeset Format"),
# OCI image layout.
_MANIFESTS = frozenset({"manifest.json", "index.json"})


def check_archive(path: Path) -> None:
    """Raise an error if a file is not a saved image; the engine checks compressed files and its own
    formats.

    Raises:
        SpecError: the file does not exist.
        ImageError: the file cannot be read, is empty, or does not hold an image.
    """
    if not path.is_file():
        raise SpecError(
            "archive",
            str(path),
            "name a file made by `hyperrun image save`, `podman save` or `docker save`",
        )
    try:
        if not path.stat().st_size:
            raise ImageError(
                f"{path} cannot be loaded as an image: it is empty; save the image again"
            )
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            found = any(member.name.removeprefix("./") in _MANIFESTS for member in tar)
    except tarfile.TarError:
        return
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {error}") from error
    if not found:
        raise ImageError(
            f"{path} cannot be loaded as an image: it is a tar without an image manifest (a "
            "root file system?); create it with `hyperrun image save`, `podman save` or `docker "
            "save`"
        )
