"""Read SIF files, Apptainer's images, without Apptainer.

Source: github.com/apptainer/sif, "pkg/sif": the header and the descriptors of version 01.
"""

from __future__ import annotations

import struct
from pathlib import Path

from hyperruntime.errors import ImageError
from hyperruntime.host.process import run_process
from hyperruntime.json_values import parse_json
from hyperruntime.layers.config import ImageConfig
from hyperruntime.layers.unpack import make_usable

MAGIC = b"SIF_MAGIC"
_HEADER = struct.Struct("<32s10s3s3s16sqqqqqqqq")
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
_MOST_DESCRIPTORS = 1000
_MOST_JSON = 4 * 1024**2
_PARTITION = 0x4004
_JSON = 0x4006
_SQUASHFS = 1
_SYSTEM = (1, 2)  # a system partition; 2 is the one that is run


def is_sif(path: Path) -> bool:
    """Return whether a file is a SIF."""
    with open(path, "rb") as file:
        return MAGIC in file.read(64)


def unpack_sif(sif: Path, rootfs: Path) -> None:
    """Unpack a SIF, or a bare squashfs, as files of this user.

    Args:
        sif: the file to unpack.
        rootfs: the directory to create.

    Raises:
        ImageError: the file is not an image, ``unsquashfs`` is missing, or there is no space.
    """
    args = ["unsquashfs", "-no-progress", "-no-xattrs", "-offset", str(_squashfs_offset(sif))]
    try:
        result = run_process([*args, "-dest", str(rootfs), str(sif)], cwd="/")
    except FileNotFoundError:
        raise ImageError(
            f"{sif} cannot be unpacked: no `unsquashfs` on PATH; install squashfs-tools"
        ) from None
    # 2: a device or an owner could not be restored, which an ordinary user never can.
    if result.exit_code not in (0, 2) or not rootfs.is_dir():
        raise ImageError(f"{sif} cannot be unpacked: {result.error_text}")
    make_usable(rootfs)


def sif_config(sif: Path) -> ImageConfig:
    """Return the configuration of the OCI image that a SIF was made of; an empty one without it."""
    for kind, offset, size, _ in _objects(sif):
        if kind == _JSON and size <= _MOST_JSON:
            with open(sif, "rb") as file:
                file.seek(offset)
                text = file.read(size)
            try:
                raw = parse_json(text)
            except ValueError:
                continue
            if isinstance(raw, dict) and raw.keys() & {"Env", "WorkingDir", "Cmd", "Entrypoint"}:
                return ImageConfig.from_oci(raw)
    return ImageConfig()


def _squashfs_offset(sif: Path) -> int:
    """Return the offset of the root file system in a SIF, in bytes.

    Raises:
        ImageError: the file holds no squashfs root file system.
    """
    with open(sif, "rb") as file:
        if file.read(4) == b"hsqs":
            return 0
    for kind, offset, _, extra in _objects(sif):
        if kind == _PARTITION:
            file_system, use = struct.unpack_from("<ii", extra)
            if file_system == _SQUASHFS and use in _SYSTEM:
                return offset
    raise ImageError(
        f"{sif} holds no squashfs root file system; make it again with `apptainer build`"
    )


def _objects(sif: Path) -> list[tuple[int, int, int, bytes]]:
    """Return the type, the offset, the size and the further facts of each object of a SIF."""
    with open(sif, "rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or MAGIC not in head:
            return []
        *_, total, offset, _, _, _ = _HEADER.unpack(head)
        file.seek(max(offset, 0))
        found = []
        for _ in range(min(total, _MOST_DESCRIPTORS)):
            raw = file.read(_DESCRIPTOR.size)
            if len(raw) < _DESCRIPTOR.size:
                break
            kind, used, _, _, _, at, size, *_, extra = _DESCRIPTOR.unpack(raw)
            if used and at >= 0 and size >= 0:
                found.append((kind, at, size, extra))
        return found
