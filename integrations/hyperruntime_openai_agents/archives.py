"""The tree of a container as an archive on disk: a snapshot of a workspace."""

from __future__ import annotations

import asyncio
import io
import posixpath
import shutil
import tarfile
import tempfile
from collections.abc import Collection
from typing import IO, BinaryIO, cast

from hyperruntime.container import Container
from hyperruntime.errors import TransferError, UnsafeArchiveError
from hyperruntime.exec.options import Stream
from hyperruntime.spec import ExecResult, check_inside_path
from hyperruntime.storage.tar_reader import BLOCK, Kind, Member, TarReader
from hyperruntime.transfer.copy import DEFAULT_LIMITS, DEFAULT_TIMEOUT_S
from hyperruntime.transfer.tar_writer import SPECIAL
from hyperruntime.units import MIB

# GNU tar can store hard links as files, which is all that many readers accept. It exits with 1 if a
# file changed.
_PACK = """tar --hard-dereference -cf /dev/null -T /dev/null 2>/dev/null && hard=--hard-dereference
tar $hard -cf - -C "$1" -- "$2"; code=$?
[ "$code$hard" = 1--hard-dereference ] || exit $code"""
# of long names and attributes: a reader may keep those of all members
_MOST_RECORD_BYTES = 64 * MIB
_MOST_BYTES = DEFAULT_LIMITS.max_bytes
_TYPES: dict[Kind, bytes] = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
}
_UNPACK = 'mkdir -p -- "$1" && exec tar -xf - -C "$1"'


async def archive_tree(
    container: Container, path: str, *, exclude: Collection[str] = ()
) -> BinaryIO:
    """Return a tar archive of a directory, as a file at its start; names begin with the name of the
    directory.

    The container is not trusted, so the archive is written on the host: files, directories and
    links, with their modes, owners as numbers, and whole seconds of their times. FIFOs and devices
    are skipped. Names are below the directory; targets of links are those that the container wrote,
    so check them before they are used.

    Args:
        container: the container; its image needs ``tar``.
        path: absolute path of the directory.
        exclude: paths below it to leave out, with all that is in them.

    Raises:
        TransferError: the directory cannot be read, or the archive is corrupt.
        UnsafeArchiveError: the archive is too large, has too many members, or a sparse file.
        HyperRuntimeError: as :meth:`~hyperruntime.container.Container.exec`.
    """
    check_inside_path("path", path)
    parent, name = posixpath.split(posixpath.normpath(path))
    archive = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - returned
    try:
        taken = 0

        def take(stream: Stream, chunk: bytes) -> None:
            nonlocal taken
            if stream == "stdout":
                taken += len(chunk)
                if taken > _MOST_BYTES:
                    raise UnsafeArchiveError(
                        f"the archive of {path!r} has more than {_MOST_BYTES} bytes; remove files"
                    )
                archive.write(chunk)

        args = ["/bin/sh", "-c", _PACK, "sh", parent, name or "."]
        done = await container.aexec(
            args, on_output=take, output_limit_bytes=65536, timeout_s=DEFAULT_TIMEOUT_S
        )
        _check(done, f"archive {path!r}")
        root = name or "."
        left_out = {posixpath.join(root, part) for part in exclude}
        return await asyncio.to_thread(_rewrite, archive, root, left_out, path)
    except BaseException:
        archive.close()
        raise


async def extract_archive(container: Container, archive: IO[bytes] | io.IOBase, path: str) -> None:
    """Extract a tar archive into a directory of a container, which is made if it is missing.

    An archive with a name or a link that leads out of the directory, a device or a FIFO is refused
    as a whole.

    Args:
        container: the container; its image needs ``tar``.
        archive: read from where it stands to its end; kept on disk meanwhile.
        path: absolute path of the directory.

    Raises:
        UnsafeArchiveError: a member is refused.
        TransferError: it is not a tar archive, or the container's ``tar`` failed.
        HyperRuntimeError: as :meth:`~hyperruntime.container.Container.exec`.
    """
    check_inside_path("path", path)
    args = ["/bin/sh", "-c", _UNPACK, "sh", path]
    with tempfile.TemporaryFile() as copy:
        await asyncio.to_thread(_copy_safe, archive, copy)
        done = await container.aexec(args, input=cast(BinaryIO, copy), timeout_s=DEFAULT_TIMEOUT_S)
    _check(done, f"extract into {path!r}")


