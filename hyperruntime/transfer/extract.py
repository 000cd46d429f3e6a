"""Extract file trees from untrusted tar streams, in constant memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import BinaryIO

import attrs

from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.errors import TransferError, UnsafeArchiveError
from hyperruntime.option_fields import AtLeast
from hyperruntime.storage.tar_reader import CHUNK, Member, TarReader
from hyperruntime.transfer.staged_tree import ROOT, EntryRefusedError, Parts, StagedTree, stamp_file
from hyperruntime.transfer.tar_writer import Path
from hyperruntime.units import GIB

Refusals = tuple[tuple[str, str], ...]

DEFAULT_MAX_MEMBERS = 200_000
_MAX_NAME_BYTES = 4096
_REPORTED_NAME = 300
_REPORTED_REFUSALS = 1000
# allowed after an archive's end: tar pads its last record, to 512 KiB as we call it
PADDING_BYTES = CHUNK
_BAD_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)


@attrs.frozen(kw_only=True)
class ExtractLimits:
    """Limits of an archive; checked before each member is written.

    Attributes:
        max_bytes: bytes of all files, holes and refused files included.
        max_members: number of files, directories and links, including directories that only the
            names of members imply. Each may take an inode of the host, and inode quotas are small:
            the default is twice the number of files in a large repository.
        max_member_bytes: a larger file is refused and the extraction continues; None for no limit
            per file.
        max_depth: components of a name below the target.

    Example:
        >>> limits = hr.ExtractLimits(max_bytes=1024**2)  # for `container.get(..., limits=limits)`
        >>> limits.max_depth
        128
    """

    max_bytes: int = attrs.field(default=16 * GIB, validator=AtLeast(1))
    max_members: int = attrs.field(default=DEFAULT_MAX_MEMBERS, validator=AtLeast(1))
    max_member_bytes: int | None = attrs.field(default=None, validator=AtLeast(1))
    max_depth: int = attrs.field(default=128, validator=AtLeast(1))


@attrs.frozen(kw_only=True)
class ExtractReport:
    """The result of an extraction.

    Attributes:
        members: number of members that were written.
        bytes: bytes of their files, holes included.
        refused: ``(name, reason)`` of each refused member; the first thousand, then one entry with
            the count of the others.
    """

    members: int
    bytes: int
    refused: Refusals


def extract_tree(
    fileobj: BinaryIO,
    target: Path,
    *,
    limits: ExtractLimits,
    rename_root: bool = True,
    before_install: Callable[[], None] = lambda: None,
) -> ExtractReport:
    """Write the tree of a tar stream to ``target``, and nothing anywhere else; return a report.

    The stream may be hostile. Absolute names, ``..``, devices, FIFOs, links that leave the target
    and names that pass through a link are refused one by one. Permissions and times are kept;
    owners and special mode bits are not. The files appear at the target only when the whole archive
    is extracted. An existing directory is merged (see
    :meth:`~hyperruntime.transfer.staged_tree.StagedTree.install`); an existing link is replaced,
    never followed.

    Args:
        fileobj: read to the archive's end, and up to 1 MiB after it; need not be seekable; never
            closed.
        target: the path to create; its parent directory must exist.
        limits: limits of the archive.
        rename_root: True if the archive's single top-level name becomes the target; False if the
            target is a directory that receives the top-level names.
        before_install: called after the extraction, before anything is at the target; if it raises,
            nothing is written.

    Raises:
        TransferError: the archive is corrupt or ends early, or the target cannot be written.
        UnsafeArchiveError: the archive exceeds a limit, or no member may be written; the target is
            unchanged.

    Source: GNU tar manual, "Basic Tar Format"; POSIX.1-2017 pax.
    """
    extraction = _Extraction(TarReader(fileobj), limits, rename_root=rename_root)
    path = os.fsencode(target)
    installing = False
    try:
        with StagedTree(path, extraction.count_member) as tree:
            extraction.run(tree)
            before_install()
            installing = True
            for name, reason in tree.install():
                extraction.refuse(name, reason)
    except EntryRefusedError as refusal:
        message = f"nothing was written to {os.fsdecode(path)!r}: {refusal}"
        raise UnsafeArchiveError(message, extraction.refusals()) from None
    except OSError as error:
        next_step = _next_step(error, installing=installing)
        message = (
            f"cannot write the archive to {os.fsdecode(path)!r}: "
            f"{error.strerror or error}{next_step}"
        )
        raise TransferError(message) from error
    return ExtractReport(
        members=extraction.written, bytes=extraction.bytes, refused=extraction.refusals()
    )


class _Extraction:
    """Extracts one archive into a staged tree; checks names and limits, and collects refusals."""

    def __init__(self, reader: TarReader, limits: ExtractLimits, *, rename_root: bool) -> None:
        self.written = self.bytes = 0
        self._reader = reader
        self._limits = limits
        self._top: Parts | None = None if rename_root else ()
        self._members = self._declared = self._unreported = 0
        self._refused: list[tuple[str, str]] = []

    def run(self, tree: StagedTree) -> None:
        """Stage every member."""
        if self._top == ():
            tree.make_directory((ROOT,))
        for member in self._reader:
            self.count_member()
            self._declared += member.size
            if self._declared + self._reader.record_bytes > self._limits.max_bytes:
                self._stop("max_bytes", self._limits.max_bytes, "bytes")
            try:
                self._add(member, tree)
                self.written += 1
            except EntryRefusedError as refusal:
                self.refuse(member.name, str(refusal))
            except OSError as error:
                if error.errno not in _BAD_NAME:
                    raise
                self.refuse(member.name, f"no file can have this name: {error.strerror}")
        self._reader.drain(PADDING_BYTES)

    def refuse(self, name: bytes, reason: str) -> None:
        """Record a refused entry; after the first thousand, only count it."""
        if len(self._refused) < _REPORTED_REFUSALS:
            self._refused.append((os.fsdecode(name[:_REPORTED_NAME]), reason))
        else:
            self._unreported += 1

    def refusals(self) -> Refusals:
        """Return the refused entries, and a count of those beyond the first thousand."""
        more = ((("", f"and {self._unreported} more"),)) if self._unreported else ()
        return (*self._refused, *more)

    def count_member(self) -> None:
        """Count an entry before it is created.

        Raises:
            UnsafeArchiveError: the archive exceeds ``max_members``.
        """
        self._members += 1
        if self._members > self._limits.max_members:
            self._stop("max_members", self._limits.max_members, "files, directories and links")

    def _stop(self, cap: str, value: int, what: str) -> None:
        message = (
            f"the archive has more than {value} {what}, so nothing was written; raise {cap} or "
            "send less"
        )
        raise UnsafeArchiveError(message, self.refusals())

    def _add(self, member: Member, tree: StagedTree) -> None:
        if member.kind == "other":
            raise EntryRefusedError(member.problem)
        parts = self._parts(member.name)
        if member.kind == "directory":
            tree.make_directory(parts, member.mode, member.mtime_ns)
        elif member.kind == "symlink":
            if problem := link_problem(member.link, len(parts) - 2):
                raise EntryRefusedError(problem)
            tree.make_symlink(parts, member.link, member.mtime_ns)
        elif member.kind == "hardlink":
            tree.make_hardlink(parts, self._parts(member.link))
        else:
            self._add_file(parts, member, tree)

    def _add_file(self, parts: Parts, member: Member, tree: StagedTree) -> None:
        cap = self._limits.max_member_bytes
        if cap is not None and member.size > cap:
            raise EntryRefusedError(f"its {member.size} bytes are more than max_member_bytes={cap}")
        with closing_descriptor(tree.create_file(parts)) as descriptor:
            for chunk in self._reader.data():
                _write_all(descriptor, chunk)
            stamp_file(descriptor, member.mode, member.mtime_ns)
        self.bytes += member.size

    def _parts(self, name: bytes) -> Parts:
        """Return the path of a member in the staged tree."""
        components = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
        if not name or b"\0" in name or len(name) > _MAX_NAME_BYTES:
            raise EntryRefusedError("its name is empty, too long or contains NUL")
        if name.startswith(b"/"):
            raise EntryRefusedError("an absolute name")
        if b".." in components:
            raise EntryRefusedError("a name with .. in it")
        if self._top is None:
            self._top = components[:1]
        if components[: len(self._top)] != self._top:
            raise EntryRefusedError("a second top-level name")
        parts = (ROOT, *components[len(self._top) :])
        if len(parts) > self._limits.max_depth + 1:
            self._stop("max_depth", self._limits.max_depth, "levels of directories")
        return parts


def link_problem(target: bytes, depth: int) -> str:
    """Return the reason why a symbolic link could lead out of its tree; empty if it cannot.

    ``..`` is allowed only at the start of a target: there it leaves a real directory, whose depth
    is known. After a name, it would leave the directory to which the name resolves, and the name
    may be a link. So no chain of allowed links leads out of the tree.

    Args:
        target: target of the link, as stored.
        depth: number of directories between the top of the tree and the link.
    """
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    up = next((at for at, part in enumerate(parts) if part != b".."), len(parts))
    if not target or b"\0" in target or target.startswith(b"/"):
        return "a symbolic link to an absolute path"
    if up > depth:
        return "a symbolic link that leads out of the tree"
    return "a symbolic link with .. after a name" if b".." in parts[up:] else ""


def _next_step(error: OSError, *, installing: bool) -> str:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    written = "a part of it may have been written" if installing else "nothing was written"
    return f"; {written}: free space there or choose another target"


def _write_all(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]
