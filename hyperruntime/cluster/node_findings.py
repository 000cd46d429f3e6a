"""Check what works on a node, and whether work there needs more; each failure has a next step."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime import registry
from hyperruntime.cluster.node_services import scratch_directory
from hyperruntime.driver import Finding
from hyperruntime.errors import (
    ClusterError,
    EngineUnavailableError,
    HyperRuntimeError,
    UnsupportedOptionError,
)
from hyperruntime.gpu.devices import load_devices
from hyperruntime.gpu.grant import gpu_devices, granted_gpus
from hyperruntime.host.process import find_program, run_process
from hyperruntime.images.recipes import image_reference
from hyperruntime.runtime import open_runtime
from hyperruntime.spec import ContainerSpec
from hyperruntime.units import GIB, format_size

_LOOK_S = 60.0
_EXISTING = 'for path; do [ -e "$path" ] && echo "$path"; done; exit 0'
ADMINISTRATOR = "ask the administrator"


@attrs.frozen(kw_only=True)
class Needs:
    """Needs of the work on a node.

    Attributes:
        image: name of a recipe, or a reference; "" for none.
        runtime: the engine; ``auto`` means any.
        scratch: as in :class:`hyperruntime.cluster.config.ClusterConfig`.
        gpus: how many GPUs the node's job asks for.
    """

    image: str = ""
    runtime: str = "auto"
    scratch: str = ""
    gpus: int = 0


def node_findings(needs: Needs) -> Iterator[Finding]:
    """Yield what works on this machine, and what work needs but does not have; runs on the node."""
    yield _user_namespaces()
    yield _subordinate_ids()
    yield _cgroups()
    yield _scratch(needs.scratch)
    yield _gpus(needs.gpus)
    working = []
    image = image_reference(needs.image)
    for engine in registry.auto_order():
        found = list(_engine(engine, image))
        working += [engine] if found[0].ok else []
        yield from found
    yield _any_engine(needs.runtime, working)


def _any_engine(wanted: str, working: Sequence[str]) -> Finding:
    ok = bool(working) if wanted == "auto" else wanted in working
    detail = ", ".join(working) or "none works"
    command = "hyperrun doctor" if wanted == "auto" else f"hyperrun doctor {wanted}"
    step = f"run `{command}` in a job; it says what is missing"
    return Finding(
        subject="engine for work" if wanted == "auto" else f"engine for work: {wanted}",
        ok=ok,
        detail=detail if ok or wanted == "auto" else f"does not work; those that do: {detail}",
        next_step="" if ok else step,
    )


def _user_namespaces() -> Finding:
    program = find_program("unshare")
    works = (
        program is not None
        and run_process([program, "--user", "true"], timeout_s=30).exit_code == 0
    )
    step = (
        f"{ADMINISTRATOR} to set sysctl user.max_user_namespaces above 0; without them no "
        "rootless engine works"
    )
    return Finding(
        subject="user namespaces",
        ok=works,
        detail="work" if works else "refused",
        next_step="" if works else step,
    )


def _subordinate_ids() -> Finding:
    user = str(os.getuid())
    with_name = os.environ.get("USER", user)
    found = []
    for name in ("/etc/subuid", "/etc/subgid"):
        lines = Path(name).read_text(errors="replace").splitlines() if os.path.exists(name) else []
        found.append(any(line.split(":")[0] in (user, with_name) for line in lines))
    step = (
        f"{ADMINISTRATOR} for `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 "
        f"{with_name}`"
    )
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
            f"{ADMINISTRATOR} for cgroup v2; until then limits.pids counts per container, and "
            "memory by the watchdog"
        )
        return Finding(subject=subject, ok=None, detail="cgroup v1", next_step=step)
    own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
    place = f"/sys/fs/cgroup{own}"
    ok = os.access(place, os.W_OK) or None
    step = f"{ADMINISTRATOR} for `Delegate=yes` in the units of the batch system"
    detail = f"{place} can be written" if ok else f"{place} cannot be written"
    return Finding(subject=subject, ok=ok, detail=detail, next_step="" if ok else step)


def _scratch(asked: str) -> Finding:
    try:
        place = scratch_directory(asked)
    except ClusterError as error:
        why = str(error).removeprefix("scratch: ").partition("; ")[0]
        step = "name in `scratch` a local directory that exists in each job"
        return Finding(subject="scratch", ok=False, detail=why, next_step=step)
    free = shutil.disk_usage(place).free
    ok = free >= 4 * GIB or None
    step = "name another directory in `scratch`, or use fewer slots a node"
    return Finding(
        subject="scratch",
        ok=ok,
        detail=f"{place}, {format_size(free)} free",
        next_step="" if ok else step,
    )


def _gpus(asked: int) -> Finding:
    granted = granted_gpus()
    subject = "GPUs granted"
    if granted is None:
        step = (
            f"{ADMINISTRATOR} for GPUs as resources of the batch system (Slurm: GresTypes=gpu)"
            if asked
            else ""
        )
        detail = "CUDA_VISIBLE_DEVICES is not set, so work gets all GPUs of the node"
        return Finding(subject=subject, ok=None, detail=detail, next_step=step)
    ok = len(granted) >= asked
    step = (
        ""
        if ok
        else f"the job asks for {asked}: compare gpus_per_node with what a node of the partition "
        "has"
    )
    return Finding(subject=subject, ok=ok, detail=", ".join(granted) or "none", next_step=step)


def _engine(name: str, image: str) -> Iterator[Finding]:
    more = f"`hyperrun doctor {name}` in a job says more"
    try:
        driver = registry.load_driver(name)
        info = driver.probe()
    except EngineUnavailableError as error:
        yield Finding(subject=name, ok=None, detail=error.why, next_step=error.next_step or more)
        return
    except HyperRuntimeError as error:
        yield Finding(
            subject=name,
            ok=None,
            detail=str(error),
            next_step=f"`hyperrun doctor {name}` in a job says more",
        )
        return
    yield Finding(subject=name, ok=True, detail=f"{info.version}, limits: {_limits(info.limits)}")
    if image:
        try:
            ok = bool(driver.images.exists(image))
        except HyperRuntimeError:
            ok = False
        step = (
            ""
            if ok
            else f"add images = [{image!r}] to [cluster]; nodes then get it from the head or its "
            "registry"
        )
        yield Finding(
            subject=f"{name}: {image}",
            ok=ok or None,
            detail="present" if ok else "missing",
            next_step=step,
        )
        if ok and granted_gpus():
            yield _visible_gpus(name, image)
    driver.close()


def _visible_gpus(engine: str, image: str) -> Finding:
    """Return whether a container that asks for all GPUs sees those that are granted, and no
    others.
    """
    subject = f"{engine}: GPUs visible inside"
    reason = f"`hyperrun doctor --gpu {shlex.quote(image)}` in a job finds the reason"
    try:
        devices = load_devices()
        kinds = [name for name in devices.names() if name.partition("=")[0].endswith("/gpu")]
        known = {
            node.path for device in devices.resolve(kinds) for node in device.edits.device_nodes
        }
        granted = gpu_devices(granted_gpus() or (), devices)
        expected = {node.path for device in granted for node in device.edits.device_nodes}
        with (
            open_runtime(engine) as runtime,
            runtime.container(ContainerSpec(image=image, gpus="all")) as container,
        ):
            words = ["sh", "-c", _EXISTING, "sh", *sorted(known | expected)]
            seen = set(container.exec(words, timeout_s=_LOOK_S).check().stdout.decode().split())
    except UnsupportedOptionError as error:
        return Finding(
            subject=subject, ok=None, detail="none", next_step=f"{error.why}, if work needs GPUs"
        )
    except HyperRuntimeError as error:
        return Finding(subject=subject, ok=False, detail=str(error), next_step=reason)
    detail = (
        f"{', '.join(sorted(seen)) or 'none'}; granted: {', '.join(sorted(expected)) or 'none'}"
    )
    return Finding(
        subject=subject,
        ok=seen == expected,
        detail=detail,
        next_step="" if seen == expected else reason,
    )


def _limits(limits: Any) -> str:  # noqa: ANN401
    return ", ".join(
        f"{name} by {how}" if how != "no" else f"no {name}" for name, how in limits.items()
    )
