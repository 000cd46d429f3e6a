"""The tree of a container as an archive on disk, for frameworks that keep snapshots of a workspace."""

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
from hyperruntime.transfer.copy import DEFAULT_LIMITS, DEFAULT_TIMEOUT_S
from hyperruntime.transfer.tar_reader import Member, TarReader

# GNU tar can store hard links as files, which is all that many readers accept. It exits with 1 if a file changed.
_PACK = """tar --hard-dereference -cf /dev/null -T /dev/null 2>/dev/null && hard=--hard-dereference
tar $hard -cf - -C "$1" -- "$2"; code=$?
[ "$code$hard" = 1--hard-dereference ] || exit $code"""
_UNPACK = 'mkdir -p -- "$1" && exec tar -xf - -C "$1"'


async def archive_tree(
    container: Container, path: str, *, exclude: Collection[str] = (), limit_bytes: int = DEFAULT_LIMITS.max_bytes
) -> BinaryIO:
    """Return a tar archive of a directory, as a file at its start; names begin with the name of the directory.

    The container is not trusted. Names, kinds and links are those that it wrote, so check them before they are used.
    Headers have a bounded size, which ``tarfile`` relies on.

    Args:
        container: the container; its image needs ``tar``.
        path: absolute path of the directory.
        exclude: paths below it to leave out, with all that is in them.
        limit_bytes: most bytes that the archive may have.

    Raises:
        TransferError: the directory cannot be read, or the archive is corrupt or has more than ``limit_bytes``.
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
                if taken > limit_bytes:
                    raise UnsafeArchiveError(f"the archive of {path!r} has more than {limit_bytes} bytes; remove files")
                archive.write(chunk)

        args = ["/bin/sh", "-c", _PACK, "sh", parent, name or "."]
        done = await container.aexec(args, on_output=take, output_limit_bytes=65536, timeout_s=DEFAULT_TIMEOUT_S)
        _check(done, f"archive {path!r}")
        return await asyncio.to_thread(_checked, archive, {posixpath.join(name or ".", part) for part in exclude})
    except BaseException:
        archive.close()
        raise


async def extract_archive(container: Container, archive: IO[bytes] | io.IOBase, path: str) -> None:
    """Extract a tar archive into a directory of a container, which is made if it is missing.

    An archive with a name or a link that leads out of the directory, a device or a FIFO is refused as a whole.

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
    if member.kind == "symlink" and (member.link.startswith(b"/") or target.split(b"/")[0] == b".."):
        return "a symbolic link that leads out of the directory"
    return member.problem


def _checked(archive: BinaryIO, exclude: set[str]) -> BinaryIO:
    archive.seek(0)
    for _ in TarReader(archive):  # refuses a header that would fill the memory of the next reader
        pass
    archive.seek(0)
    if not exclude:
        return archive
    rest = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - returned
    with archive, tarfile.open(fileobj=archive) as source, tarfile.open(fileobj=rest, mode="w") as target:
        for member in source:
            parts = member.name.split("/")
            if not exclude & {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}:
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
    rest.seek(0)
    return rest


def _check(result: ExecResult, what: str) -> None:
    if result.timed_out:
        raise TransferError(f"cannot {what}: it took longer than {DEFAULT_TIMEOUT_S:g} s")
    if result.exit_code != 0:
        why = result.stderr.decode(errors="replace").strip().splitlines() or ["tar failed"]
        raise TransferError(f"cannot {what}: {why[0]}")
