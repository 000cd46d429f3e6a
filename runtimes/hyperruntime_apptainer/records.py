"""Keep a list of containers, which Apptainer does not: one small file for each in a directory of
this user.

A record is written when a container starts. The container's keeper removes it at the end, or
:func:`end` does.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import attrs
import psutil
from platformdirs import user_state_path

from hyperruntime.errors import EngineError, write_error
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.owner import OwnerIdentity
from hyperruntime.host.process import process_start_ticks, run_process, wait_until
from hyperruntime_apptainer.args import NAME
from hyperruntime_apptainer.texts import REMOVE_TREE

_REMOVALS = 3


@attrs.frozen(kw_only=True)
class Record:
    """The record of one container.

    Attributes:
        name: the container's name, unique on this machine.
        image: the image reference of the spec.
        source: the sandbox or SIF of the image.
        labels: owner labels and the user's labels.
        created: seconds since the epoch.
        keeper: the process that runs the container and removes its files.
        files: the container's directory on scratch.
    """

    name: str
    image: str
    source: str
    labels: Mapping[str, str]
    created: float
    keeper: OwnerIdentity
    files: str

    def state(self) -> str:
        """Return ``running``, ``dead`` or ``elsewhere`` (machines may share a home directory)."""
        state = self.keeper.state()
        return "running" if state == "alive" else state


def directory() -> Path:
    """Return the directory of the records."""
    return user_state_path("hyperruntime") / "apptainer"


def path_of(name: str) -> str:
    """Return the path of a container's record, which need not exist."""
    return str(directory() / f"{name}.json")


def write(
    name: str, image: str, source: str, labels: Mapping[str, str], pid: int, files: str
) -> Record:
    """Write the record of a container and return it.

    Args:
        name: the container's name.
        image: the image reference of the spec.
        source: the sandbox or SIF of the image.
        labels: owner labels and the user's labels.
        pid: the keeper's process id; the owner's until the keeper has started.
        files: the container's directory on scratch.

    Raises:
        StorageError: the record cannot be written.
    """
    record = Record(
        name=name,
        image=image,
        source=source,
        labels=dict(labels),
        created=time.time(),
        keeper=attrs.evolve(
            OwnerIdentity.current(), pid=pid, start_ticks=process_start_ticks(pid) or 0
        ),
        files=files,
    )
    path = path_of(name)
    try:
        os.makedirs(directory(), mode=0o700, exist_ok=True)
        Path(f"{path}.tmp").write_text(json.dumps(attrs.asdict(record)))
        os.replace(f"{path}.tmp", path)
    except OSError as error:
        raise write_error(
            f"{path} cannot be written: {error}; set XDG_STATE_HOME to another directory", error
        ) from error
    return record


def read_all() -> Iterator[Record]:
    """Yield all records; delete those of dead containers without files, and skip unreadable
    ones.
    """
    for path in sorted(directory().glob("*.json")):
        try:
            facts = json.loads(path.read_text())
            record = Record(**{**facts, "keeper": OwnerIdentity.from_record(facts["keeper"])})
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if record.state() == "dead" and not os.path.exists(record.files):
            path.unlink(missing_ok=True)
        else:
            yield record


def remove(name: str) -> None:
    """End a container and remove its files; do nothing if it does not exist.

    Raises:
        EngineError: it runs on another machine, or does not end.
    """
    for record in read_all():
        if record.name == name:
            end(record)


def end(record: Record) -> None:
    """End a container and remove its files and its record.

    Raises:
        EngineError: it runs on another machine, or does not end.
    """
    if record.state() == "elsewhere":
        where = f"on {record.keeper.host}, or in another pid namespace"
        raise EngineError(f"container {record.name} is {where}; remove it there")
    # not psutil's wait: it would reap our children before their HostProcess does
    if not wait_until(lambda: not _kill(record.files), limit_s(NAME, "kill"), 0.02):
        pids = ", ".join(str(process.pid) for process in processes_of(record.files))
        raise EngineError(f"container {record.name} does not end; kill its processes: {pids}")
    discard(record.files, path_of(record.name))


def _kill(files: str) -> bool:
    """Kill the processes of a container; return whether there were any."""
    processes = processes_of(files)
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    return bool(processes)


def processes_of(files: str) -> list[psutil.Process]:
    """Return this user's live processes that have a container's directory in their arguments, and
    their descendants.

    Descendants may have subordinate ids: this user may kill them, because it owns their user
    namespace.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            args = process.cmdline()
            if (
                any(arg == files or arg.startswith(f"{files}/") for arg in args)
                and process.uids().real == os.getuid()
                and _is_live(process)
            ):
                found.update({p.pid: p for p in (process, *process.children(recursive=True))})
        except psutil.Error:
            continue
    return [process for process in found.values() if _is_live(process)]


def discard(files: str, record: str) -> None:
    """Remove a container's files, then its record; the record stays if a file could not be removed.

    A batch system that ends a job may send SIGTERM to ``rm`` too; then this tries again.

    Args:
        files: the container's directory on scratch.
        record: the path of its record.
    """
    for _ in range(_REMOVALS):
        remove_tree(files)
        if not os.path.lexists(files):
            Path(record).unlink(missing_ok=True)
            return


def remove_tree(*paths: str) -> None:
    """Remove files and directories, even if their modes forbid it."""
    run_process(["/bin/sh", "-c", REMOVE_TREE, "remove", *paths], cwd="/")


def _is_live(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
