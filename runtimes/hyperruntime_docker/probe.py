"""Probe what the daemon can do by running containers of this machine's userland.

The probe imports a temporary image of directories and links (a few kilobytes) and mounts ``/usr``
into it. The container answers through a FIFO of this machine, as all execs do. So a daemon on
another machine, in a virtual machine or with another file system is refused. The result is cached
per boot, user and daemon.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs

from hyperruntime.driver import EngineInfo
from hyperruntime.host.probe_cache import ProbeFile
from hyperruntime.host.process import find_program, python_args
from hyperruntime.logs import get_logger
from hyperruntime_docker.args import NAME, Settings
from hyperruntime_docker.client import Engine, endpoint_or_default, translated
from hyperruntime_docker.container import gives_gpus
from hyperruntime_docker.trial import open_trial

RECLAIM_ARGS = python_args("-I", "-m", "hyperruntime_docker.reclaim")

log = get_logger(__name__)

# Docker's --gpus needs one of them
_NVIDIA = "nvidia"
_NVIDIA_HOOK = "nvidia-container-runtime-hook"
_FIRST_THAT_ENDS_MANY = 23
_WHAT_MATTERS = (
    "ID",
    "ServerVersion",
    "Driver",
    "CgroupVersion",
    "DefaultRuntime",
    "CDISpecDirs",
    "SecurityOptions",
)


@attrs.frozen(kw_only=True)
class Probe:
    """The result of a probe.

    Attributes:
        version: the daemon's version.
        storage: the daemon's storage driver.
        oci_runtime: the daemon's default OCI runtime.
        settings: what the daemon can do.
    """

    version: str
    storage: str
    oci_runtime: str
    settings: Settings

    @property
    def ends_many(self) -> bool:
        """Whether many containers may end at once, see
        :class:`~hyperruntime_docker.shell.EndTurn`.
        """
        number = self.version.partition(".")[0]
        return not number.isdecimal() or int(number) >= _FIRST_THAT_ENDS_MANY

    def to_info(self) -> EngineInfo:
        """Return the result in the library's form."""
        return EngineInfo(
            engine=NAME,
            version=self.version,
            rootless=self.settings.rootless,
            oci_runtime=self.oci_runtime,
            storage=self.storage,
            networks=self.settings.networks,
            limits={**self.settings.limits, "tmpfs_bytes": "cgroup", "shm_bytes": "cgroup"},
            gpus=gives_gpus(self.settings),
            users=True,
            snapshots=True,
            slow_rollbacks=True,
            services=True,
            refuses=frozenset()
            if os.geteuid() == 0 or self.settings.rootless
            else frozenset({"terminal"}),
            reclaim_args=() if os.geteuid() == 0 else RECLAIM_ARGS,
        )


def cached_probe(engine: Engine) -> tuple[Probe, bool]:
    """Return the cached result, or probe; and whether the result came from the cache.

    Raises:
        EngineUnavailableError: no daemon answers, or it cannot run a container.
    """
    info = daemon_info(engine)
    found = probe_file(info).read()
    return (probe(engine, info), False) if found is None else (found, True)


def probe(engine: Engine, info: Mapping[str, Any]) -> Probe:
    """Run containers on the daemon and cache the result, unless one of them did not end in time.

    Args:
        engine: the connection to the daemon.
        info: the result of :func:`daemon_info`.

    Raises:
        EngineUnavailableError: no daemon answers, or it cannot run a container, or not in time.
    """
    with open_trial(engine) as trial, ThreadPoolExecutor(2) as threads:
        others = {name: threads.submit(trial.works_with, name) for name in ("host", "bridge")}
        limits = trial.limits()
        networks = ("none", *(name for name, works in others.items() if works.result()))
    found = Probe(
        version=str(info.get("ServerVersion", "")),
        storage=str(info.get("Driver", "")),
        oci_runtime=str(info.get("DefaultRuntime", "")),
        settings=Settings(
            rootless=any(
                option.startswith("name=rootless") for option in info.get("SecurityOptions") or ()
            ),
            limits=limits,
            networks=networks,
            cdi_dirs=tuple(info.get("CDISpecDirs") or ()),
            cdi_devices=cdi_devices(info),
            nvidia=_NVIDIA in (info.get("Runtimes") or {})
            or find_program(_NVIDIA_HOOK) is not None,
        ),
    )
    if not trial.trials.late:
        probe_file(info).write(found)
    return found


def daemon_info(engine: Engine) -> dict[str, Any]:
    """Return the daemon's description of itself.

    Raises:
        EngineUnavailableError: no daemon answers.

    Source: Engine API, SystemInfo.
    """
    with translated("the daemon's description (`docker info`) cannot be read"):
        return dict(engine.api().info())


def cdi_devices(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the CDI device names that a daemon lists."""
    return tuple(
        str(d.get("ID")) for d in info.get("DiscoveredDevices") or () if d.get("Source") == "cdi"
    )


def probe_file(info: Mapping[str, Any]) -> ProbeFile[Probe]:
    """Return the file of what a probe found: for this daemon, as it describes itself, and this
    TMPDIR.

    Args:
        info: the daemon's description, of :func:`daemon_info`.
    """
    facts = [info.get(name) for name in _WHAT_MATTERS]
    facts += [
        sorted(info.get("Runtimes") or {}),
        cdi_devices(info),
        endpoint_or_default(),
        os.environ.get("TMPDIR"),
    ]
    return ProbeFile(NAME, facts, Probe)
