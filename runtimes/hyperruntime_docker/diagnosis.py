"""Diagnose Docker on this machine: what works, what fails and what to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from hyperruntime.driver import Finding
from hyperruntime.errors import EngineUnavailableError, HyperRuntimeError
from hyperruntime.host.probe_cache import forget_probes
from hyperruntime.units import GIB, format_size
from hyperruntime_docker.args import NAME
from hyperruntime_docker.client import Engine, endpoint_or_default
from hyperruntime_docker.probe import Probe, daemon_info, probe

_LEAST_FREE_BYTES = 2 * GIB


def diagnose(engine: Engine) -> tuple[Finding, ...]:
    """Probe again, without the cached result, and return the findings; never raises."""
    forget_probes(NAME)
    return tuple(_findings(engine))


def _findings(engine: Engine) -> Iterator[Finding]:
    try:
        where = endpoint_or_default()
    except ImportError as error:
        yield Finding(subject="docker SDK", ok=False, detail=str(error), next_step="`pip install docker`")
        return
    try:
        info = daemon_info(engine)
    except EngineUnavailableError as error:
        yield Finding(subject="docker daemon", ok=False, detail=error.why, next_step=error.next_step)
        return
    except HyperRuntimeError as error:
        yield Finding(subject="docker daemon", ok=False, detail=str(error), next_step="see `docker info`")
        return
    yield Finding(subject="docker daemon", ok=True, detail=f"answers at {where}")
    yield from _told(info)
    try:
        found = probe(engine, info)
    except EngineUnavailableError as error:
        yield Finding(subject="running a container", ok=False, detail=error.why, next_step=error.next_step)
        return
    except HyperRuntimeError as error:
        yield Finding(subject="running a container", ok=False, detail=str(error), next_step="see `docker info`")
        return
    yield from _tried(found)


def _told(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the daemon's own warnings and its free disk space."""
    for warning in info.get("Warnings") or ():
        yield Finding(subject="docker daemon", ok=None, detail=str(warning))
    root = str(info.get("DockerRootDir") or "")
    if os.path.isdir(root):
        free = shutil.disk_usage(root).free
        step = "" if free >= _LEAST_FREE_BYTES else "free space with `docker system prune`"
        detail = f"{format_size(free)} free in {root}"
        yield Finding(subject="space for images", ok=free >= _LEAST_FREE_BYTES, detail=detail, next_step=step)


def _tried(found: Probe) -> Iterator[Finding]:
    """Yield the results of the probe."""
    settings = found.settings
    who = "rootless" if settings.rootless else "rootful"
    works = f"Docker {found.version}, {who}, with {found.oci_runtime}, storage {found.storage}"
    yield Finding(subject="running a container", ok=True, detail=works)
    for field, how in settings.limits.items():
        if how == "no":
            step = "use a daemon that has the cgroup controller, or leave this limit at None"
            yield Finding(subject=f"limit {field}", ok=False, detail="not enforced here", next_step=step)
        else:
            yield Finding(subject=f"limit {field}", ok=True, detail=f"enforced by {how}")
    if "bridge" not in settings.networks:
        step = "start the daemon without `--bridge none` if containers need a private network"
        yield Finding(subject="network bridge", ok=None, detail="does not work with this daemon", next_step=step)
    yield _gpus(found)


def _gpus(found: Probe) -> Finding:
    settings = found.settings
    if settings.nvidia:
        return Finding(subject="GPUs", ok=True, detail="by NVIDIA's container runtime")
    if settings.cdi_devices:
        return Finding(subject="GPUs", ok=True, detail=f"by CDI: {', '.join(settings.cdi_devices)}")
    if settings.cdi_dirs:
        step = "generate specs, for NVIDIA with `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"
        return Finding(subject="GPUs", ok=None, detail="the daemon accepts CDI names but lists none", next_step=step)
    step = "install nvidia-container-toolkit if this machine has GPUs, or use Docker 28 (CDI)"
    return Finding(subject="GPUs", ok=None, detail="containers cannot use any", next_step=step)
