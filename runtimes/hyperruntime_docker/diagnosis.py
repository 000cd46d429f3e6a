"""Diagnose Docker on this machine: what works, what fails and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from hyperruntime.driver import Finding
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.host.engine_findings import failure_finding, limit_findings, space_finding
from hyperruntime_docker.build import has_buildkit
from hyperruntime_docker.client import Engine, endpoint_or_default
from hyperruntime_docker.probe import Probe, daemon_info, probe


def findings(engine: Engine) -> Iterator[Finding]:
    """Probe, and yield the findings; never raises."""
    subject = "docker daemon"
    try:
        info = daemon_info(engine)
        yield Finding(subject=subject, ok=True, detail=f"answers at {endpoint_or_default()}")
        yield from _told(info)
        subject = "running a container"
        yield from _tried(probe(engine, info))
    except HyperRuntimeError as error:
        yield failure_finding(subject, error, "see `docker info`")


def _told(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the daemon's own warnings and its free disk space."""
    for warning in info.get("Warnings") or ():
        yield Finding(subject="docker daemon", ok=None, detail=str(warning))
    root = str(info.get("DockerRootDir") or "")
    if os.path.isdir(root):
        yield space_finding("space for images", root, "`docker system df` shows what takes it")


def _tried(found: Probe) -> Iterator[Finding]:
    """Yield the results of the probe."""
    settings = found.settings
    who = "rootless" if settings.rootless else "rootful"
    works = f"Docker {found.version}, {who}, with {found.oci_runtime}, storage {found.storage}"
    yield Finding(subject="running a container", ok=True, detail=works)
    step = "use a daemon that has the cgroup controller, or leave this limit at None"
    yield from limit_findings(settings.limits, "", step)
    if "bridge" not in settings.networks:
        step = "start the daemon without `--bridge none` if containers need a private network"
        yield Finding(
            subject="network bridge",
            ok=None,
            detail="does not work with this daemon",
            next_step=step,
        )
    if not found.ends_many:
        detail = "one after the other, because the daemon can lock up if many end at once"
        yield Finding(
            subject="ends of containers",
            ok=None,
            detail=detail,
            next_step="install Docker 23 or newer",
        )
    yield _builds(found)
    yield _gpus(found)


def _builds(found: Probe) -> Finding:
    if has_buildkit(found.version):
        return Finding(subject="image builds", ok=True, detail="by BuildKit")
    detail = "by the daemon's own builder, for which here-documents are translated"
    step = (
        "for BuildKit, use Docker 23 or newer with its buildx component (docker-buildx, "
        "docker-buildx-plugin)"
    )
    return Finding(subject="image builds", ok=None, detail=detail, next_step=step)


def _gpus(found: Probe) -> Finding:
    settings = found.settings
    if settings.nvidia:
        return Finding(subject="GPUs", ok=True, detail="by NVIDIA's container runtime")
    if settings.cdi_devices:
        return Finding(subject="GPUs", ok=True, detail=f"by CDI: {', '.join(settings.cdi_devices)}")
    if settings.cdi_dirs:
        step = (
            "generate specs, for NVIDIA with `nvidia-ctk cdi generate "
            "--output=/etc/cdi/nvidia.yaml`"
        )
        return Finding(
            subject="GPUs",
            ok=None,
            detail="the daemon accepts CDI names but lists none",
            next_step=step,
        )
    step = "install nvidia-container-toolkit if this machine has GPUs, or use Docker 28 (CDI)"
    return Finding(subject="GPUs", ok=None, detail="containers cannot use any", next_step=step)
