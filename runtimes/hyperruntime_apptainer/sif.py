"""Make SIF files with ``apptainer build``."""

from __future__ import annotations

import os
from pathlib import Path

from hyperruntime.errors import ImageError
from hyperruntime.host.process import run_process
from hyperruntime_apptainer.archive import SavedImage, write_single
from hyperruntime_apptainer.scratch import scratch_directory

# Several times faster than the default; the file is a tenth larger.
_FAST = ("--mksquashfs-args", "-comp gzip -Xcompression-level 1")
# Without the cache: two concurrent builds can corrupt it.
BUILD = ("apptainer", "--silent", "build", "--disable-cache", "--force", *_FAST)
_CREDENTIALS = ("APPTAINER_DOCKER_USERNAME", "APPTAINER_DOCKER_PASSWORD", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE")
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR", *_CREDENTIALS)


def tool_environment() -> dict[str, str]:
    """Return the environment for image builds: the user's, without variables that change Apptainer's behaviour."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.lower().endswith("_proxy")}
    scratch = scratch_directory()
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **kept, "APPTAINER_TMPDIR": scratch, "TMPDIR": scratch}


def sif_from_directory(rootfs: Path, sif: Path) -> None:
    """Pack a directory into a SIF.

    Args:
        rootfs: the root file system.
        sif: the file to write.

    Raises:
        ImageError: Apptainer failed.
    """
    _build(sif, str(rootfs), f"the directory {rootfs}")


def sif_from_archive(image: SavedImage, sif: Path) -> None:
    """Convert one image of an archive to a SIF.

    Args:
        image: the image.
        sif: the file to write; its directory also takes a temporary archive.

    Raises:
        ImageError: Apptainer failed.
    """
    path = image.path
    if image.entry is not None:
        path = sif.with_name("one.tar")
        write_single(image, path)
    _build(sif, f"{image.kind}:{path}", f"the image {image.reference} of {image.path}")
    if path != image.path:
        path.unlink()


def _build(sif: Path, source: str, what: str) -> None:
    result = run_process([*BUILD, str(sif), source], cwd="/", env=tool_environment())
    if result.exit_code != 0 or not sif.is_file():
        raise ImageError(f"{what} cannot be converted to a SIF: {result.error_text}")
