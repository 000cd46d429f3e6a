"""List the files of a container."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping

import attrs

from hyperruntime.errors import TransferError
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ExecResult

FILE = b"f"
DIRECTORY = b"d"
LINK = b"l"
_NUMBER = rb"\d{1,19}"
_LINE = re.compile(
    rb"(?P<kind>[a-zA-Z]) (?P<mode>[0-7]{1,5}) (?P<uid>" + _NUMBER + rb") (?P<gid>" + _NUMBER + rb") (?P<size>"
    + _NUMBER + rb") (?P<mtime>-?\d{1,12}(?:\.\d{1,10})?) (?P<path>/.*)",
    re.DOTALL,
)  # fmt: skip
_FORMAT = "%y %m %U %G %s %T@ %p\\0%l\\0"
_PATTERN = str.maketrans({letter: f"\\{letter}" for letter in "*?[]\\"})
_LIMIT_BYTES = 64 * 1024**2
_MAX_FILES = 1_000_000
_TIMEOUT_S = 120.0


@attrs.frozen
class Entry:
    """A file, directory, link or other file system entry.

    Attributes:
        kind: ``f``, ``d``, ``l``, or another type letter of ``find -printf %y``.
        mode: permission bits.
        uid: user id of the owner.
        gid: group id.
        size: size in bytes.
        mtime: seconds since the epoch, as text.
        link: target of a link, else empty.
    """

    kind: bytes
    mode: int
    uid: int
    gid: int
    size: int
    mtime: bytes
    link: bytes = b""

    def same(self, other: Entry) -> bool:
        """Return whether another entry has the same attributes; for directories, size and mtime are
        ignored.
        """
        if self.kind == other.kind == DIRECTORY:
            return (self.mode, self.uid, self.gid) == (other.mode, other.uid, other.gid)
        return self == other


Listing = Mapping[bytes, Entry]


def parse_listing(output: bytes) -> dict[bytes, Entry]:
    """Parse the file list of a container; the list is untrusted, so each line is validated.

    Raises:
        TransferError: the list is invalid or has too many files.
    """
    if output.count(b"\0") > 2 * _MAX_FILES:
        raise TransferError(f"the container has more than {_MAX_FILES} files")
    parts = output.split(b"\0")
    if len(parts) % 2 == 0 or parts[-1]:
        raise TransferError("the container's file list is truncated")
    found = {}
    for line, link in zip(parts[:-1:2], parts[1::2], strict=True):
        match = _LINE.fullmatch(line)
        names = match["path"].split(b"/")[1:] if match is not None else [b""]
        if match is None or not all(names) or {b".", b".."} & set(names):
            raise TransferError("the container's file list has an invalid line")
        uid, gid, size = (int(match[name]) for name in ("uid", "gid", "size"))
        found[match["path"]] = Entry(
            match["kind"], int(match["mode"], 8), uid, gid, size, match["mtime"], link
        )
    return found


async def list_files(container: Sandbox, leave_out: Iterable[str]) -> dict[bytes, Entry]:
    """Return all files of a container, by absolute path; it needs GNU find.

    Args:
        container: the container.
        leave_out: absolute paths to skip, with everything below them.

    Raises:
        TransferError: the files cannot be listed, or the list is invalid.
    """
    pruned: list[str] = []
    for path in leave_out:
        pruned += ["-o", "-path", path.translate(_PATTERN)]
    args = [
        "find",
        "/",
        "-mindepth",
        "1",
        "(",
        *pruned[1:],
        ")",
        "-prune",
        "-o",
        "-printf",
        _FORMAT,
    ]
    result = await container.exec(
        args, timeout_s=_TIMEOUT_S, workdir="/", output_limit_bytes=_LIMIT_BYTES
    )
    if result.exit_code != 0 or result.truncated:
        raise TransferError(f"the container's files could not be listed: {first_error(result)}")
    return await asyncio.to_thread(parse_listing, result.stdout)


def first_error(result: ExecResult) -> str:
    """Return the first line of a failed command's error output, or else its exit code."""
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    return lines[0] if lines else f"exit code {result.exit_code}"
