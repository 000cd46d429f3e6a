"""The open clusters of a user: a file for each, which other processes read to show, end or find it.

Only what writes the file loads asyncio; ``hyperrun status`` reads it, and must start quickly.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from hyperruntime.errors import HyperRuntimeError
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.process import boot_id, process_start_ticks
from hyperruntime.json_values import parse_json
from hyperruntime.logs import get_logger
from hyperruntime.settings.reader import read
from hyperruntime.storage.atomic import json_document, write_atomic

if TYPE_CHECKING:
    from hyperruntime.cluster.head import Head, Node

log = get_logger(__name__)

WRITE_S = 2.0
_STALE_S = 30.0  # a file of another machine that is older was left by a head that was killed
_ASK_S = 5.0
_numbers = itertools.count(1)


@attrs.frozen(kw_only=True)
class NodeState:
    """One node of an open cluster.

    Attributes:
        name: given by the head.
        state: ``waiting`` for its job, ``preparing``, ``ready``, ``leaving`` or ``lost``.
        why: of ``leaving`` and ``lost``.
        host: the machine.
        job: its number in the batch system; "" if it has none, or has not joined.
        pid: the node server's process there; 0 before it has joined.
        uses: how much work it has.
        containers: names of its containers.
    """

    name: str
    state: str
    why: str = ""
    host: str = ""
    job: str = ""
    pid: int = 0
    uses: int = 0
    containers: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class ClusterState:
    """An open cluster, as its head last wrote it.

    Attributes:
        name: unique among the user's open clusters.
        directory: job scripts and logs.
        host: machine of the head.
        boot: boot of that machine.
        pid: the head's process.
        start_ticks: start of that process in clock ticks since boot.
        provider: the batch system; for a Parsl config of the user's own, the ``module:name`` of its
            function.
        opened: seconds since 1970.
        written: seconds since 1970.
        nodes: all nodes that were asked for.
    """

    name: str
    directory: str
    host: str
    boot: str
    pid: int
    start_ticks: int
    provider: str
    opened: float
    written: float
    nodes: tuple[NodeState, ...]

    @property
    def is_here(self) -> bool:
        """Whether the head runs on this machine."""
        return self.boot == boot_id()

    @property
    def is_open(self) -> bool:
        """Whether the head lives; for another machine, whether it wrote lately."""
        if self.is_here:
            return process_start_ticks(self.pid) == self.start_ticks
        return time.time() - self.written < _STALE_S

    def makes(self, run_dir: Path) -> bool:
        """Return whether its nodes work on a run: the files of its jobs are then beside the run
        directory, or in it.
        """
        run = run_dir.absolute()
        place = Path(self.directory)
        beside = place.parent == run.parent and place.name.startswith(f".{run.name}.jobs-")
        return beside or place.parent == run

    def end(self) -> None:
        """Send the head SIGINT, or SIGTERM if it ignores SIGINT; it then cancels its jobs and ends.

        Raises:
            ProcessLookupError: it has ended.
        """
        os.kill(self.pid, signal.SIGTERM if _ignores_interrupts(self.pid) else signal.SIGINT)


def _ignores_interrupts(pid: int) -> bool:
    """Return whether a process ignores SIGINT, as background processes of a script do. Source:
    proc(5).
    """
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, mask = line.partition(":")
            if name == "SigIgn":
                return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)
    return False


def directory_of_clusters() -> Path:
    """Return the directory of the files; it may not exist yet."""
    return cache_directory() / "clusters"


def open_clusters() -> list[ClusterState]:
    """Return the open clusters of this user, oldest first; files of heads that were killed are
    removed.
    """
    found = []
    with suppress(FileNotFoundError):
        for path in directory_of_clusters().iterdir():
            if path.suffix == ".json" and (state := _read(path)) is not None:
                if state.is_open:
                    found.append(state)
                else:
                    path.unlink(missing_ok=True)
    return sorted(found, key=lambda state: state.opened)


def _read(path: Path) -> ClusterState | None:
    try:
        return read(ClusterState, parse_json(path.read_bytes()))
    except (OSError, ValueError):  # SpecError is one
        return None


class ClusterFile:
    """Writes the file of one open cluster, until :meth:`remove`."""

    def __init__(self, head: Head, provider: str, directory: Path) -> None:
        """Write nothing yet."""
        self._head = head
        self._provider = provider
        self._directory = directory
        name = f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"
        self._path = directory_of_clusters() / f"{name}.json"
        self._opened = time.time()
        self._containers: dict[str, tuple[str, ...]] = {}
        self._writing = threading.Lock()
        self._removed = False

    async def keep_writing(self) -> None:
        """Write the file every ``WRITE_S`` seconds until cancelled; a failure is logged once and
        retried.
        """
        import asyncio

        told = False
        while True:
            await self._ask()
            try:
                await asyncio.to_thread(self._write, json_document(attrs.asdict(self._state())))
            except (OSError, HyperRuntimeError) as error:
                if not told:
                    log.warning("cluster file not written", path=str(self._path), error=str(error))
                told = True
            await asyncio.sleep(WRITE_S)

    def remove(self) -> None:
        """Remove the file; a write that is late does nothing."""
        with self._writing:
            self._removed = True
            self._path.unlink(missing_ok=True)

    def _write(self, content: bytes) -> None:
        with self._writing:  # a thread goes on writing when `keep_writing` is cancelled
            if not self._removed:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(self._path, content)

    async def _ask(self) -> None:
        import asyncio

        from hyperruntime.cluster.check import ContainerNames

        async def ask(node: Node) -> None:
            with suppress(HyperRuntimeError, TimeoutError):
                async with asyncio.timeout(_ASK_S):
                    self._containers[node.name] = (
                        await node.peer.ask(ContainerNames, "containers")
                    ).names

        await asyncio.gather(*(ask(node) for node in self._head.connected()))

    def _state(self) -> ClusterState:
        return ClusterState(
            name=self._path.stem,
            directory=str(self._directory),
            host=socket.gethostname(),
            boot=boot_id(),
            pid=os.getpid(),
            start_ticks=process_start_ticks(os.getpid()) or 0,
            provider=self._provider,
            opened=self._opened,
            written=time.time(),
            nodes=tuple(self._node(node) for node in self._head.nodes.values()),
        )

    def _node(self, node: Node) -> NodeState:
        if node.lost is not None:
            state = "lost"
            why = str(node.lost)
        elif node.leaving:
            state = "leaving"
            why = node.leaving
        else:
            state = "ready" if node.is_ready else "preparing" if node.joined.is_set() else "waiting"
            why = ""
        return NodeState(
            name=node.name,
            state=state,
            why=why,
            host=node.facts.host,
            job=node.facts.job,
            pid=node.facts.pid,
            uses=node.uses,
            containers=() if node.lost else self._containers.get(node.name, ()),
        )
