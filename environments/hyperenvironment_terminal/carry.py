"""Copy an agent's changes to a fresh container of the same image, except files that could influence
the tests.

The agent's container is untrusted. Its listing is validated, and its archives are read by a tar
reader for untrusted input. The archive that is unpacked in the fresh container is written here;
none of its paths goes through a link.
"""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, cast

from hyperenvironment_terminal.changes import NOT_LISTED, ChangePlan, make_protection, plan_changes
from hyperenvironment_terminal.listing import Entry, Listing, first_error, list_files
from hyperruntime.errors import TransferError
from hyperruntime.host.owner import owned_directory
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ExecResult
from hyperruntime.storage.tar_reader import TarReader
from hyperruntime.transfer.extract import ExtractLimits

_BATCH_BYTES = 16 * 1024**2
_BATCH_FILES = 2000
_COPY_TIMEOUT_S = 300.0
_READ = ["tar", "--create", "--file=-", "--directory=/", "--hard-dereference", "--no-recursion", "--null",
         "--verbatim-files-from", "--files-from=-"]  # fmt: skip
_WRITE = [
    "tar",
    "--extract",
    "--file=-",
    "--directory=/",
    "--preserve-permissions",
    "--numeric-owner",
]
_MAX_NAME = 4096


class StateError(TransferError):
    """The agent's files cannot be copied, because the agent broke its container or wrote too
    much.
    """


async def carry(
    agent: Sandbox,
    judge: Sandbox,
    *,
    mounted: Sequence[str],
    workdir: str,
    scripted: bool,
    limit_bytes: int,
    limit_files: int,
) -> dict[str, Any]:
    """Apply an agent's changes to a fresh container of the same image; return facts for the report.

    The facts are ``changed``, the number of paths that were created, changed or removed;
    ``withheld``, the first 100 paths at or below which changes were not applied; and
    ``withheld_count``, the number of all such paths.

    Args:
        agent: the agent's container; all its processes have ended.
        judge: the fresh container.
        mounted: mount targets in both containers; they are skipped.
        workdir: working directory of the tests.
        scripted: whether the tests are a script.
        limit_bytes: maximum total size of the copied files.
        limit_files: maximum number of the copied files, directories and links.

    Raises:
        StateError: the agent's container cannot be read, or its files exceed a limit.
        TransferError: the fresh container cannot be read or written.
    """
    leave_out = (*NOT_LISTED, *mounted)
    pristine = await list_files(judge, leave_out)
    try:
        listing = await list_files(agent, leave_out)
    except TransferError as error:
        raise StateError(str(error)) from error
    shown = await judge.exec(["printenv", "PATH"], workdir="/", output_limit_bytes=65536)
    search = shown.stdout.decode(errors="replace").strip().split(":")
    protection = await asyncio.to_thread(
        make_protection, pristine, search, workdir, scripted=scripted
    )
    plan = await asyncio.to_thread(plan_changes, pristine, listing, protection)
    _check_limits(plan, listing, limit_bytes, limit_files)
    await _apply(plan, listing, agent, judge)
    return {
        "changed": len(plan.remove) + len(plan.directories) + len(plan.files) + len(plan.links),
        "withheld": [path.decode(errors="replace") for path in plan.withheld[:100]],
        "withheld_count": len(plan.withheld),
    }


async def _apply(plan: ChangePlan, listing: Listing, agent: Sandbox, judge: Sandbox) -> None:
    await _remove(judge, plan.remove)
    await _write(judge, _members(plan.directories, listing))
    for path in plan.files:
        if listing[path].size > _BATCH_BYTES:
            await _carry_large(agent, judge, path, listing[path])
    small = [path for path in plan.files if listing[path].size <= _BATCH_BYTES]
    for batch in _batches(small, listing):
        await _write(judge, await _contents(agent, batch, listing))
    await _write(judge, _members(plan.links, listing))


def _check_limits(plan: ChangePlan, listing: Listing, limit_bytes: int, limit_files: int) -> None:
    total = sum(listing[path].size for path in plan.files)
    if total > limit_bytes:
        raise StateError(
            f"the agent's files have {total} bytes, but at most {limit_bytes} are allowed "
            "(limit_bytes)"
        )
    count = len(plan.files) + len(plan.directories) + len(plan.links)
    if count > limit_files:
        raise StateError(
            f"the agent changed {count} files, but at most {limit_files} are allowed (limit_files)"
        )


