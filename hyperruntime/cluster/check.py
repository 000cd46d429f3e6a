"""What works on a node, and between a node and the head; each failure with its next step."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime import registry
from hyperruntime.cluster.head import Node
from hyperruntime.cluster.node_services import NodeContext
from hyperruntime.cluster.peer import Answer, Call
from hyperruntime.cluster.shared_directory import is_locked, locked, wait_until_listed, write_whole
from hyperruntime.driver import Finding
from hyperruntime.errors import ClusterError, HyperRuntimeError
from hyperruntime.gpu.devices import load_devices
from hyperruntime.gpu.grant import gpu_devices, granted_gpus
from hyperruntime.host.process import find_program, run_process
from hyperruntime.json_values import is_number
from hyperruntime.runtime import open_runtime
from hyperruntime.spec import ContainerSpec
from hyperruntime.units import GIB, format_size

SEEN_S, LATE_S = 60.0, 3.0
_MOST_SKEW_S = 1.0
_ROUNDS = 5
_LOOK_S = 60.0
_EXISTING = 'for path; do [ -e "$path" ] && echo "$path"; done; exit 0'
_ADMINISTRATOR = "ask the administrator"


def node_findings(image: str, scratch: str) -> Iterator[Finding]:
    """Yield what works on this machine; runs on the node.

    Args:
        image: the image that work will need; "" for none.
        scratch: as in :class:`hyperruntime.cluster.config.ClusterConfig`.
    """
    yield _user_namespaces()
    yield _subordinate_ids()
    yield _cgroups()
    yield _scratch(scratch)
    yield _gpus()
    for engine in registry.auto_order():
        yield from _engine(engine, image)


def _user_namespaces() -> Finding:
    program = find_program("unshare")
    works = program is not None and run_process([program, "--user", "true"], timeout_s=30).exit_code == 0
    step = f"{_ADMINISTRATOR} to set sysctl user.max_user_namespaces above 0; without them no rootless engine works"
    return Finding(
        subject="user namespaces", ok=works, detail="work" if works else "refused", next_step="" if works else step
    )


def _subordinate_ids() -> Finding:
    user = str(os.getuid())
    with_name = os.environ.get("USER", user)
    found = []
    for name in ("/etc/subuid", "/etc/subgid"):
        lines = Path(name).read_text(errors="replace").splitlines() if os.path.exists(name) else []
        found.append(any(line.split(":")[0] in (user, with_name) for line in lines))
    step = f"{_ADMINISTRATOR} for `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {with_name}`"
    ok = all(found) or None
    detail = (
        "not needed by root"
        if os.geteuid() == 0
        else "this user has a range"
        if ok
        else "none: containers have one user only, and slots need containers of their own"
    )
    return Finding(subject="subordinate ids", ok=ok, detail=detail, next_step="" if ok else step)


def _cgroups() -> Finding:
    subject = "cgroup delegation"
    if not os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        step = (
            f"{_ADMINISTRATOR} for cgroup v2; until then limits.pids counts per container, and memory by the watchdog"
        )
        return Finding(subject=subject, ok=None, detail="cgroup v1", next_step=step)
    own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
    place = f"/sys/fs/cgroup{own}"
    ok = os.access(place, os.W_OK) or None
    step = f"{_ADMINISTRATOR} for `Delegate=yes` in the units of the batch system"
    detail = f"{place} can be written" if ok else f"{place} cannot be written"
    return Finding(subject=subject, ok=ok, detail=detail, next_step="" if ok else step)


def _scratch(asked: str) -> Finding:
    place = os.path.expandvars(asked) or tempfile.gettempdir()
    if "$" in place or not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK):
        step = "name in `scratch` a local directory that exists in each job"
        return Finding(
            subject="scratch", ok=False, detail=f"{place} is no directory that can be written", next_step=step
        )
    free = shutil.disk_usage(place).free
    ok = free >= 4 * GIB or None
    step = "name another directory in `scratch`, or use fewer slots a node"
    return Finding(subject="scratch", ok=ok, detail=f"{place}, {format_size(free)} free", next_step="" if ok else step)


def _gpus() -> Finding:
    granted = granted_gpus()
    if granted is None:
        return Finding(subject="GPUs granted", ok=None, detail="CUDA_VISIBLE_DEVICES is not set: all of the node's")
    return Finding(subject="GPUs granted", ok=True, detail=", ".join(granted) or "none")


def _engine(name: str, image: str) -> Iterator[Finding]:
    try:
        driver = registry.load_driver(name)
        info = driver.probe()
    except HyperRuntimeError as error:
        yield Finding(subject=name, ok=None, detail=str(error))
        return
    yield Finding(subject=name, ok=True, detail=f"{info.version}, limits: {_limits(info.limits)}")
    if image:
        try:
            ok = bool(driver.images.exists(image))
        except HyperRuntimeError:
            ok = False
        step = "" if ok else f"`hyperrun --runtime {name} image ...` on a node, or on the head if nodes share its store"
        yield Finding(subject=f"{name}: {image}", ok=ok or None, detail="present" if ok else "missing", next_step=step)
        if ok and granted_gpus():
            yield _visible_gpus(name, image)
    driver.close()


def _visible_gpus(engine: str, image: str) -> Finding:
    """Return whether a container that asks for all GPUs sees those that are granted, and no others."""
    subject = f"{engine}: GPUs visible inside"
    try:
        registry = load_devices()
        kinds = [name for name in registry.names() if name.partition("=")[0].endswith("/gpu")]
        known = {node.path for device in registry.resolve(kinds) for node in device.edits.device_nodes}
        granted = gpu_devices(granted_gpus() or (), registry)
        expected = {node.path for device in granted for node in device.edits.device_nodes}
        with open_runtime(engine) as runtime, runtime.container(ContainerSpec(image=image, gpus="all")) as container:
            words = ["sh", "-c", _EXISTING, "sh", *sorted(known | expected)]
            seen = set(container.exec(words, timeout_s=_LOOK_S).check().stdout.decode().split())
    except HyperRuntimeError as error:
        return Finding(subject=subject, ok=None, detail=str(error))
    detail = f"{', '.join(sorted(seen)) or 'none'}; granted: {', '.join(sorted(expected)) or 'none'}"
    step = "" if seen == expected else "`hyperrun doctor --gpu IMAGE` in a job finds the reason"
    return Finding(subject=subject, ok=seen == expected, detail=detail, next_step=step)


def _limits(limits: Any) -> str:  # noqa: ANN401
    return ", ".join(f"{name} by {how}" if how != "no" else f"no {name}" for name, how in limits.items())


async def answer_check(call: Call) -> Answer:
    """Answer the head's ``check``: the findings of this node."""
    findings = await asyncio.to_thread(lambda: list(node_findings(str(call.args["image"]), str(call.args["scratch"]))))
    return Answer([attrs.asdict(finding) for finding in findings])


