"""What Apptainer does not keep: a list of containers. One small file each, in a directory of this user.

A record is written when a container starts and removed when it ends, by its keeper or by whoever ends it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import psutil
from platformdirs import user_state_path

from hyperruntime.driver import ContainerRecord
from hyperruntime.errors import EngineError, StorageError
from hyperruntime.process import is_alive, process_start_time, run_process
from hyperruntime_apptainer.args import REMOVE_TREE

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
        host: where it runs (a home directory may be seen from many machines).
        pid: its keeper.
        start_time: the keeper's, seconds since the epoch.
        files: its directory on scratch.
    """

    name: str
    image: str
    source: str
    labels: Mapping[str, str]
    created: float
    host: str
    pid: int
    start_time: float
    files: str

    def is_elsewhere(self) -> bool:
        """Tell whether it is another machine's."""
        return self.host != socket.gethostname()

    def state(self) -> str:
        """Return ``running``, ``dead``, or ``elsewhere``."""
        if self.is_elsewhere():
            return "elsewhere"
        return "running" if is_alive(self.pid, self.start_time) else "dead"

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
    """Write the record of a container whose keeper has just started.

    Raises:
        StorageError: the directory cannot be written.
    """
    record = Record(
        name=name,
        image=image,
        source=source,
        labels=dict(labels),
        created=time.time(),
        host=socket.gethostname(),
        pid=pid,
        start_time=process_start_time(pid) or 0.0,
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
            record = Record(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
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
        if record.labels.get(name) == value and not record.is_elsewhere():
            end(record)


def end(record: Record) -> None:
    """End a container and remove its files and its record.

    Raises:
        EngineError: it runs on another machine, or does not end.
    """
    if record.is_elsewhere():
        raise EngineError(f"container {record.name} runs on {record.host}; remove it there")
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while processes := processes_of(record.files):
        for process in processes:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        psutil.wait_procs(processes, timeout=0.5)
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in processes)
            raise EngineError(f"container {record.name} does not end; its processes are {pids}")
    remove_tree(record.files, path_of(record.name))


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


def remove_tree(*paths: str) -> None:
    """Remove files and directories, also those whose modes forbid it."""
    run_process(["/bin/sh", "-c", REMOVE_TREE, "remove", *paths], cwd="/")


def _is_ours(process: psutil.Process) -> bool:
    try:
        return process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
