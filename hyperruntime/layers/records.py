"""The list of the containers of an engine that keeps none: a small file for each, in a directory of
this user.

A record is written before a container starts, and removed after its files.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import attrs
import psutil
from platformdirs import user_state_path

from hyperruntime.driver import ContainerRecord
from hyperruntime.errors import EngineError, write_error
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.owner import OwnerIdentity
from hyperruntime.host.process import process_start_ticks, wait_until
from hyperruntime.layers.scratch import remove_tree

KEPT = "hyperruntime-kept"  # what the name of a kept layer of snapshots begins with
_REMOVALS = 3
_END_S = 1.0


@attrs.frozen(kw_only=True)
class Record:
    """The record of one container.

    Attributes:
        name: the container's name, unique on this machine.
        image: the image reference of the spec.
        source: the directories that its files come from, joined by ``:``, or "".
        labels: owner labels and the user's labels.
        created: seconds since the epoch.
        keeper: the process that removes its files after its end.
        files: the container's directory on scratch; its processes have it in their arguments.
    """

    name: str
    image: str
    source: str
    labels: Mapping[str, str] = attrs.field(hash=False)
    created: float
    keeper: OwnerIdentity
    files: str

    def state(self) -> str:
        """Return ``running``, ``dead`` or ``elsewhere`` (machines may share a home directory)."""
        state = self.keeper.state()
        return "running" if state == "alive" else state


class Records:
    """The records of one engine's containers.

    Attributes:
        engine: the driver's name.
    """

    def __init__(self, engine: str) -> None:
        """Read nothing.

        Args:
            engine: the driver's name.
        """
        self.engine = engine

    @property
    def directory(self) -> Path:
        """The directory of the records."""
        return _root() / self.engine

    def path_of(self, name: str) -> str:
        """Return the path of a container's record, which need not exist."""
        return str(self.directory / f"{name}.json")

    def write(
        self, name: str, image: str, source: str, labels: Mapping[str, str], pid: int, files: str
    ) -> Record:
        """Write the record of a container and return it.

        Args:
            name: the container's name.
            image: the image reference of the spec.
            source: the directories that its files come from, joined by ``:``, or "".
            labels: owner labels and the user's labels.
            pid: the keeper's process id; the owner's until the keeper has started.
            files: the container's directory on scratch.

        Raises:
            StorageError: the record cannot be written.
        """
        keeper = attrs.evolve(
            OwnerIdentity.current(), pid=pid, start_ticks=process_start_ticks(pid) or 0
        )
        record = Record(
            name=name,
            image=image,
            source=source,
            labels=dict(labels),
            created=time.time(),
            keeper=keeper,
            files=files,
        )
        path = self.path_of(name)
        try:
            facts = {**attrs.asdict(record, recurse=False), "keeper": attrs.asdict(keeper)}
            if not os.path.isdir(directory := os.path.dirname(path)):
                os.makedirs(directory, mode=0o700, exist_ok=True)
            Path(f"{path}.tmp").write_text(json.dumps(facts))
            os.replace(f"{path}.tmp", path)
        except OSError as error:
            why = f"{path} cannot be written: {error}; set XDG_STATE_HOME to another directory"
            raise write_error(why, error) from error
        return record

    def read_all(self, about: str = "", but: Container[str] = ()) -> Iterator[Record]:
        """Yield all records; delete those of dead containers without files, and skip unreadable
        ones, and those of ended containers whose keeper removes the files now.

        Args:
            about: part of their text; others are skipped.
            but: names of those that are not read.
        """
        directory = self.directory
        # not glob: there may be a thousand
        for name in sorted(os.listdir(directory)) if directory.is_dir() else ():
            if not name.endswith((".json", ".ending")) or name.removesuffix(".json") in but:
                continue
            path = directory / name
            try:
                if about not in (text := path.read_text()):
                    continue
                facts = json.loads(text)
                record = Record(**{**facts, "keeper": OwnerIdentity.from_record(facts["keeper"])})
            except (OSError, ValueError, TypeError, KeyError):
                continue
            if record.state() == "dead" and not os.path.exists(record.files):
                path.unlink(missing_ok=True)
            elif path.suffix == ".json" or record.state() == "dead":
                yield record

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this user's containers, as a driver lists them."""
        return tuple(
            ContainerRecord(
                id=one.name,
                image=one.image,
                state=one.state(),
                created=one.created,
                labels=one.labels,
            )
            for one in self.read_all()
        )

    def remove(self, name: str) -> None:
        """End a container and remove its files; do nothing if it does not exist.

        Raises:
            EngineError: it runs on another machine, or does not end.
        """
        for record in self.read_all():
            if record.name == name:
                self.end(record)

    def end(self, record: Record) -> None:
        """End a container and remove its files and its record.

        Raises:
            EngineError: it runs on another machine, or does not end.
        """
        if record.state() == "elsewhere":
            where = f"on {record.keeper.host}, or in another pid namespace"
            raise EngineError(f"container {record.name} is {where}; remove it there")
        # not psutil's wait: it would reap our children before their HostProcess does
        if not wait_until(lambda: not _kill(record.files), limit_s(self.engine, "kill"), 0.02):
            pids = ", ".join(str(process.pid) for process in processes_of(record.files))
            raise EngineError(f"container {record.name} does not end; kill its processes: {pids}")
        discard(record.files, self.path_of(record.name))


def users_of(identifier: str, but: Container[str] = ()) -> Iterator[str]:
    """Yield what uses an image of the store or a named snapshot, of any engine, as part of a
    sentence.

    Args:
        identifier: part of the path of its files.
        but: names of records that do not count.
    """
    for folder in sorted(_root().glob("*/")):
        for one in Records(folder.name).read_all(identifier, but):
            if identifier in re.split("[/:]", one.source) and one.state() != "dead":
                if one.name.startswith(KEPT):
                    yield f"a snapshot of process {one.keeper.pid}; close its runtime first"
                else:
                    yield f"the container {one.name}; remove the container first"


def user_of(identifier: str) -> str:
    """Return one of what :func:`users_of` yields, or ""; a container that was just closed has a
    second for its end.
    """
    wait_until(lambda: next(users_of(identifier), None) is None, _END_S, 0.02)
    return next(users_of(identifier), "")


def _root() -> Path:
    return user_state_path("hyperruntime") / "containers"


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
            for path in (record, f"{record}.ending"):
                Path(path).unlink(missing_ok=True)
            return


def _is_live(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
