"""Make SIF files with Apptainer."""

from __future__ import annotations

import os
from pathlib import Path

from hyperruntime.errors import ImageError
from hyperruntime.host.process import run_process
from hyperruntime_apptainer.archive import SavedImage, write_single
from hyperruntime_apptainer.scratch import scratch_directory

# Several times faster to make than the default, for a file that is a tenth larger.
_FAST = ("--mksquashfs-args", "-comp gzip -Xcompression-level 1")
# Two builds that share Apptainer's cache may corrupt it; these use none.
BUILD = ("apptainer", "--silent", "build", "--disable-cache", "--force", *_FAST)
_CREDENTIALS = ("APPTAINER_DOCKER_USERNAME", "APPTAINER_DOCKER_PASSWORD", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE")
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR", *_CREDENTIALS)


def tool_environment() -> dict[str, str]:
    """Return the environment in which Apptainer makes images: the user's, but no variable that changes how it works."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.lower().endswith("_proxy")}
    scratch = scratch_directory()
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **kept, "APPTAINER_TMPDIR": scratch, "TMPDIR": scratch}


def sif_from_directory(rootfs: Path, sif: Path) -> None:
    """Pack a directory into a SIF.

    Raises:
        ImageError: Apptainer could not.
    """
    _build(sif, str(rootfs), f"the directory {rootfs}")


def sif_from_archive(image: SavedImage, sif: Path) -> None:
    """Turn one image of an archive into a SIF.

    Raises:
        ImageError: Apptainer could not.
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
        raise ImageError(f"{what} cannot be made a SIF: {result.error_text}")
