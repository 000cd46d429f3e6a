"""Diagnose Apptainer on this machine: what works, what fails and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from hyperruntime.driver import Finding
from hyperruntime.errors import EngineUnavailableError
from hyperruntime.host.engine_findings import limit_findings, space_finding
from hyperruntime.host.engine_program import ALLOW_NAMESPACES, NEED_IDS
from hyperruntime.host.process import find_program
from hyperruntime.host.temporary import STEP, scratch_directory
from hyperruntime.layers.overlays import attribute_findings
from hyperruntime.layers.store import VARIABLE, Store
from hyperruntime_apptainer.args import NAME
from hyperruntime_apptainer.probe import INSTALL_HINT, NO_PROGRAM, Probe, probe
from hyperruntime_apptainer.program import program

SETUID = (
    "none for you: Apptainer runs with rights of its own, as a setuid program. You are one user "
    "inside, not root; the image is copied for each container that may write; there are no limits on "
    "processes and no builds"
)
_TOOLS = (
    ("unsquashfs", "only needed to run a SIF", "install squashfs-tools"),
    (
        "squashfuse_ll",
        "only needed to run a SIF if there is no space to unpack it",
        "install squashfuse",
    ),
    (
        "fuse-overlayfs",
        "only needed if the kernel has no overlay for ordinary users",
        "install fuse-overlayfs",
    ),
)


def findings() -> Iterator[Finding]:
    """Probe, and yield the findings; never raises."""
    path = find_program(program())
    if path is None:
        yield Finding(subject=NAME, ok=False, detail=NO_PROGRAM, next_step=INSTALL_HINT)
        return
    yield Finding(subject=program(), ok=True, detail=path)
    for name, use, step in _TOOLS:
        found = find_program(name)
        ok = True if found else None
        yield Finding(
            subject=name,
            ok=ok,
            detail=found or f"not on PATH: {use}",
            next_step="" if found else step,
        )
    yield from _places()
    try:
        tried = probe()
    except EngineUnavailableError as error:
        yield Finding(
            subject="running a container",
            ok=False,
            detail=error.why,
            next_step=error.next_step,
        )
        return
    yield from _tried(tried)


def _places() -> Iterator[Finding]:
    scratch = scratch_directory()
    store = Store().root
    for subject, place, step in (
        ("scratch", scratch, STEP),
        ("image store", str(store), f"set {VARIABLE} to a directory on a larger disk"),
    ):
        yield space_finding(subject, place, step)
    yield from attribute_findings()


def _tried(found: Probe) -> Iterator[Finding]:
    yield Finding(
        subject="running a container",
        ok=True,
        detail=f"{program()} {found.version}, root on {found.root}",
    )
    if found.settings.setuid:
        yield Finding(subject="user namespaces", ok=None, detail=SETUID, next_step=ALLOW_NAMESPACES)
        yield from _limits(found)
        return
    if found.root != "overlay":
        step = (
            "use Linux 5.11 or newer: ordinary users can then mount overlays, which is several "
            "times faster"
        )
        yield Finding(subject="root file system", ok=None, detail=found.root, next_step=step)
    users = (
        "this user's subordinate ids"
        if found.settings.users
        else "only root inside, which is you outside"
    )
    step = "" if found.settings.users else NEED_IDS
    yield Finding(subject="users", ok=found.settings.users or None, detail=users, next_step=step)
    if why := found.to_info().unfiltered:
        yield Finding(
            subject="seccomp", ok=None, detail=why, next_step="install a package that has it"
        )
    yield from _limits(found)


def _limits(found: Probe) -> Iterator[Finding]:
    for what, why in found.tried:
        yield Finding(subject="tried", ok=None, detail=f"{what}: {why}")
    note = " (before Linux 5.14 the kernel counts all of this user's processes)"
    step = "leave this limit at None: the driver refuses a container that sets it"
    yield from limit_findings(found.settings.limits, note, step)
