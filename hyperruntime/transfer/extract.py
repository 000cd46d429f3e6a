"""Carry trees of files as tar streams, in flat memory: extract what nobody vouches for, write what we trust."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import BinaryIO

import attrs

from hyperruntime.errors import SpecError, TransferError, UnsafeArchiveError
from hyperruntime.transfer.link_check import link_problem
from hyperruntime.transfer.staged_tree import ROOT, EntryRefusedError, Parts, StagedTree, stamp_file
from hyperruntime.transfer.tar_reader import CHUNK, Member, TarReader
from hyperruntime.transfer.tar_writer import Path, Refusals, write_tree
from hyperruntime.units import GIB

__all__ = ["ExtractLimits", "ExtractReport", "Path", "Refusals", "extract_tree", "write_tree"]

DEFAULT_MAX_MEMBERS = 200_000
_MAX_NAME_BYTES = 4096
_REPORTED_NAME = 300
_REPORTED_REFUSALS = 1000
PADDING_BYTES = CHUNK  # what may follow an archive's end; tars fill up their last record, of 512 KiB as we call them
_BAD_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)


def _positive(_: object, attribute: attrs.Attribute[int], value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
        raise SpecError(f"ExtractLimits.{attribute.name}", value, "a positive whole number")


@attrs.frozen(kw_only=True)
class ExtractLimits:
    """How much an archive may bring; checked before each member is written.

    Attributes:
        max_bytes: bytes of all files with their holes filled, those that are refused included.
        max_members: files, directories and links: members of the archive, and directories that their names imply.
            Each may take an inode of the host, and quotas of inodes are far below those of bytes: the default is
            twice the files of a large repository.
        max_member_bytes: a larger file is refused and the rest goes on; None for no cap of its own.
        max_depth: components of a name below the target.
    """

    max_bytes: int = attrs.field(default=16 * GIB, validator=_positive)
    max_members: int = attrs.field(default=DEFAULT_MAX_MEMBERS, validator=_positive)
    max_member_bytes: int | None = attrs.field(default=None, validator=_positive)
    max_depth: int = attrs.field(default=128, validator=_positive)


@attrs.frozen(kw_only=True)
class ExtractReport:
    """What an archive brought.

    Attributes:
        members: how many were written.
        bytes: bytes of their files, with holes filled.
        refused: ``(name, reason)`` of each that was not; the first thousand, then one line with the count.
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
    """Write the tree that a tar stream brings to ``target``, and nothing anywhere else; return what came.

    The stream may be hostile. Absolute names, ``..``, devices, FIFOs, links that leave the target and names
    that pass through a link are refused one by one. Permissions and times are kept; owners and special mode
    bits are not. What came appears at its end only; a directory that is there already is merged with (see
    :meth:`~hyperruntime.transfer.staged_tree.StagedTree.install`), a link that is there is replaced and never followed.

    Args:
        fileobj: read from front to end, and up to 1 MiB past the end mark; need not seek; never closed.
        target: the path to make; its parent directory must exist.
        limits: what the archive may bring at most.
        rename_root: whether the archive's one top-level name stands for the target; otherwise the target is a
            directory that gets the top-level names.
        before_install: called when all has arrived and nothing is at the target yet; when it raises, nothing will be.

    Raises:
        TransferError: the archive is corrupt or ends early, or the target cannot be written.
        UnsafeArchiveError: a cap was reached, or nothing in the archive may be written here; nothing was.

    Source: GNU tar manual, "Basic Tar Format"; POSIX.1-2017 pax.
    """
    reader = TarReader(fileobj)
    extraction = _Extraction(reader, limits, rename_root=rename_root)
    path = os.fsencode(target)
    try:
        with StagedTree(path, extraction.count_member) as tree:
            extraction.run(tree)
            before_install()
            for name, reason in tree.install():
                extraction.refuse(name, reason)
    except EntryRefusedError as refusal:
        message = f"nothing was written to {os.fsdecode(path)!r}: {refusal}"
        raise UnsafeArchiveError(message, extraction.refusals()) from None
    except OSError as error:
        message = f"cannot write what came to {os.fsdecode(path)!r}: {error.strerror or error}{_next_step(error)}"
        raise TransferError(message) from error
    finally:
        reader.close()
    return ExtractReport(members=extraction.written, bytes=extraction.bytes, refused=extraction.refusals())


class _Extraction:
    """One archive on its way into a staged tree: names, caps and what was refused."""

    def __init__(self, reader: TarReader, limits: ExtractLimits, *, rename_root: bool) -> None:
        self.written = self.bytes = 0
        self._reader, self._limits = reader, limits
        self._top: Parts | None = None if rename_root else ()
        self._members = self._declared = self._unreported = 0
        self._refused: list[tuple[str, str]] = []

    def run(self, tree: StagedTree) -> None:
        """Stage every member, one by one."""
        if self._top == ():
            tree.make_directory((ROOT,))
        for member in self._reader:
            self._charge(member)
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
        """Note one refused entry, within bounds."""
        if len(self._refused) < _REPORTED_REFUSALS:
            self._refused.append((os.fsdecode(name[:_REPORTED_NAME]), reason))
        else:
            self._unreported += 1

    def refusals(self) -> Refusals:
        """Return what was refused."""
        more = ((("", f"and {self._unreported} more"),)) if self._unreported else ()
        return (*self._refused, *more)

    def count_member(self) -> None:
        """Count what is about to be made.

        Raises:
            UnsafeArchiveError: it would be one too many.
        """
        self._members += 1
        if self._members > self._limits.max_members:
            self._stop("max_members", self._limits.max_members, "files, directories and links")

    def _charge(self, member: Member) -> None:
        self.count_member()
        self._declared += max(member.size, member.full_size)
        if self._declared + self._reader.record_bytes > self._limits.max_bytes:
            self._stop("max_bytes", self._limits.max_bytes, "bytes")

    def _stop(self, cap: str, value: int, what: str) -> None:
        message = f"the archive brings more than {value} {what}, so nothing was written; raise {cap} or send less"
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
        if cap is not None and member.full_size > cap:
            raise EntryRefusedError(f"its {member.full_size} bytes are more than {cap} (cap max_member_bytes)")
        descriptor = tree.create_file(parts)
        try:
            for offset, length in member.extents if member.extents is not None else ((0, member.size),):
                os.lseek(descriptor, offset, os.SEEK_SET)
                for chunk in self._reader.data(length):
                    _write_all(descriptor, chunk)
            if member.extents is not None:
                os.ftruncate(descriptor, member.full_size)
            stamp_file(descriptor, member.mode, member.mtime_ns)
        finally:
            os.close(descriptor)
        self.bytes += member.full_size

    def _parts(self, name: bytes) -> Parts:
        """Return a name's components in the staged tree."""
        components = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
        if not name or b"\0" in name or len(name) > _MAX_NAME_BYTES:
            raise EntryRefusedError("its name is empty, too long or holds NUL")
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


def _next_step(error: OSError) -> str:
    full = (errno.ENOSPC, errno.EDQUOT)
    return "; nothing of it is kept: free space there or take another target" if error.errno in full else ""


def _write_all(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]