async def answer_time(_: Call) -> Answer:
    """Answer the head's ``time``: seconds since 1970."""
    return Answer(time.time())


async def answer_see(call: Call) -> Answer:
    """Answer the head's ``see``: the seconds until a file of a shared directory is seen; and write one beside it."""
    path, timeout_s = str(call.args["path"]), float(call.args["timeout_s"])
    waited = await asyncio.to_thread(wait_until_listed, path, call.body, timeout_s)
    if waited is None:
        return Answer({"waited_s": None, "locked": None})
    seen = await asyncio.to_thread(is_locked, f"{path}.lock")
    await asyncio.to_thread(write_whole, f"{path}.answer", call.body)
    return Answer({"waited_s": waited, "locked": seen})


CHECK_HANDLERS = {"check": answer_check, "time": answer_time, "see": answer_see}


class CheckService:
    """What the head asks of a node to check it, and its containers.

    Attributes:
        handlers: ``check``, ``time``, ``see`` and ``containers``.
    """

    def __init__(self, context: NodeContext) -> None:
        """Prepare."""
        self.handlers = {**CHECK_HANDLERS, "containers": self._containers}
        self._context = context

    async def close(self) -> None:
        """Do nothing."""

    async def _containers(self, _: Call) -> Answer:
        return Answer(await self._context.containers())


