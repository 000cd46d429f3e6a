"""Turn a trusted file tree into a tar stream, in constant memory."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress

from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.errors import TransferError
from hyperruntime.storage.tar_reader import BLOCK, CHUNK

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


def read_tree(source: Path, arcname: str) -> Iterator[bytes]:
    """Yield the tar archive of a trusted file, link or directory: parents first, siblings in order;
    no chunk is empty.

    Symbolic links stay links, hard links become files, and owners are not recorded. FIFOs, sockets
    and devices are skipped. A file that shrinks or grows while it is read is padded with zeros or
    truncated, so that the archive stays valid.

    Args:
        source: path of the tree.
        arcname: name of the source in the archive.

    Raises:
        TransferError: an entry cannot be read, or the source is a FIFO, a socket or a device.

    Source: GNU tar manual, "Basic Tar Format".
    """
    path = os.fsencode(source)
    try:
        special = SPECIAL.get(stat.S_IFMT(os.lstat(path).st_mode))
        if special is not None:
            raise TransferError(f"cannot send {os.fsdecode(path)!r}: it is {special}")
        todo = [(path, os.fsencode(arcname))]
        while todo:
            entry, name = todo.pop()
            with suppress(FileNotFoundError):  # removed meanwhile
                info = os.lstat(entry)
                kind = stat.S_IFMT(info.st_mode)
                if kind == stat.S_IFREG:
                    yield from _read_file(entry, name)
                elif kind not in SPECIAL:
                    yield _header(name, info, os.readlink(entry) if kind == stat.S_IFLNK else b"")
                if kind == stat.S_IFDIR:
                    children = sorted(os.listdir(entry), reverse=True)
                    todo += [
                        (os.path.join(entry, child), os.path.join(name, child))
                        for child in children
                    ]
        yield bytes(2 * BLOCK)
    except OSError as error:
        where = os.fsdecode(error.filename or path)
        raise TransferError(f"cannot send {where!r}: {error.strerror or error}") from error


def _read_file(path: bytes, name: bytes) -> Iterator[bytes]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with closing_descriptor(os.open(path, flags)) as descriptor:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return
        yield _header(name, info)
        left = info.st_size
        while left > 0:
            wanted = min(left, CHUNK)
            chunk = os.read(descriptor, wanted) or bytes(wanted)
            yield chunk
            left -= len(chunk)
        if info.st_size % BLOCK:
            yield bytes(-info.st_size % BLOCK)


def _header(name: bytes, info: os.stat_result, link: bytes = b"") -> bytes:
    member = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
    member.type = _KINDS[stat.S_IFMT(info.st_mode)]
    member.size = info.st_size if member.isreg() else 0
    member.mode = stat.S_IMODE(info.st_mode)
    member.mtime = int(info.st_mtime)
    member.linkname = link.decode("utf-8", "surrogateescape")
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
