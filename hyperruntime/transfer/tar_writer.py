"""Write a trusted file tree as a tar stream, in constant memory."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, cast

from hyperruntime.errors import TransferError
from hyperruntime.transfer.tar_reader import BLOCK, CHUNK

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Refusals = tuple[tuple[str, str], ...]

_SMALL_BYTES = 64 * 1024
_KINDS = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
}
_SPECIAL = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def write_tree(source: Path, fileobj: BinaryIO, arcname: str) -> Refusals:
    """Stream a trusted file, link or directory as a tar archive; return the entries that were skipped or altered.

    Symbolic links stay links, hard links become files, and owners are not recorded. FIFOs, sockets and devices
    are skipped. A file that shrinks or grows while it is read is padded with zeros or truncated, so that the
    archive stays valid.

    Args:
        source: path of the tree.
        fileobj: receives the archive; never closed.
        arcname: name of the source in the archive.

    Returns:
        ``(name in the archive, reason)`` for each entry that was skipped or altered.

    Raises:
        TransferError: an entry cannot be read, or the source is a FIFO, a socket or a device.
        BrokenPipeError: the receiver stopped reading.

    Source: GNU tar manual, "Basic Tar Format".
    """
    sink, path, notes = _Sink(fileobj), os.fsencode(source), []
    try:
        _refuse_special(path, os.lstat(path))
        for entry, name in _walk(path, os.fsencode(arcname)):
            note = _write_entry(sink, entry, name)
            if note:
                notes.append((os.fsdecode(name), note))
        sink.write(bytes(2 * BLOCK))
        sink.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        where = os.fsdecode(error.filename or path)
        raise TransferError(f"cannot send {where!r}: {error.strerror or error}") from error
    return tuple(notes)


class _Sink:
    """Buffers small writes to a file object, which may be unbuffered; passes large writes on."""

    def __init__(self, fileobj: BinaryIO) -> None:
        self._fileobj = fileobj
        self._small = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        if len(self._small) + len(data) > _SMALL_BYTES:
            self.flush_small()
        if len(data) > _SMALL_BYTES:
            self._pass_on(memoryview(data))
        else:
            self._small += data

    def flush(self) -> None:
        self.flush_small()
        self._fileobj.flush()

    def flush_small(self) -> None:
        small, self._small = self._small, bytearray()
        self._pass_on(memoryview(small))

    def _pass_on(self, view: memoryview) -> None:
        while view:
            written = cast(int | None, self._fileobj.write(view))  # an unbuffered file may write only a part
            view = view[len(view) if written is None else written :]


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


def _write_entry(sink: _Sink, path: bytes, name: bytes) -> str:
    """Write one member; return why it was skipped or altered, or an empty string."""
    try:
        info = os.lstat(path)
        kind = stat.S_IFMT(info.st_mode)
        if kind in _SPECIAL:
            return f"{_SPECIAL[kind]} cannot be sent"
        if kind == stat.S_IFREG:
            return _write_file(sink, path, name)
        link = os.readlink(path) if kind == stat.S_IFLNK else b""
    except FileNotFoundError:
        return "it was removed while the tree was read"
    sink.write(_header(name, info, link))
    return ""


def _write_file(sink: _Sink, path: bytes, name: bytes) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return "it was replaced by another kind of entry while the tree was read"
        sink.write(_header(name, info))
        left = _copy(sink, descriptor, info.st_size)
        for at in range(0, left, CHUNK):
            sink.write(bytes(min(CHUNK, left - at)))
        sink.write(bytes(-info.st_size % BLOCK))
        grew = not left and os.fstat(descriptor).st_size > info.st_size
    finally:
        os.close(descriptor)
    if left:
        return f"it shrank while it was read: its last {left} bytes are zeros"
    return "it grew while it was read: its end is missing" if grew else ""


def _copy(sink: _Sink, descriptor: int, size: int) -> int:
    """Copy a file's first ``size`` bytes; return how many bytes were missing."""
    buffer = memoryview(bytearray(min(size, CHUNK)))
    while size and (count := os.readv(descriptor, [buffer[:size]])):
        sink.write(buffer[:count])
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
    kind = _SPECIAL.get(stat.S_IFMT(info.st_mode))
    if kind is not None:
        raise TransferError(f"cannot send {os.fsdecode(path)!r}: it is {kind}")
