"""Diagnose Podman on this machine: what works, what fails and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from hyperruntime.driver import Finding
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.host.engine_findings import (
    failure_finding,
    limit_findings,
    space_finding,
)
from hyperruntime.host.process import find_program
from hyperruntime.host.temporary import NETWORK_FILE_SYSTEMS, file_system
from hyperruntime_podman.args import Settings
from hyperruntime_podman.edge import run_files
from hyperruntime_podman.own_store import COST, SLOW, Store, slow_step, user_store
from hyperruntime_podman.probe import Probe, probe
from hyperruntime_podman.program import NETWORK_HINT, install_hint, program


def findings() -> Iterator[Finding]:
    """Probe, and yield the findings; never raises."""
    path = find_program(program())
    if path is None:
        why = "not on PATH"
        yield Finding(subject=program(), ok=False, detail=why, next_step=install_hint())
        return
    yield Finding(subject=program(), ok=True, detail=path)
    if os.geteuid() != 0:
        yield from _rootless()
    try:
        yield from _tried(probe())
    except (HyperRuntimeError, OSError) as error:
        yield failure_finding("running a container", error)


def _tried(found: Probe) -> Iterator[Finding]:
    settings = found.settings
    for what, why in found.tried:
        yield Finding(subject="tried", ok=None, detail=f"{what}: {why}")
    works = (
        f"Podman {found.version} with {settings.oci_runtime or 'its default OCI runtime'}, "
        f"storage {found.storage}"
    )
    yield Finding(subject="running a container", ok=True, detail=works)
    note = "" if settings.uids else " (counted over all of this user's containers)"
    step = "use root, or cgroup v2 with delegation, or leave this limit at None"
    yield from limit_findings(settings.limits, note, step)
    store = user_store()
    if store is not None:
        step = f"free space there; `{program()} system df` shows its use"
        yield space_finding("image store", store.root, step)
    if why := found.to_info().unfiltered:
        step = "install Podman's `/usr/share/containers/seccomp.json` (package containers-common)"
        yield Finding(subject="seccomp filter", ok=False, detail=why, next_step=step)
    yield from _networks(settings)
    if found.storage == SLOW and store is not None:
        yield _slow_store(found, store)


def _networks(settings: Settings) -> Iterator[Finding]:
    if not settings.isolated:
        why = "does not work: every container has the network of this machine"
        step = "use network='host', or another engine; ask the administrator about this"
        yield Finding(subject="network none", ok=None, detail=why, next_step=step)
    if settings.bridge:
        detail = f"works, by {settings.bridge.partition(':')[0]}" if settings.rootless else "works"
        yield Finding(subject="network bridge", ok=True, detail=detail)
        return
    step = "install netavark and iptables, or CNI plugins"
    if settings.rootless:
        step = f"{NETWORK_HINT}; both need /dev/net/tun"
    yield Finding(subject="network bridge", ok=None, detail="does not work", next_step=step)


def _slow_store(found: Probe, store: Store) -> Finding:
    """Return what a store with the slow driver costs; which command corrects that; and where
    containers run.
    """
    root = found.settings.root
    if not root:
        return Finding(
            subject="storage", ok=None, detail=f"vfs: {COST}; {found.slow}", next_step=found.step
        )
    detail = (
        "Podman's store has the driver vfs, so containers run in an overlay store of this "
        f"library, {root}; each image is copied there once, when a container first needs it; "
        "builds still copy the whole image for each step"
    )
    return Finding(
        subject="storage",
        ok=None,
        detail=detail,
        next_step=f"for overlay alone: {slow_step(store, '')}",
    )


def _rootless() -> Iterator[Finding]:
    user = psutil.Process().username()  # the uid if it has no name, as in some containers
    for name in ("/etc/subuid", "/etc/subgid"):
        try:
            lines = Path(name).read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        has = any(line.split(":")[0] in (user, str(os.getuid())) for line in lines)
        step = (
            f"ask root for `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}`"
        )
        yield Finding(
            subject=name,
            ok=has,
            detail="has a range" if has else f"no range for {user}",
            next_step="" if has else step,
        )
    for device, use in (
        ("/dev/fuse", "fuse-overlayfs storage"),
        ("/dev/net/tun", "the bridge network"),
    ):
        ok = os.access(device, os.R_OK | os.W_OK)
        yield Finding(
            subject=device,
            ok=True if ok else None,
            detail="usable" if ok else f"not usable: {use} will not work",
            next_step="" if ok else f"ask root for `chmod 666 {device}`",
        )
    if place := run_files().get("XDG_RUNTIME_DIR", ""):
        yield Finding(subject="run files", ok=True, detail=place)
    if (kind := file_system(os.path.expanduser("~"))) in NETWORK_FILE_SYSTEMS:
        step = "set graphroot in ~/.config/containers/storage.conf to a local disk"
        yield Finding(subject="storage", ok=False, detail=f"home is on {kind}", next_step=step)
