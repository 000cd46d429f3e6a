"""Archives of a container that replaced its ``tar``: what it sends is never what a caller reads."""

from __future__ import annotations

import asyncio
import tarfile
from typing import Any, BinaryIO, cast

import pytest

import hyperruntime as hr
from hyperruntime.errors import UnsafeArchiveError
from hyperruntime.spec import ExecResult
from hyperruntime.transfer.extract import ExtractLimits
from hyperruntime_openai_agents import archives
from hyperruntime_openai_agents.archives import archive_tree


class Sender:
    """A container whose ``tar`` sends what a test says."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def aexec(self, args: Any, *, on_output: Any, **_: Any) -> ExecResult:
        """Send it."""
        on_output("stdout", self._data)
        return ExecResult(args=(), exit_code=0)


def archive_of(data: bytes, **options: Any) -> BinaryIO:
    """Return the archive of /tree of a container that sends these bytes."""
    return asyncio.run(archive_tree(cast(hr.Container, Sender(data)), "/tree", **options))


def member(name: str, data: bytes = b"", **fields: Any) -> bytes:
    """Return a member as a container writes it; ``size`` may be a lie."""
    info = tarfile.TarInfo(name)
    for key, value in {"size": len(data), **fields}.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def pax(**attributes: str) -> bytes:
    """Return a record of attributes for the next member."""
    data = b""
    for key, value in attributes.items():
        line = f" {key}={value}\n".encode()
        length = len(line) + 2
        data += str(length).encode() + line
        assert 10 <= length < 100
    return member("pax", data, type=b"x")


def sparse(size: int) -> bytes:
    """Return a sparse file of GNU tar without data."""
    header = bytearray(member("tree/holes", type=b"S"))
    header[386:410] = b"%011o\0%011o\0" % (size, 0)
    header[483:495] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


END = bytes(1024)


@pytest.mark.parametrize("exclude", [(), ("other",)])
def test_a_sparse_file_is_refused(exclude: tuple[str, ...]) -> None:
    with pytest.raises(UnsafeArchiveError, match=r"holes.*a sparse file"):
        archive_of(sparse(300_000_000) + END, exclude=exclude)


def test_members_that_only_another_reader_sees_stay_behind() -> None:
    hidden = member("tree/hidden", b"x" * 100) + member("long", b"y" * 2000, type=b"L")
    # For newer Pythons the old-style directory `x/` has no data: they read the data as members.
    # Python 3.11.2 does not.
    data = (
        pax(path="tree/xy")
        + member("x/", type=b"\0", size=len(hidden))
        + hidden
        + member("tree/z", b"z")
        + END
    )
    with archive_of(data) as archive, tarfile.open(fileobj=archive) as read:
        assert [(one.name, one.size, one.type) for one in read] == [
            ("tree/xy", len(hidden), tarfile.REGTYPE),
            ("tree/z", 1, tarfile.REGTYPE),
        ]


def test_the_number_of_members_and_the_size_of_their_names_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archives, "DEFAULT_LIMITS", ExtractLimits(max_members=3))
    archive_of(member("tree/x") * 3 + END).close()
    with pytest.raises(UnsafeArchiveError, match="more than 3 members"):
        archive_of(member("tree/x") * 4 + END)
    monkeypatch.setattr(archives, "_MOST_RECORD_BYTES", 30_000)
    archive_of(member("tree/" + "x" * 20_000) + END).close()
    with pytest.raises(UnsafeArchiveError, match="names are too long"):
        archive_of(member("tree/" + "x" * 20_000) * 2 + END)


@pytest.mark.parametrize("name", ["../x", "/tree/x", "tree/../x", "other", "tree//x", ""])
def test_a_name_outside_the_directory_is_refused(name: str) -> None:
    with pytest.raises(UnsafeArchiveError, match="not below the directory"):
        archive_of(member(name) + END)


def test_what_is_kept_of_members() -> None:
    fields = {"mode": 0o4750, "mtime": -5, "uid": 1234, "gid": 2**21 + 7}
    data = member("tree/", type=tarfile.DIRTYPE, mode=0o1777) + member(
        "tree/file", b"data" * 999, **fields
    )
    data += member("tree/soft", type=tarfile.SYMTYPE, linkname="/abs") + member(
        "tree/pipe", type=tarfile.FIFOTYPE
    )
    data += member("tree/hard", type=tarfile.LNKTYPE, linkname="tree/file")
    data += pax(uid="70000", gid="70001") + member("tree/\xe9" + "n" * 200)
    with archive_of(data + END, exclude=["gone"]) as archive, tarfile.open(fileobj=archive) as read:
        top, file, soft, hard, other = read.getmembers()
        assert (top.name, top.isdir(), top.mode) == ("tree", True, 0o1777)
        assert {key: getattr(file, key) for key in fields} == fields
        assert cast(Any, read.extractfile(file)).read() == b"data" * 999
        assert (soft.linkname, hard.islnk(), hard.linkname) == ("/abs", True, "tree/file")
        assert (other.name, other.uid, other.gid) == ("tree/\xe9" + "n" * 200, 70000, 70001)