async def check_node(node: Node, directory: Path, image: str, scratch: str) -> Sequence[Finding]:
    """Return the findings about a node, and about what it shares with the head.

    Args:
        node: has joined, and has ``CHECK_HANDLERS``.
        directory: the directory of future runs.
        image: the image that work will need; "" for none.
        scratch: as in the configuration.

    Raises:
        NodeLostError: the node was lost meanwhile.
        ClusterError: the directory cannot be written.
    """
    findings = [
        _finding(value) for value in (await node.peer.call("check", {"image": image, "scratch": scratch})).value
    ]
    return [await _clock(node), *await _shared(node, directory), *findings]


def _finding(value: Any) -> Finding:  # noqa: ANN401
    ok = value.get("ok")
    return Finding(
        subject=str(value.get("subject")),
        ok=ok if ok is None else bool(ok),
        detail=str(value.get("detail")),
        next_step=str(value.get("next_step") or ""),
    )


async def _clock(node: Node) -> Finding:
    skews = []
    for _ in range(_ROUNDS):
        before = time.time()
        there = (await node.peer.call("time")).value
        after = time.time()
        if is_number(there):
            skews.append((after - before, there - (before + after) / 2))
    skew = min(skews)[1] if skews else 0.0  # of the call that took least
    ok = abs(skew) <= _MOST_SKEW_S or None
    step = "" if ok else f"{_ADMINISTRATOR} to start a time service; times in logs of nodes differ"
    return Finding(subject="clock", ok=ok, detail=f"{skew * 1e3:+.1f} ms from the head's", next_step=step)


async def _shared(node: Node, directory: Path) -> list[Finding]:
    content = os.urandom(32)
    try:
        with tempfile.TemporaryDirectory(prefix=".hyperrun-check-", dir=directory) as place:
            path = os.path.join(place, "file")
            with locked(f"{path}.lock"):
                await asyncio.to_thread(write_whole, path, content)
                args = {"path": path, "timeout_s": SEEN_S}
                told = (await node.peer.call("see", args, content)).value
                if told["waited_s"] is None:
                    step = "run in a directory that all nodes share, such as one below $HOME"
                    detail = f"{directory} of the head is not seen on the node within {SEEN_S:g} s"
                    return [Finding(subject="run directory", ok=False, detail=detail, next_step=step)]
                back = await asyncio.to_thread(wait_until_listed, f"{path}.answer", content, SEEN_S)
    except OSError as error:
        raise ClusterError(f"{directory} cannot be written: {error.strerror or error}") from error
    return [
        _seen("a file renamed by the head is seen on the node", told["waited_s"]),
        _seen("a file renamed by the node is seen by the head", back),
        Finding(
            subject="flock",
            ok=bool(told["locked"]) or None,
            detail="is seen across nodes" if told["locked"] else "is not seen across nodes; runs do not rely on it",
        ),
    ]


def _seen(subject: str, waited_s: float | None) -> Finding:
    if waited_s is None:
        step = "run in a directory that all nodes share, such as one below $HOME"
        return Finding(subject=subject, ok=False, detail=f"not within {SEEN_S:g} s", next_step=step)
    ok = waited_s <= LATE_S or None
    step = "" if ok else "`hyperrun` waits for it; a directory on another file system may be quicker"
    return Finding(subject=subject, ok=ok, detail=f"after {waited_s * 1e3:.0f} ms", next_step=step)
