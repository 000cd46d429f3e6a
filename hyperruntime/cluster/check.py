"""Check a node, and what it shares with the head; each failure with its next step.

Of a shared file system it measures how late the other machine sees a change.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

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
_ANSWER = "answer"  # the file that a node writes when it has seen the head's


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
    """The answer of ``see``.

    Attributes:
        is_listed: whether the directory was seen.
        waited_s: after how many seconds the file was seen in it; None if it was not.
    """

    is_listed: bool
    waited_s: float | None = None


class CheckService:
    """Lets the head check this node and list its containers.

    Attributes:
        handlers: ``check``, ``time``, ``see`` and ``containers``.
    """

    def __init__(self, context: NodeContext) -> None:
        """Prepare."""
        self.handlers = {
            "check": self._check,
            "time": self._time,
            "see": self._see,
            "containers": self._containers,
        }
        self._context = context

    async def close(self) -> None:
        """Do nothing."""

    async def _check(self, call: Call) -> Answer:
        """Return the findings of this node."""
        needs = Needs(**call.args)
        findings = await asyncio.to_thread(lambda: list(node_findings(needs)))
        return Answer({"findings": [attrs.asdict(finding) for finding in findings]})

    async def _time(self, _: Call) -> Answer:
        return Answer({"time": time.time()})

    async def _see(self, call: Call) -> Answer:
        """Return whether a file of a shared directory is seen in time; then write another one.

        It emits an event after it has listed the directory without the file, because a network file
        system may cache that listing and show the file only after the cache expires. Source:
        nfs(5), acdirmax.
        """
        path = Path(call.args["path"])
        timeout_s = float(call.args["timeout_s"])
        if not await asyncio.to_thread(wait_until, lambda: _lists(path.parent), timeout_s):
            return Answer(attrs.asdict(_Seen(is_listed=False)))
        await call.emit(Answer())
        waited = await asyncio.to_thread(_wait_until_listed, path, call.body, timeout_s)
        await asyncio.to_thread(write_atomic, path.with_name(_ANSWER), call.body)
        return Answer(attrs.asdict(_Seen(is_listed=True, waited_s=waited)))

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
    skew_s = min(skews)[1]  # of the fastest call, which is the most exact
    ok = abs(skew_s) <= _MOST_SKEW_S or None
    step = "" if ok else f"{ADMINISTRATOR} to start a time service; times in logs of nodes differ"
    detail = f"{skew_s * 1e3:+.0f} ms from the head's"
    return Finding(subject="clock", ok=ok, detail=detail, next_step=step)


async def _shared(node: Node, directory: Path) -> list[Finding]:
    content = os.urandom(32)
    is_listed = asyncio.Event()
    try:
        with tempfile.TemporaryDirectory(prefix=".hyperrun-check-", dir=directory) as place:
            path = Path(place, "file")

            async def write() -> None:
                await is_listed.wait()
                await asyncio.to_thread(os.listdir, place)
                await asyncio.to_thread(write_atomic, path, content)

            writing = asyncio.ensure_future(write())
            args = {"path": str(path), "timeout_s": SEEN_S}
            try:
                told = await node.peer.ask(
                    _Seen, "see", args, content, on_event=lambda _: is_listed.set()
                )
                if not told.is_listed:
                    step = "run in a directory that all nodes share, such as one below $HOME"
                    detail = f"{directory} of the head is not seen on the node within {SEEN_S:g} s"
                    return [
                        Finding(subject="run directory", ok=False, detail=detail, next_step=step)
                    ]
                await writing
            finally:
                writing.cancel()
            answer = path.with_name(_ANSWER)
            back = await asyncio.to_thread(_wait_until_listed, answer, content, SEEN_S)
    except OSError as error:
        raise ClusterError(
            f"{directory} cannot be written: {error.strerror or error}; name another one"
        ) from error
    return [
        _seen("a file renamed by the head is seen on the node", told.waited_s),
        _seen("a file renamed by the node is seen by the head", back),
    ]


def _seen(subject: str, waited_s: float | None) -> Finding:
    if waited_s is None:
        step = "run in a directory that all nodes share, such as one below $HOME"
        return Finding(subject=subject, ok=False, detail=f"not within {SEEN_S:g} s", next_step=step)
    ok = waited_s <= LATE_S or None
    step = (
        "" if ok else "`hyperrun` waits for it; a directory on another file system may be quicker"
    )
    return Finding(subject=subject, ok=ok, detail=f"after {waited_s * 1e3:.0f} ms", next_step=step)


def _lists(directory: Path) -> bool:
    with suppress(OSError):
        os.listdir(directory)
        return True
    return False


def _wait_until_listed(path: Path, content: bytes, timeout_s: float) -> float | None:
    """Wait until a file is in the listing of its directory, and has this content.

    Args:
        path: the file.
        content: all of its content.
        timeout_s: seconds to wait.

    Returns:
        The seconds that it took, or None if the time is up.
    """
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) <= timeout_s:
        with suppress(OSError):
            if path.name in os.listdir(path.parent) and path.read_bytes() == content:
                return waited
        time.sleep(_POLL_S)
    return None
