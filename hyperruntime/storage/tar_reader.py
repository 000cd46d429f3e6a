"""Read tar members from an untrusted stream, in bounded memory.

The standard ``tarfile`` loads long-name and PAX records of any size, so one header can exhaust the
memory. Source: POSIX.1-2017 pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar
manual, "Basic Tar Format".
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from typing import BinaryIO, Literal, cast

import attrs

from hyperruntime.errors import TransferError, UnsafeArchiveError

BLOCK = 512
CHUNK = 1024 * 1024
Kind = Literal["file", "directory", "symlink", "hardlink", "other"]

# bytes of a long name or a set of PAX attributes; GNU tar and bsdtar write far less
_MAX_RECORD = 64 * 1024
_MAX_RECORDS = 8  # number of such records before one member
_MAX_MAP_BLOCKS = 1024
_XATTR = "SCHILY.xattr."
_MAX_SECONDS = 1 << 33
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_SECONDS = re.compile(rb"(-?\d{1,11})(?:\.(\d{1,9})\d*)?")
_KINDS: dict[bytes, Kind] = {
    b"0": "file", b"\0": "file", b"7": "file",
    b"1": "hardlink", b"2": "symlink", b"5": "directory",
}  # fmt: skip
_REFUSED = {
    b"3": "a character device", b"4": "a block device", b"6": "a FIFO", b"S": "a sparse file",
}  # fmt: skip


@attrs.frozen(kw_only=True)
class Member:
    """One member's header.

    Attributes:
        name: as stored, any bytes.
        kind: type of the member; a member of kind ``other`` must not be created.
        size: bytes of data that follow in the stream.
        mode: permission bits and more, as stored.
        mtime_ns: nanoseconds since the epoch.
        owner: numbers of the user and of the group.
        link: target of a link, as stored.
        xattrs: extended attributes of PAX records: names and values.
        problem: why a member of kind ``other`` is refused.
    """

    name: bytes
    kind: Kind
    size: int
    mode: int
    mtime_ns: int
    owner: tuple[int, int]
    link: bytes
    xattrs: tuple[tuple[str, bytes], ...] = ()
    problem: str = ""


class TarReader:
    """Iterates over the members of a stream; read a member's data before the next iteration.

    Attributes:
        record_bytes: bytes read so far of long names, attributes and sparse maps; not part of any
            member's size.
    """

    def __init__(self, fileobj: BinaryIO) -> None:
        """Read from a file object with a method ``readinto``, which need not be seekable."""
        self._file = cast(io.BufferedIOBase, fileobj)
        self._buffer = memoryview(bytearray(CHUNK))
        self._left = 0  # unread bytes of this member's data
        self._padding = 0
        self.record_bytes = 0

    def __iter__(self) -> Iterator[Member]:
        """Return an iterator over the members up to the end mark.

        Raises:
            TransferError: the stream is not a tar archive, is corrupt or ends early.
            UnsafeArchiveError: a header record is too large, or a member has too many of them.
        """
        return iter(self._next_member, None)

    def data(self, size: int | None = None) -> Iterator[memoryview]:
        """Yield the next ``size`` bytes of the member's data (None: all); each chunk is valid until
        the next one.

        Raises:
            TransferError: the stream ends early.
        """
        wanted = self._left if size is None else min(size, self._left)
        while wanted:
            chunk = self._read(min(wanted, CHUNK))
            if not chunk:
                raise TransferError(
                    "the archive ends in the middle of a file; was the sender killed?"
                )
            self._left -= len(chunk)
            wanted -= len(chunk)
            yield chunk

    def skip(self) -> None:
        """Skip the member's data in a seekable file without reading it."""
        self._file.seek(self._left + self._padding, os.SEEK_CUR)
        self._left = 0
        self._padding = 0

    def drain(self, limit: int) -> None:
        """Read at most ``limit`` bytes after the end mark, so that a sender can write its
        padding.
        """
        while limit > 0 and (chunk := self._read(min(limit, CHUNK))):
            limit -= len(chunk)

    def _next_member(self) -> Member | None:
        names: dict[str, bytes] = {}
        for _ in range(_MAX_RECORDS + 1):
            for _ in self.data():
                pass
            self._block(self._padding)
            self._padding = 0
            header = self._block(BLOCK)
            if not any(header):
                return None
            _check_sum(header)
            flag = header[156:157]
            if flag not in b"LKxgX":
                return self._member(header, flag, names)
            self._record(header, flag, names)
        raise UnsafeArchiveError(
            f"the archive holds more than {_MAX_RECORDS} header records for one member"
        )

    def _record(self, header: bytes, flag: bytes, names: dict[str, bytes]) -> None:
        size = _number(header[124:136])
        if size > _MAX_RECORD:
            raise UnsafeArchiveError(
                f"a header record of {size} bytes exceeds the limit of {_MAX_RECORD} bytes"
            )
        payload = self._block(size)
        self.record_bytes += size
        self._padding = -size % BLOCK
        if flag in b"LK":
            names["path" if flag == b"L" else "linkpath"] = payload.split(b"\0", 1)[0]
        elif flag in b"xX":  # global records ("g") are ignored
            names.update(_pax_attributes(payload))

    def _member(self, header: bytes, flag: bytes, names: dict[str, bytes]) -> Member:
        name = names.get("path", _stored_name(header))
        size = _pax_number(names["size"]) if "size" in names else _number(header[124:136])
        kind = _KINDS.get(flag, "other")
        problem = (
            _REFUSED.get(flag, f"a member of unknown type {flag!r}") if kind == "other" else ""
        )
        if kind == "file" and flag == b"\0" and name.endswith(b"/"):
            kind = "directory"  # as in archives older than POSIX
        if any(key.startswith("GNU.sparse.") for key in names):
            kind = "other"
            problem = _REFUSED[b"S"]
        if flag == b"S":
            self._skip_map(header[482])
        self._left = 0 if kind in ("directory", "symlink", "hardlink") or flag in b"346" else size
        self._padding = -self._left % BLOCK
        return Member(
            name=name, kind=kind, size=self._left, mode=_number(header[100:108]),
            mtime_ns=_mtime(header[136:148], names.get("mtime")), problem=problem,
            owner=(_owner(header[108:116], names.get("uid")), _owner(header[116:124], names.get("gid"))),
            link=names.get("linkpath", header[157:257].split(b"\0", 1)[0]),
            xattrs=tuple((key.removeprefix(_XATTR), value) for key, value in names.items() if key.startswith(_XATTR)),
        )  # fmt: skip

    def _skip_map(self, more: int) -> None:
        """Skip the blocks with the rest of the map of a sparse file."""
        for _ in range(_MAX_MAP_BLOCKS):
            if not more:
                return
            more = self._block(BLOCK)[504]
            self.record_bytes += BLOCK
        raise TransferError("the archive is corrupt: the map of a sparse file has no end")

    def _read(self, size: int) -> memoryview:
        """Return 0 to ``size`` bytes, 0 only at the end of the stream."""
        return self._buffer[: self._file.readinto(self._buffer[:size])]

    def _block(self, size: int) -> bytes:
        block = b""
        while len(block) < size:
            chunk = self._read(size - len(block))
            if not chunk:
                raise TransferError("the archive is empty or ends early; was the sender killed?")
            block += chunk
        return block


