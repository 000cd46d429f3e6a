"""Write a trusted file tree as a tar stream, in constant memory."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

from hyperruntime.errors import TransferError
from hyperruntime.transfer.tar_reader import BLOCK, CHUNK

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_KINDS = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
}
SPECIAL = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def write_tree(source: Path, fileobj: BinaryIO, arcname: str) -> None:
    """Stream a trusted file, link or directory as a tar archive.

    Symbolic links stay links, hard links become files, and owners are not recorded. FIFOs, sockets and devices
    are skipped. A file that shrinks or grows while it is read is padded with zeros or truncated, so that the
    archive stays valid.

    Args:
        source: path of the tree.
        fileobj: buffered file that receives the archive; never closed.
        arcname: name of the source in the archive.

    Raises:
        TransferError: an entry cannot be read, or the source is a FIFO, a socket or a device.
        BrokenPipeError: the receiver stopped reading.

    Source: GNU tar manual, "Basic Tar Format".
    """
    path = os.fsencode(source)
    try:
        _refuse_special(path, os.lstat(path))
        for entry, name in _walk(path, os.fsencode(arcname)):
            _write_entry(fileobj, entry, name)
        fileobj.write(bytes(2 * BLOCK))
        fileobj.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        where = os.fsdecode(error.filename or path)
        raise TransferError(f"cannot send {where!r}: {error.strerror or error}") from error


def _walk(path: bytes, name: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield ``(path, name in the archive)`` of a tree, parents first, siblings in order."""
    todo = [(path, name)]
    while todo:
        path, name = todo.pop()
        yield path, name
        try:
            children = sorted(os.listdir(path), reverse=True) if stat.S_ISDIR(os.lstat(path).st_mode) else ()
        except FileNotFoundError:
            continue
        todo += [(os.path.join(path, child), os.path.join(name, child)) for child in children]


def _write_entry(file: BinaryIO, path: bytes, name: bytes) -> None:
    """Write one member; skip it if it is special, or if it was removed or replaced meanwhile."""
    try:
        info = os.lstat(path)
        kind = stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFREG:
            _write_file(file, path, name)
        elif kind not in SPECIAL:
            file.write(_header(name, info, os.readlink(path) if kind == stat.S_IFLNK else b""))
    except FileNotFoundError:
        return


def _write_file(file: BinaryIO, path: bytes, name: bytes) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return
        file.write(_header(name, info))
        left = _copy(file, descriptor, info.st_size)
        for at in range(0, left, CHUNK):
            file.write(bytes(min(CHUNK, left - at)))
        file.write(bytes(-info.st_size % BLOCK))
    finally:
        os.close(descriptor)


def _copy(file: BinaryIO, descriptor: int, size: int) -> int:
    """Copy a file's first ``size`` bytes; return how many bytes were missing."""
    buffer = memoryview(bytearray(min(size, CHUNK)))
    while size and (count := os.readv(descriptor, [buffer[:size]])):
        file.write(buffer[:count])
        size -= count
    return size


def _header(name: bytes, info: os.stat_result, link: bytes = b"") -> bytes:
    member = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
    member.type = _KINDS[stat.S_IFMT(info.st_mode)]
    member.size = info.st_size if member.isreg() else 0
    member.mode, member.mtime = stat.S_IMODE(info.st_mode), int(info.st_mtime)
    member.linkname = link.decode("utf-8", "surrogateescape")
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _refuse_special(path: bytes, info: os.stat_result) -> None:
    kind = SPECIAL.get(stat.S_IFMT(info.st_mode))
    if kind is not None:
        raise TransferError(f"cannot send {os.fsdecode(path)!r}: it is {kind}")
