"""Check a node, and what it shares with the head; each failure with its next step.

Of a shared file system it measures how late the other machine sees a change, and whether it sees
locks.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
from attrs.validators import deep_iterable, max_len

from hyperruntime.cluster.head import Node
from hyperruntime.cluster.job_directory import SEEN_S
from hyperruntime.cluster.node_findings import ADMINISTRATOR, Needs, node_findings
from hyperruntime.cluster.node_services import NodeContext
from hyperruntime.driver import Finding
from hyperruntime.errors import ClusterError
from hyperruntime.host.process import wait_until
from hyperruntime.storage.atomic import write_atomic
from hyperruntime.wire.checks import Line
from hyperruntime.wire.peer import Answer, Call

LATE_S = 3.0  # until a change is seen; more is reported
_MOST_SKEW_S = 1.0
_ROUNDS = 5
_MOST_CONTAINERS = 100_000
_POLL_S = 0.01


@attrs.frozen(kw_only=True)
class ContainerNames:
    """The answer of ``containers``: the containers of a node."""

    names: tuple[str, ...] = attrs.field(
        validator=deep_iterable(Line(255), max_len(_MOST_CONTAINERS))
    )


@attrs.frozen(kw_only=True)
class _Findings:
    """The answer of ``check``."""

    findings: tuple[Finding, ...]


@attrs.frozen(kw_only=True)
class _Time:
    """The answer of ``time``: seconds since 1970."""

    time: float


@attrs.frozen(kw_only=True)
class _Seen:
    """The answer of ``see``: after how many seconds a file was seen, and whether its lock was.

    Attributes:
        waited_s: seconds; None if it was not seen.
        locked: None if its directory was not seen.
    """

    waited_s: float | None
    locked: bool | None


async def _answer_check(call: Call) -> Answer:
    """Answer the head's ``check``: the findings of this node."""
    needs = Needs(**call.args)
    findings = await asyncio.to_thread(lambda: list(node_findings(needs)))
    return Answer({"findings": [attrs.asdict(finding) for finding in findings]})


async def _answer_time(_: Call) -> Answer:
    """Answer the head's ``time``: seconds since 1970."""
    return Answer({"time": time.time()})


async def _answer_see(call: Call) -> Answer:
    """Answer the head's ``see``: whether a file of a shared directory is seen in time, and the lock
    beside it.

    It emits an event after it has listed the directory without the file, because a network file
    system may cache that listing and show the file only after the cache expires. Source: nfs(5),
    acdirmax.
    """
    path = str(call.args["path"])
    timeout_s = float(call.args["timeout_s"])
    directory = os.path.dirname(path)
    locked_file = f"{path}.lock"
    if not await asyncio.to_thread(wait_until, lambda: _lists(directory, locked_file), timeout_s):
        return Answer(attrs.asdict(_Seen(waited_s=None, locked=None)))
    await call.emit(Answer())
    waited = await asyncio.to_thread(_wait_until_listed, path, call.body, timeout_s)
    return Answer(
        attrs.asdict(
            _Seen(waited_s=waited, locked=await asyncio.to_thread(_is_locked, locked_file))
        )
    )


def _lists(directory: str, path: str) -> bool:
    with suppress(OSError):
        return os.path.basename(path) in os.listdir(directory)
    return False


async def _answer_write(call: Call) -> Answer:
    """Answer the head's ``write``: write a file of a shared directory."""
    await asyncio.to_thread(write_atomic, Path(call.args["path"]), call.body)
    return Answer()


class CheckService:
    """Lets the head check this node and list its containers.

    Attributes:
        handlers: ``check``, ``time``, ``see``, ``write`` and ``containers``.
    """

    def __init__(self, context: NodeContext) -> None:
        """Prepare."""
        self.handlers = {
            "check": _answer_check,
            "time": _answer_time,
            "see": _answer_see,
            "write": _answer_write,
            "containers": self._containers,
        }
        self._context = context

    async def close(self) -> None:
        """Do nothing."""

    async def _containers(self, _: Call) -> Answer:
        return Answer({"names": list(self._context.containers())})