def _check_sum(header: bytes) -> None:
    """Raise TransferError unless the header's checksum is right; its own field counts as spaces."""
    rest = header[:148] + b" " * 8 + header[156:]
    stored = _number(header[148:156])
    unsigned = sum(rest)
    # old tars: signed bytes
    if stored != unsigned and stored != unsigned - 256 * sum(byte > 127 for byte in rest):
        raise TransferError(
            "the stream is not a tar archive or is corrupt: a header's checksum is wrong"
        )


def _stored_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0" and header[345]:
        return header[345:500].split(b"\0", 1)[0] + b"/" + name
    return name


def _number(field: bytes, *, signed: bool = False) -> int:
    """Return the number of a header field: octal digits, or GNU base-256 if the first bit is
    set.
    """
    if field[0] in (0x80, 0xFF):
        value = int.from_bytes(field[1:], "big")
        value -= (1 << 8 * (len(field) - 1)) if field[0] == 0xFF else 0
    else:
        octal = _OCTAL.fullmatch(field)
        if octal is None:
            raise TransferError("the archive is corrupt: a numeric header field is not a number")
        value = int(octal[1] or b"0", 8)
    if value < 0 and not signed:
        raise TransferError("the archive is corrupt: a header holds a negative size")
    return value


def _pax_number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise TransferError("the archive is corrupt: a PAX size is not a number")
    return int(text)


def _owner(field: bytes, pax: bytes | None) -> int:
    # as uid_t
    return (_number(field, signed=True) if pax is None else _pax_number(pax)) & 0xFFFFFFFF


def _mtime(field: bytes, pax: bytes | None) -> int:
    seconds = 0
    nanoseconds = 0
    if pax is not None and (match := _SECONDS.fullmatch(pax)):
        seconds = int(match[1])
        nanoseconds = int((match[2] or b"").ljust(9, b"0")) * (-1 if pax.startswith(b"-") else 1)
    elif pax is None:
        seconds = _number(field, signed=True)
    return max(-_MAX_SECONDS, min(seconds, _MAX_SECONDS)) * 1_000_000_000 + nanoseconds


def _pax_attributes(payload: bytes) -> dict[str, bytes]:
    """Return the attributes of a PAX record: lines of ``<length> <key>=<value>``."""
    attributes: dict[str, bytes] = {}
    while payload:
        length, _, rest = payload.partition(b" ")
        taken = int(length) if length.isdigit() and len(length) <= 6 else 0
        line = rest[: taken - len(length) - 1]
        key, equals, value = line.partition(b"=")
        if (
            taken <= len(length) + 1
            or taken > len(payload)
            or not equals
            or not value.endswith(b"\n")
        ):
            raise TransferError("the archive is corrupt: a PAX record is invalid")
        attributes[key.decode("utf-8", "replace")] = value[:-1]
        payload = payload[taken:]
    return attributes