def _copy_safe(archive: IO[bytes] | io.IOBase, copy: IO[bytes]) -> None:
    shutil.copyfileobj(archive, copy)
    copy.seek(0)
    for member in TarReader(cast(BinaryIO, copy)):
        if problem := _problem(member):
            name = member.name.decode(errors="replace")
            raise UnsafeArchiveError(f"the archive is refused because of {name!r}: {problem}")
    copy.seek(0)


def _problem(member: Member) -> str:
    parts = [part for part in member.name.split(b"/") if part not in (b"", b".")]
    names = [member.name, *([member.link] if member.kind == "hardlink" else [])]
    if any(name.startswith(b"/") or b".." in name.split(b"/") for name in names):
        return "a name that leads out of the directory"
    target = posixpath.normpath(b"/".join([*parts[:-1], member.link]))
    if member.kind == "symlink" and (
        member.link.startswith(b"/") or target.split(b"/")[0] == b".."
    ):
        return "a symbolic link that leads out of the directory"
    return member.problem


def _rewrite(archive: BinaryIO, root: str, exclude: set[str], path: str) -> BinaryIO:
    """Copy the members of a hostile archive into a new one: two readers can see different members
    in the old one.
    """
    archive.seek(0)
    target = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - returned
    try:
        reader = TarReader(archive)
        for count, member in enumerate(reader, 1):
            name = member.name.decode("utf-8", "surrogateescape").rstrip("/")
            if count > DEFAULT_LIMITS.max_members or reader.record_bytes > _MOST_RECORD_BYTES:
                most = f"{DEFAULT_LIMITS.max_members} members, or their names are too long"
                raise UnsafeArchiveError(
                    f"the archive of {path!r} has more than {most}; remove files"
                )
            if member.problem in SPECIAL.values():
                continue
            if problem := _problem_below(root, name, member):
                raise UnsafeArchiveError(
                    f"the archive of {path!r} is refused because of {name[:300]!r}: {problem}"
                )
            parts = name.split("/")
            if not exclude & {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}:
                _write(target, name, member, reader)
        target.write(bytes(2 * BLOCK))
        target.seek(0)
    except BaseException:
        target.close()
        raise
    archive.close()
    return target


def _problem_below(root: str, name: str, member: Member) -> str:
    first, *rest = name.split("/")
    if first != root or {"", ".", ".."} & set(rest) or b"\0" in member.name + member.link:
        return "a name that is not below the directory"
    return member.problem


def _write(target: BinaryIO, name: str, member: Member, reader: TarReader) -> None:
    header = tarfile.TarInfo(name)
    header.type = _TYPES[member.kind]
    header.size = member.size
    header.mode = member.mode & 0o7777
    header.mtime = member.mtime_ns // 1_000_000_000
    header.uid, header.gid = member.owner
    header.linkname = (
        member.link.decode("utf-8", "surrogateescape")
        if member.kind in ("symlink", "hardlink")
        else ""
    )
    target.write(header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
    for chunk in reader.data():
        target.write(chunk)
    target.write(bytes(-member.size % BLOCK))


def _check(result: ExecResult, what: str) -> None:
    if result.timed_out:
        raise TransferError(f"cannot {what}: it took longer than {DEFAULT_TIMEOUT_S:g} s")
    if result.exit_code != 0:
        why = result.stderr.decode(errors="replace").strip().splitlines() or ["tar failed"]
        raise TransferError(f"cannot {what}: {why[0]}")
