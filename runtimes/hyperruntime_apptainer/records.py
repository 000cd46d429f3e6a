"""What Apptainer does not keep: a list of containers. One small file each, in a directory of this user.

A record is written when a container starts and removed when it ends, by its keeper or by whoever ends it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import psutil
from platformdirs import user_state_path

from hyperruntime.driver import ContainerRecord
from hyperruntime.errors import EngineError, StorageError
from hyperruntime.host.owner import OwnerIdentity
from hyperruntime.host.process import process_start_ticks, run_process
from hyperruntime_apptainer.texts import REMOVE_TREE

_KILL_TIMEOUT_S = 10.0


@attrs.frozen(kw_only=True)
class Record:
    """One container.

    Attributes:
        name: unique on this machine.
        image: as its user named it.
        source: the sandbox or SIF it is made from.
        labels: its owner's and its user's.
        created: seconds since the epoch.
        keeper: the process that runs it and removes its files.
        files: its directory on scratch.
    """

    name: str
    image: str
    source: str
    labels: Mapping[str, str]
    created: float
    keeper: OwnerIdentity
    files: str

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Return what a file holds.

        Raises:
            ValueError, TypeError, KeyError: it is no record.
        """
        facts = json.loads(text)
        return cls(**{**facts, "keeper": OwnerIdentity.from_record(facts["keeper"])})

    def state(self) -> str:
        """Return ``running``, ``dead``, or ``elsewhere`` (a home directory may be seen from many machines)."""
        state = self.keeper.state()
        return "running" if state == "alive" else state

    def to_container(self) -> ContainerRecord:
        """Return it as the library lists it."""
        return ContainerRecord(
            id=self.name, image=self.image, state=self.state(), created=self.created, labels=self.labels
        )


def directory() -> Path:
    """Return where the records are."""
    return user_state_path("hyperruntime") / "apptainer"


def path_of(name: str) -> str:
    """Return where a container's record is, or will be."""
    return str(directory() / f"{name}.json")


def write(name: str, image: str, source: str, labels: Mapping[str, str], pid: int, files: str) -> Record:
    """Write the record of a container: its owner's pid stands for its keeper's until that has started.

    Raises:
        StorageError: the directory cannot be written.
    """
    record = Record(
        name=name,
        image=image,
        source=source,
        labels=dict(labels),
        created=time.time(),
        keeper=attrs.evolve(OwnerIdentity.current(), pid=pid, start_ticks=process_start_ticks(pid) or 0),
        files=files,
    )
    path = path_of(name)
    try:
        os.makedirs(directory(), mode=0o700, exist_ok=True)
        Path(f"{path}.tmp").write_text(json.dumps(attrs.asdict(record)))
        os.replace(f"{path}.tmp", path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}; set XDG_STATE_HOME to a directory of yours") from error
    return record


def read_all() -> Iterator[Record]:
    """Yield every container there is a record of, and drop records of which nothing is left."""
    for path in sorted(directory().glob("*.json")):
        try:
            record = Record.from_json(path.read_text())
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if record.state() == "dead" and not os.path.exists(record.files):
            path.unlink(missing_ok=True)
        else:
            yield record


def remove(name: str) -> None:
    """End a container and remove what it left; no error when it is gone already.

    Raises:
        EngineError: it runs on another machine, or does not end.
    """
    for record in read_all():
        if record.name == name:
            end(record)


def remove_labelled(label: str) -> None:
    """End and remove every container of this machine that carries ``name=value``."""
    name, _, value = label.partition("=")
    for record in read_all():
        if record.labels.get(name) == value and record.state() != "elsewhere":
            end(record)


def end(record: Record) -> None:
    """End a container and remove its files and its record.

    Raises:
        EngineError: it runs on another machine, or does not end.
    """
    if record.state() == "elsewhere":
        where = f"on {record.keeper.host}, or in another pid namespace"
        raise EngineError(f"container {record.name} is {where}; remove it there")
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while processes := processes_of(record.files):
        for process in processes:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        time.sleep(0.02)  # psutil would wait for our own children in place of whoever started them
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in processes)
            raise EngineError(f"container {record.name} does not end; its processes are {pids}")
    discard(record.files, path_of(record.name))


def processes_of(files: str) -> list[psutil.Process]:
    """Return the live processes that name a container's own directory among their arguments, and all below them."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            args = process.cmdline()
            if any(arg == files or arg.startswith(f"{files}/") for arg in args) and _is_ours(process):
                found.update({p.pid: p for p in (process, *process.children(recursive=True))})
        except psutil.Error:
            continue
    return [process for process in found.values() if _is_ours(process)]


def discard(files: str, record: str) -> None:
    """Remove a container's files, then its record: a record leads to what could not be removed."""
    remove_tree(files)
    if not os.path.lexists(files):
        Path(record).unlink(missing_ok=True)


def remove_tree(*paths: str) -> None:
    """Remove files and directories, also those whose modes forbid it."""
    run_process(["/bin/sh", "-c", REMOVE_TREE, "remove", *paths], cwd="/")


def _is_ours(process: psutil.Process) -> bool:
    try:
        return process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
