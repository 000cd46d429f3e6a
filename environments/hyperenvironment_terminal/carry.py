"""Bring an agent's work into a fresh container of the same image, and nothing that would judge it.

What the agent's container says of itself is believed of its own files only: names and owners come from its list, which
is checked; content comes through a tar reader for strangers; the archive that is unpacked is written here, and holds no
path that leads through a link.
"""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, cast

import attrs

from hyperenvironment_terminal.changes import ChangePlan, plan_changes
from hyperenvironment_terminal.listing import Entry, Listing, list_files
from hyperenvironment_terminal.protected import NOT_LISTED, make_protection
from hyperruntime.errors import TransferError
from hyperruntime.host.owner import owned_directory
from hyperruntime.pool.lease import Lease
from hyperruntime.spec import ExecResult
from hyperruntime.transfer.extract import ExtractLimits
from hyperruntime.transfer.tar_reader import TarReader

_BATCH_BYTES = 16 * 1024**2
_BATCH_FILES = 2000
_COPY_TIMEOUT_S = 300.0
_READ = ["tar", "--create", "--file=-", "--directory=/", "--hard-dereference", "--no-recursion", "--null",
         "--verbatim-files-from", "--files-from=-"]  # fmt: skip
_WRITE = ["tar", "--extract", "--file=-", "--directory=/", "--preserve-permissions", "--numeric-owner"]
_MAX_NAME = 4096


class StateError(TransferError):
    """The agent's container does not give its files out: the agent has broken or outgrown it."""


@attrs.frozen(kw_only=True)
class Carried:
    """What was brought over.

    Attributes:
        changed: paths that were made, changed or removed.
        withheld: paths at or below which a change was not taken over, the first hundred.
        withheld_count: how many there are.
    """

    changed: int
    withheld: tuple[str, ...]
    withheld_count: int


async def carry(
    agent: Lease, judge: Lease, *, mounted: Sequence[str], workdir: str, scripted: bool, limit_bytes: int
) -> Carried:
    """Make a fresh container hold what an agent did to another of the same image.

    Args:
        agent: the agent's container; all its processes have ended.
        judge: the fresh one.
        mounted: targets of host paths in both.
        workdir: where the tests begin.
        scripted: whether the tests are a script.
        limit_bytes: how much may be brought over.

    Raises:
        StateError: the agent's container cannot be read, or holds too much.
        TransferError: the fresh one cannot be read or written.
    """
    leave_out = (*NOT_LISTED, *mounted)
    pristine = await list_files(judge, leave_out)
    try:
        listing = await list_files(agent, leave_out)
    except TransferError as error:
        raise StateError(str(error)) from error
    shown = await judge.exec(["printenv", "PATH"], workdir="/", output_limit_bytes=65536)
    search = shown.stdout.decode(errors="replace").strip().split(":")
    plan = await asyncio.to_thread(_plan, pristine, listing, search, workdir, scripted)
    total = sum(listing[path].size for path in plan.files)
    if total > limit_bytes:
        raise StateError(f"the agent's files are {total} bytes, and {limit_bytes} are taken over at most")
    await _remove(judge, plan.remove)
    await _write(judge, _members(plan.directories, listing))
    for path in plan.files:
        if listing[path].size > _BATCH_BYTES:
            await _carry_large(agent, judge, path, listing[path])
    small = [path for path in plan.files if listing[path].size <= _BATCH_BYTES]
    for batch in _batches(small, listing):
        await _write(judge, await _contents(agent, batch, listing))
    await _write(judge, _members(plan.links, listing))
    return Carried(
        changed=len(plan.remove) + len(plan.directories) + len(plan.files) + len(plan.links),
        withheld=tuple(path.decode(errors="replace") for path in plan.withheld[:100]),
        withheld_count=len(plan.withheld),
    )


def _plan(pristine: Listing, listing: Listing, search: list[str], workdir: str, scripted: bool) -> ChangePlan:
    return plan_changes(pristine, listing, make_protection(pristine, search, workdir, scripted=scripted))


async def _remove(judge: Lease, paths: Iterable[bytes]) -> None:
    if names := b"".join(path + b"\0" for path in paths):
        _check(await judge.exec(["xargs", "-0", "rm", "-rf", "--"], input=names, workdir="/"), "cleared")


