"""Build the argv that pulls an image from a registry: pure, no I/O. Source: apptainer-build(1) of 1.4."""

from __future__ import annotations

from hyperruntime.images.pull_errors import is_loopback
from hyperruntime_apptainer.sif import BUILD
from hyperruntime_apptainer.store import with_tag


def pull_args(reference: str, sif: str) -> list[str]:
    """Return the argv that pulls an image as a SIF; plain HTTP is allowed for loopback registries.

    Args:
        reference: the image to pull.
        sif: the path of the SIF to write.
    """
    plain = ["--no-https"] if is_loopback(reference) else []
    return [*(word for word in BUILD if word != "--silent"), *plain, sif, f"docker://{with_tag(reference)}"]
