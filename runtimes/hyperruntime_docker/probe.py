"""Find out what the daemon can do, by really running containers made of this machine's own userland.

No image is needed: an empty one (directories and links, a few kilobytes) is imported for the moment, and ``/usr`` is
mounted into it. The answer comes through a FIFO of this machine, as all our execs' output does: a daemon on another
machine, in a virtual machine or behind another file system can reach no such FIFO and is refused. What works is
remembered per boot, user and daemon.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.driver import EngineInfo
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.process import find_program
from hyperruntime.logs import get_logger
from hyperruntime_docker.args import NAME, Settings
from hyperruntime_docker.client import Engine, endpoint_or_default, translated
from hyperruntime_docker.gpus import gives_gpus
from hyperruntime_docker.trial import Trial

RECLAIM_ARGS = (sys.executable, "-I", "-m", "hyperruntime_docker.reclaim")

log = get_logger(__name__)

_WHAT_MATTERS = ("ID", "ServerVersion", "Driver", "CgroupVersion", "DefaultRuntime", "CDISpecDirs", "SecurityOptions")


@attrs.frozen(kw_only=True)
class Probe:
    """What probing found.

    Attributes:
        version: the daemon's.
        storage: its storage driver.
        oci_runtime: its default one.
        settings: what it can do.
    """

    version: str = attrs.field(validator=attrs.validators.instance_of(str))
    storage: str = attrs.field(validator=attrs.validators.instance_of(str))
    oci_runtime: str = attrs.field(validator=attrs.validators.instance_of(str))
    settings: Settings

    def to_info(self) -> EngineInfo:
        """Return it as the library tells it."""
        return EngineInfo(
            engine=NAME,
            version=self.version,
            rootless=self.settings.rootless,
            oci_runtime=self.oci_runtime,
            storage=self.storage,
            networks=self.settings.networks,
            limits={**self.settings.limits, "tmpfs_bytes": "cgroup"},
            gpus=gives_gpus(self.settings),
            users=True,
            reclaim_args=() if os.geteuid() == 0 else RECLAIM_ARGS,
        )


def cached_probe(engine: Engine) -> tuple[Probe, bool]:
    """Return what a probe of this boot, user and daemon found, else probe now; and whether it was remembered.

    Raises:
        EngineUnavailableError: no daemon answers, or it can run no container for us.
    """
    info = daemon_info(engine)
    try:
        data = json.loads(_cache_path(info).read_bytes())
        return Probe(settings=Settings(**data.pop("settings")), **data), True
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return probe(engine, info), False


def probe(engine: Engine, info: Mapping[str, Any] | None = None) -> Probe:
    """Run containers on the daemon and remember what worked.

    Raises:
        EngineUnavailableError: no daemon answers, or it can run no container for us.
    """
    info = info if info is not None else daemon_info(engine)
    with Trial(engine) as trial, ThreadPoolExecutor(2) as threads:
        others = {name: threads.submit(trial.works_with, name) for name in ("host", "bridge")}
        limits = trial.limits()
        networks = ("none", *(name for name, works in others.items() if works.result()))
    found = Probe(
        version=str(info.get("ServerVersion", "")),
        storage=str(info.get("Driver", "")),
        oci_runtime=str(info.get("DefaultRuntime", "")),
        settings=Settings(
            rootless=is_rootless(info),
            limits=limits,
            networks=networks,
            cdi_dirs=info.get("CDISpecDirs") or (),
            cdi_devices=cdi_devices(info),
            nvidia=has_nvidia(info),
        ),
    )
    _remember(info, found)
    return found


def daemon_info(engine: Engine) -> dict[str, Any]:
    """Return what the daemon says of itself.

    Raises:
        EngineUnavailableError: none answers.
    """
    with translated("the daemon does not describe itself"):
        return dict(engine.api().info())


def is_rootless(info: Mapping[str, Any]) -> bool:
    """Tell whether a daemon runs as an ordinary user."""
    return any(option.startswith("name=rootless") for option in info.get("SecurityOptions") or ())


def cdi_devices(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the CDI device names that a daemon lists."""
    return tuple(str(d.get("ID")) for d in info.get("DiscoveredDevices") or () if d.get("Source") == "cdi")


def has_nvidia(info: Mapping[str, Any]) -> bool:
    """Tell whether NVIDIA's runtime, or the hook that Docker's ``--gpus`` needs, is installed."""
    return "nvidia" in (info.get("Runtimes") or {}) or find_program("nvidia-container-runtime-hook") is not None


def forget() -> None:
    """Drop what was remembered of every daemon, so that the next probe is a real one; never raises."""
    try:
        for path in cache_directory().glob(f"{NAME}-{os.geteuid()}-*.json"):
            path.unlink(missing_ok=True)
    except OSError:
        pass


def _cache_path(info: Mapping[str, Any]) -> Path:
    """Return a name made of all that decides what works.

    Raises:
        StorageError: the user has no home.
    """
    facts = [info.get(name) for name in _WHAT_MATTERS]
    facts += [sorted(info.get("Runtimes") or {}), cdi_devices(info), endpoint_or_default(), os.environ.get("TMPDIR")]
    try:
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    except OSError:
        facts.append("unknown boot")
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return cache_directory() / f"{NAME}-{os.geteuid()}-{key}.json"


def _remember(info: Mapping[str, Any], found: Probe) -> None:
    try:
        path = _cache_path(info)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(attrs.asdict(found)))
        os.replace(temporary, path)
    except OSError as error:
        log.debug("probe not remembered", error=str(error))
