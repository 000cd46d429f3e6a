"""Images of one read-only file each, where the number of files is limited or costs time: squashfs.

An option of the store. ``rootfs`` of such an image is an empty directory, and the point where the
file beside it is mounted: in the namespace of a container, or of a program that reads the files.

Source: mksquashfs(1), squashfuse(1), setpriv(1).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from hyperruntime.errors import ImageError, SpecError
from hyperruntime.host.process import find_program, run_process
from hyperruntime.layers.owners import as_root_inside, has_all_ids

VARIABLE = "HYPERRUNTIME_IMAGE_FORMAT"
PROGRAM = "squashfuse_ll"
SUFFIX = ".squashfs"
_DEVICE = "/dev/fuse"
_FORMATS = ("directory", "squashfs")
# Ends with the program that reads, which this shell becomes.
_READ = """\
program=$1 file=$2 tree=$3
shift 3
before=$(stat -c %d "$tree")
setpriv --pdeathsig KILL "$program" -f -o allow_other "$file" "$tree" </dev/null >/dev/null &
while [ "$(stat -c %d "$tree")" = "$before" ]; do
    kill -0 $! || exit
    sleep 0.01
done
exec "$@"
"""


def is_wanted() -> bool:
    """Return whether new images are files.

    Raises:
        SpecError: the variable has another value.
    """
    value = os.environ.get(VARIABLE) or _FORMATS[0]
    if value not in _FORMATS:
        raise SpecError(VARIABLE, value, f"one of {', '.join(_FORMATS)}")
    return value == _FORMATS[1]


def can_mount() -> bool:
    """Return whether such a file can be mounted here."""
    return os.access(_DEVICE, os.R_OK | os.W_OK) and find_program(PROGRAM) is not None


def mount_of(tree: str) -> tuple[str, ...]:
    """Return the program, the file and the mount point that a tree needs; nothing if it has its
    files.

    Raises:
        ImageError: it needs them, and no program here mounts the file.
    """
    file = f"{tree}{SUFFIX}"
    if not os.path.exists(file):
        return ()
    program = find_program(PROGRAM)
    if program is None:
        raise ImageError(f"{file} cannot be mounted: no `{PROGRAM}` on PATH; install squashfuse")
    return program, file, tree


def mounting(trees: Iterable[str], args: Sequence[str]) -> list[str]:
    """Return the argv of a program that reads trees, in a mount namespace of its own.

    Raises:
        ImageError: one cannot be mounted.
    """
    found = list(args)
    for words in map(mount_of, trees):
        found = ["/bin/sh", "-c", _READ, "read", *words, *found] if words else found
    return found


def write(rootfs: Path, file: Path) -> Path:
    """Write a tree to one file, with the owners that a container sees; return the file's path.

    Raises:
        ImageError: it cannot be written.
    """
    args = [_found("mksquashfs"), str(rootfs), str(file), "-no-progress", "-quiet"]
    args += [] if has_all_ids() else ["-all-root"]
    done = run_process(as_root_inside(args), cwd="/")
    if done.exit_code != 0:
        raise ImageError(f"{file} cannot be written: {done.error_text}; free space there")
    return file


def unpack(file: Path, rootfs: Path) -> None:
    """Unpack a file of :func:`write`.

    Raises:
        ImageError: it cannot be unpacked.
    """
    args = [_found("unsquashfs"), "-no-progress", "-quiet", "-dest", str(rootfs), str(file)]
    done = run_process(as_root_inside(args), cwd="/")
    if done.exit_code not in (0, 2):  # 2: labels that an ordinary user may not set
        raise ImageError(f"{file} cannot be unpacked: {done.error_text}; free space there")


def _found(program: str) -> str:
    path = find_program(program)
    if path is None:
        why = f"no `{program}` on PATH; install squashfs-tools"
        raise ImageError(f"an image of one file ({VARIABLE}) needs it: {why}")
    return path