async def check_node(node: Node, directory: Path, needs: Needs) -> Sequence[Finding]:
    """Return the findings about a node, and about what it shares with the head.

    Args:
        node: has joined, and has a :class:`CheckService`.
        directory: the directory of future runs.
        needs: what work will need.

    Raises:
        NodeLostError: the node was lost meanwhile.
        ClusterError: the directory cannot be written.
    """
    checked = await node.peer.ask(_Findings, "check", attrs.asdict(needs))
    return [await _clock(node), *await _shared(node, directory), *checked.findings]


async def _clock(node: Node) -> Finding:
    skews = []
    for _ in range(_ROUNDS):
        before = time.time()
        there = (await node.peer.ask(_Time, "time")).time
        after = time.time()
        skews.append((after - before, there - (before + after) / 2))
    skew = min(skews)[1]  # of the fastest call, which is the most exact
    ok = abs(skew) <= _MOST_SKEW_S or None
    step = "" if ok else f"{ADMINISTRATOR} to start a time service; times in logs of nodes differ"
    return Finding(
        subject="clock", ok=ok, detail=f"{skew * 1e3:+.1f} ms from the head's", next_step=step
    )


async def _shared(node: Node, directory: Path) -> list[Finding]:
    content = os.urandom(32)
    try:
        with tempfile.TemporaryDirectory(prefix=".hyperrun-check-", dir=directory) as place:
            path = os.path.join(place, "file")
            with _locked(f"{path}.lock"):
                told = await _seen_on_node(node, path, content)
            if told is None:
                step = "run in a directory that all nodes share, such as one below $HOME"
                detail = f"{directory} of the head is not seen on the node within {SEEN_S:g} s"
                return [Finding(subject="run directory", ok=False, detail=detail, next_step=step)]
            await asyncio.to_thread(os.listdir, place)
            await node.peer.call("write", {"path": f"{path}.answer"}, content)
            back = await asyncio.to_thread(_wait_until_listed, f"{path}.answer", content, SEEN_S)
    except OSError as error:
        raise ClusterError(
            f"{directory} cannot be written: {error.strerror or error}; name another one"
        ) from error
    return [
        _seen("a file renamed by the head is seen on the node", told.waited_s),
        _seen("a file renamed by the node is seen by the head", back),
        Finding(
            subject="flock",
            ok=told.locked or None,
            detail="is seen across nodes"
            if told.locked
            else "is not seen across nodes; runs do not rely on it",
        ),
    ]


async def _seen_on_node(node: Node, path: str, content: bytes) -> _Seen | None:
    """Write a file after the node has listed its directory; return the node's answer, or None if it
    cannot list it.
    """
    is_listed = asyncio.Event()
    args = {"path": path, "timeout_s": SEEN_S}
    asked = asyncio.ensure_future(
        node.peer.ask(_Seen, "see", args, content, on_event=lambda _: is_listed.set())
    )
    listed = asyncio.ensure_future(is_listed.wait())
    try:
        both: set[asyncio.Future[Any]] = {asked, listed}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if is_listed.is_set():
            await asyncio.to_thread(write_atomic, Path(path), content)
        answer = await asked
        return answer if is_listed.is_set() else None
    finally:
        asked.cancel()
        listed.cancel()


def _seen(subject: str, waited_s: float | None) -> Finding:
    if waited_s is None:
        step = "run in a directory that all nodes share, such as one below $HOME"
        return Finding(subject=subject, ok=False, detail=f"not within {SEEN_S:g} s", next_step=step)
    ok = waited_s <= LATE_S or None
    step = (
        "" if ok else "`hyperrun` waits for it; a directory on another file system may be quicker"
    )
    return Finding(subject=subject, ok=ok, detail=f"after {waited_s * 1e3:.0f} ms", next_step=step)


def _wait_until_listed(path: str, content: bytes, timeout_s: float) -> float | None:
    """Wait until a file is in the listing of its directory, and has this content.

    Args:
        path: the file.
        content: all of its content.
        timeout_s: seconds to wait.

    Returns:
        The seconds that it took, or None if the time is up.
    """
    directory, name = os.path.split(path)
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) <= timeout_s:
        with suppress(OSError):
            if name in os.listdir(directory):
                with open(path, "rb") as file:
                    if file.read() == content:
                        return waited
        time.sleep(_POLL_S)
    return None


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold flock(2) on a file, which is made if it is missing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_locked(path: str) -> bool:
    """Return whether another process, perhaps of another machine, is seen to hold flock(2) on a
    file.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