async def _write(judge: Lease, archive: bytes) -> None:
    if archive:
        _check(await judge.exec(_WRITE, input=archive, workdir="/"), "written")


def _check(result: ExecResult, what: str) -> None:
    if result.exit_code != 0:
        why = result.stderr.decode(errors="replace").strip().splitlines()[:1] or [f"exit code {result.exit_code}"]
        raise TransferError(f"files of the container that judges could not be {what}: {why[0]}")


async def _carry_large(agent: Lease, judge: Lease, path: bytes, entry: Entry) -> None:
    """Bring one file over by way of the disk."""
    name = os.fsdecode(path)
    with owned_directory() as directory:
        copy = os.path.join(directory, "file")
        try:
            limits = ExtractLimits(max_bytes=entry.size + 1, max_members=2)
            await agent.get(name, copy, limits=limits, timeout_s=_COPY_TIMEOUT_S)
        except TransferError as error:
            raise StateError(str(error)) from error
        if os.path.islink(copy) or not os.path.isfile(copy):
            raise StateError(f"the agent's container gave something else than the file {name!r}")
        await judge.put(copy, name, timeout_s=_COPY_TIMEOUT_S)
    owner, mode = f"{entry.uid}:{entry.gid}", f"{entry.mode:o}"
    for args in (["chown", owner], ["chmod", mode], ["touch", "--date", f"@{entry.mtime.decode()}"]):
        _check(await judge.exec([*args, "--", name], workdir="/"), "written")


def _batches(paths: Sequence[bytes], listing: Listing) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for path in paths:
        if batch and (size + listing[path].size > _BATCH_BYTES or len(batch) >= _BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += listing[path].size
    if batch:
        yield batch


async def _contents(agent: Lease, batch: Sequence[bytes], listing: Listing) -> bytes:
    """Return an archive of files that are in the agent's container."""
    wanted = {path[1:]: listing[path] for path in batch}
    room = sum(entry.size for entry in wanted.values()) + (_MAX_NAME + 4096) * len(wanted) + 65536
    names = b"".join(name + b"\0" for name in wanted)
    result = await agent.exec(_READ, input=names, workdir="/", output_limit_bytes=room)
    if result.exit_code != 0 or result.truncated:
        raise StateError("files of the agent's container could not be read")
    return await asyncio.to_thread(_repack, result.stdout, wanted)


def _repack(archive: bytes, wanted: dict[bytes, Entry]) -> bytes:
    """Write an archive anew: content from it, everything else from the list.

    Raises:
        StateError: it does not hold exactly what is wanted.
    """
    buffer = io.BytesIO()
    reader = TarReader(cast(BinaryIO, io.BytesIO(archive)))
    with _new_archive(buffer) as made:
        try:
            for member in reader:
                entry = wanted.pop(member.name, None)
                if entry is None or member.kind != "file" or member.extents is not None:
                    raise StateError(f"the agent's container gave {member.name!r}, which was not asked for")
                content = b"".join(bytes(chunk) for chunk in reader.data())
                made.addfile(_header(b"/" + member.name, entry, len(content)), io.BytesIO(content))
        except TransferError as error:
            raise StateError(str(error)) from error
    if wanted:
        raise StateError(f"the agent's container did not give {len(wanted)} of its files")
    return buffer.getvalue()


def _new_archive(buffer: BinaryIO) -> tarfile.TarFile:
    return tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape")


def _members(paths: Iterable[bytes], listing: Listing) -> bytes:
    buffer = io.BytesIO()
    found = list(paths)
    with _new_archive(buffer) as archive:
        for path in found:
            archive.addfile(_header(path, listing[path], 0))
    return buffer.getvalue() if found else b""


_TYPES = {b"f": tarfile.REGTYPE, b"d": tarfile.DIRTYPE, b"l": tarfile.SYMTYPE}


def _header(path: bytes, entry: Entry, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path[1:].decode("utf-8", "surrogateescape"))
    info.type, info.mode, info.uid, info.gid, info.size = _TYPES[entry.kind], entry.mode, entry.uid, entry.gid, size
    info.mtime = float(entry.mtime)
    info.linkname = entry.link.decode("utf-8", "surrogateescape")
    return info
