"""Build an archive from the untrusted tar stream of a slot, member by member, within limits."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import posixpath
import stat
import sys
import tarfile
import time
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

import attrs

from hyperruntime.errors import TransferError
from hyperruntime.pool.tools.listing import Entry
from hyperruntime.pool.tools.slot_scripts import show
from hyperruntime.storage.tar_reader import Member, TarReader

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_TYPES = {"file": "file", "directory": "directory", "symlink": "link", "hardlink": "link"}
_TAR_TYPES = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE}
Form = Literal["tar.gz", "tar", "zip"]
MAX_CONTENT_BYTES = 1024**3
_MAX_PROBLEMS = 20
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP_YEARS = range(1980, 2108)


@attrs.frozen(kw_only=True)
class Packed:
    """An archive.

    Attributes:
        data: its bytes.
        sha256: hexadecimal digest of the bytes.
        entries: the members of the archive.
        problems: one sentence for each member that was left out, at most 20.
    """

    data: bytes
    sha256: str
    entries: tuple[Entry, ...]
    problems: tuple[str, ...]


class _Sink(io.BytesIO):
    """Bytes in memory, up to a limit."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes

    def write(self, chunk: ReadableBuffer, /) -> int:
        if self.tell() + memoryview(chunk).nbytes > self.limit_bytes:
            raise TransferError(f"it would be larger than {self.limit_bytes} bytes")
        return super().write(chunk)


class _TarWriter:
    """Writes a tar archive; its methods are those of :class:`_ZipWriter`."""

    def __init__(self, sink: _Sink, *, compressed: bool) -> None:
        self._outer = gzip.GzipFile(fileobj=sink, mode="wb", mtime=0) if compressed else None
        target = cast(BinaryIO, self._outer or sink)
        self._tar = tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - see close

    def add(self, name: str, member: Member, reader: TarReader) -> None:
        info = tarfile.TarInfo(name)
        info.type = _TAR_TYPES.get(member.kind, tarfile.LNKTYPE)
        info.size = member.size
        info.mode = member.mode & 0o777
        info.mtime = member.mtime_ns // 10**9
        if member.kind in ("symlink", "hardlink"):
            link = os.fsdecode(member.link)
            info.linkname = link if member.kind == "symlink" else posixpath.normpath(link)
        self._tar.addfile(info, cast(BinaryIO, _Data(reader)) if member.kind == "file" else None)

    def close(self) -> None:
        self._tar.close()
        if self._outer is not None:
            self._outer.close()


class _ZipWriter:
    """Writes a zip archive."""

    def __init__(self, sink: _Sink) -> None:
        self._zip = zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED)

    def add(self, name: str, member: Member, reader: TarReader) -> None:
        """Add a member, which is not a hard link."""
        folder = member.kind == "directory"
        when = time.gmtime(max(member.mtime_ns // 10**9, 0))[:6]
        info = zipfile.ZipInfo(
            show(name) + "/" * folder, when if when[0] in _ZIP_YEARS else _ZIP_EPOCH
        )
        info.compress_type = zipfile.ZIP_DEFLATED
        kind = {"directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}.get(member.kind, stat.S_IFREG)
        info.external_attr = (kind | member.mode & 0o777) << 16 | 0x10 * folder
        with self._zip.open(info, "w", force_zip64=member.size > 2**31) as target:
            for chunk in [memoryview(member.link)] if member.kind == "symlink" else reader.data():
                target.write(chunk)

    def close(self) -> None:
        self._zip.close()


@attrs.frozen
class _Data:
    """A file object over the data of a reader's member, for :mod:`tarfile`."""

    reader: TarReader

    def read(self, size: int) -> bytes:
        """Return exactly ``size`` bytes, or fewer at the end."""
        return b"".join(bytes(chunk) for chunk in self.reader.data(size))


_Writer = _TarWriter | _ZipWriter


def pack(source: BinaryIO, form: Form, *, max_bytes: int, max_entries: int) -> Packed:
    """Read an untrusted tar stream and return an archive of its files, directories and links.

    Names in the archive are relative and stay inside it. The archive is built in memory.

    Args:
        source: the tar stream.
        form: of the archive.
        max_bytes: largest size of the archive.
        max_entries: largest number of members.

    Raises:
        TransferError: the archive would exceed a limit, or the stream is not a tar archive, or is
            truncated.
    """
    sink = _Sink(max_bytes)
    writer: _Writer = (
        _ZipWriter(sink) if form == "zip" else _TarWriter(sink, compressed=form == "tar.gz")
    )
    try:
        entries, problems = _copy(TarReader(source), writer, max_entries)
        writer.close()
    except BaseException:
        sink.limit_bytes = sys.maxsize
        with suppress(Exception):
            writer.close()  # else the garbage collector would do it
        raise
    data = sink.getvalue()
    return Packed(
        data=data, sha256=hashlib.sha256(data).hexdigest(), entries=entries, problems=problems
    )


def _copy(
    reader: TarReader, writer: _Writer, max_entries: int
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    entries: dict[str, Entry] = {}
    problems: list[str] = []
    content = 0
    for member in reader:
        name = posixpath.normpath(os.fsdecode(member.name))
        if name == ".":
            continue
        problem = _refusal(name, member, entries, hard_links=isinstance(writer, _TarWriter))
        if not problem and len(entries) >= max_entries:
            raise TransferError(f"it would hold more than {max_entries} entries")
        content += member.size
        if content > MAX_CONTENT_BYTES:
            raise TransferError("its files are larger than 1 GiB in total")
        if not problem:
            writer.add(name, member, reader)
            mtime = member.mtime_ns / 1e9
            entries[name] = Entry(
                path=show(name), type=_TYPES[member.kind], size=member.size, mtime=mtime
            )
        elif len(problems) < _MAX_PROBLEMS:
            problems.append(f"{show(name)!r} is left out: {problem}")
    return tuple(entries.values()), tuple(problems)


def _refusal(name: str, member: Member, known: dict[str, Entry], *, hard_links: bool) -> str:
    if member.kind == "other":
        return member.problem
    if member.kind == "hardlink" and not hard_links:
        return "a zip cannot hold hard links"
    if name.startswith(("/", "../")) or name == ".." or "\0" in name:
        return "its name leads outside the archive"
    return "its name occurs twice" if name in known else ""