async def _remove(judge: Sandbox, paths: Iterable[bytes]) -> None:
    if names := b"".join(path + b"\0" for path in paths):
        _check(
            await judge.exec(["xargs", "-0", "rm", "-rf", "--"], input=names, workdir="/"),
            "removed",
        )


async def _write(judge: Sandbox, archive: bytes) -> None:
    if archive:
        _check(await judge.exec(_WRITE, input=archive, workdir="/"), "written")


def _check(result: ExecResult, what: str) -> None:
    if result.exit_code != 0:
        raise TransferError(
            f"files of the judging container could not be {what}: {first_error(result)}"
        )


async def _carry_large(agent: Sandbox, judge: Sandbox, path: bytes, entry: Entry) -> None:
    """Copy one large file through a temporary file on the host."""
    name = os.fsdecode(path)
    with owned_directory() as directory:
        copy = os.path.join(directory, "file")
        try:
            limits = ExtractLimits(max_bytes=entry.size + 1, max_members=2)
            await agent.get(name, copy, limits=limits, timeout_s=_COPY_TIMEOUT_S)
        except TransferError as error:
            raise StateError(str(error)) from error
        if not await asyncio.to_thread(_is_regular, copy):
            raise StateError(f"the agent's container did not return the regular file {name!r}")
        await judge.put(copy, name, timeout_s=_COPY_TIMEOUT_S)
    owner = f"{entry.uid}:{entry.gid}"
    mode = f"{entry.mode:o}"
    for args in (
        ["chown", owner],
        ["chmod", mode],
        ["touch", "--date", f"@{entry.mtime.decode()}"],
    ):
        _check(await judge.exec([*args, "--", name], workdir="/"), "written")


def _is_regular(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


def _batches(paths: Sequence[bytes], listing: Listing) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for path in paths:
        if batch and (size + listing[path].size > _BATCH_BYTES or len(batch) >= _BATCH_FILES):
            yield batch
            batch = []
            size = 0
        batch.append(path)
        size += listing[path].size
    if batch:
        yield batch


async def _contents(agent: Sandbox, batch: Sequence[bytes], listing: Listing) -> bytes:
    """Return an archive of files of the agent's container."""
    wanted = {path[1:]: listing[path] for path in batch}
    room = sum(entry.size for entry in wanted.values()) + (_MAX_NAME + 4096) * len(wanted) + 65536
    names = b"".join(name + b"\0" for name in wanted)
    result = await agent.exec(_READ, input=names, workdir="/", output_limit_bytes=room)
    if result.exit_code != 0 or result.truncated:
        raise StateError("files of the agent's container could not be read")
    return await asyncio.to_thread(_repack, result.stdout, wanted)


def _repack(archive: bytes, wanted: dict[bytes, Entry]) -> bytes:
    """Rewrite an archive: take the content from it, and all metadata from the listing.

    Raises:
        StateError: the archive does not contain exactly the wanted files.
    """
    buffer = io.BytesIO()
    reader = TarReader(cast(BinaryIO, io.BytesIO(archive)))
    with _new_archive(buffer) as made:
        try:
            for member in reader:
                entry = wanted.pop(member.name, None)
                if entry is None or member.kind != "file":
                    raise StateError(
                        f"the agent's container returned {member.name!r}, which was not requested"
                    )
                content = b"".join(bytes(chunk) for chunk in reader.data())
                made.addfile(_header(b"/" + member.name, entry, len(content)), io.BytesIO(content))
        except TransferError as error:
            raise StateError(str(error)) from error
    if wanted:
        raise StateError(f"the agent's container did not return {len(wanted)} of its files")
    return buffer.getvalue()


def _new_archive(buffer: BinaryIO) -> tarfile.TarFile:
    return tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape"
    )


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
    info.type = _TYPES[entry.kind]
    info.mode = entry.mode
    info.uid = entry.uid
    info.gid = entry.gid
    info.size = size
    info.mtime = float(entry.mtime)
    info.linkname = entry.link.decode("utf-8", "surrogateescape")
    return info
