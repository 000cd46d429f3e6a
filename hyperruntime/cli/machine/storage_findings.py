"""Check where temporary files and images are kept: what that costs, and what it cannot hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hyperruntime.driver import Finding
from hyperruntime.host.batch_job import memory_limit_bytes
from hyperruntime.host.temporary import SCRATCH, STEP, candidates, file_system, scratch_directory
from hyperruntime.layers.one_file import VARIABLE as FORMAT
from hyperruntime.layers.store import VARIABLE as IMAGES
from hyperruntime.layers.store import Store
from hyperruntime.units import GIB, format_size

_MEMORY = ("tmpfs", "ramfs")
# An unpacked `base` has 7,000 files in 200 MiB, `dev` 12,000 in 240 MiB.
_IMAGE_FILES = 15_000
_IMAGE_BYTES = 1 * GIB


def storage_findings() -> Iterator[Finding]:
    """Yield a finding for all that is unusual; none with local disks and much space."""
    used = scratch_directory()
    for name, path, why in candidates():
        if path == used and not why:
            break
        if why:
            chosen = name == SCRATCH
            step = STEP if chosen else f"none needed, or {STEP}"
            detail = f"{path} is left out: {why}; temporary files go to {used}"
            yield Finding(subject=name, ok=False if chosen else None, detail=detail, next_step=step)
    yield from _in_memory(used)
    yield from _image_store(Store().root)


def _in_memory(used: str) -> Iterator[Finding]:
    """Report a directory for temporary files that is memory."""
    if (kind := file_system(used)) not in _MEMORY:
        return
    limit = memory_limit_bytes()
    whose = f"the {format_size(limit)} of this job" if limit else "the memory of this machine"
    detail = f"{used} is memory ({kind}): layers, builds and scratch files there count to {whose}"
    yield Finding(subject="temporary files", ok=None, detail=detail, next_step=STEP)


def _image_store(root: Path) -> Iterator[Finding]:
    """Report a file system of the image store that holds no further image."""
    place = next(path for path in (root, *root.parents) if path.exists())
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    few_files = status.f_files > 0 and status.f_favail < _IMAGE_FILES
    if not few_files and free >= _IMAGE_BYTES:
        return
    have = (
        f"{format_size(free)} and {status.f_favail:,} files"
        if status.f_files
        else format_size(free)
    )
    detail = f"{root} has room for {have} more; an unpacked image has 7,000 files and more"
    step = f"set {IMAGES} to a directory on another disk"
    if few_files:
        step += f", or {FORMAT}=squashfs for one file for each image"
    yield Finding(subject="image store", ok=None, detail=detail, next_step=step)
