"""The Docker driver: any daemon of this machine, rootful or rootless, by its API."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyperruntime.driver import ContainerRecord, Driver, EngineInfo, Finding, Launch
from hyperruntime.errors import SpecError
from hyperruntime.host.owner import LABEL
from hyperruntime_docker.args import NAME, UID_LABEL, Settings
from hyperruntime_docker.client import Engine, translated
from hyperruntime_docker.container import DockerContainer, remove
from hyperruntime_docker.diagnosis import diagnose
from hyperruntime_docker.images import DockerImages
from hyperruntime_docker.probe import Probe, cached_probe, forget

_TRUSTED_S = 60.0
_BY_COMMAND = 'ids=$(docker ps --all --quiet --filter "label=$1") && [ -n "$ids" ] && docker rm --force --volumes $ids'


class DockerDriver:
    """Adapter for Docker 20.10 and newer."""

    name = NAME

    def __init__(self) -> None:
        """Connect to and read nothing."""
        self._engine = Engine()
        self._probe: Probe | None = None
        self._info: EngineInfo
        self._tried_at = 0.0

    @property
    def images(self) -> DockerImages:
        """The daemon's images."""
        return DockerImages(self._engine)

    def open(self, private_dir: str) -> None:
        """Need no directory: all state is the daemon's."""

    def probe(self) -> EngineInfo:
        """Return what the daemon can do here."""
        self._found()
        return self._info

    def diagnose(self) -> Sequence[Finding]:
        """Probe anew and say what was found."""
        return diagnose(self._engine)

    def launch(self, launch: Launch) -> DockerContainer:
        """Start a container with its shell attached."""
        for mount in launch.spec.mounts:
            if not Path(mount.source).exists():
                raise SpecError("Mount.source", mount.source, "a path that exists on this machine")
        return DockerContainer(launch, self._settings(), self._engine, self._distrust)

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this library's containers that are not another user's: the daemon is everybody's."""
        with translated("containers cannot be listed"):
            found = self._engine.api().containers(all=True, filters={"label": LABEL})
        mine = str(os.getuid())
        return tuple(_record(entry) for entry in found if (entry.get("Labels") or {}).get(UID_LABEL, mine) == mine)

    def remove_container(self, container_id: str) -> None:
        """End and remove a container."""
        remove(self._engine, container_id)

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return what removes every container with a label: by the SDK, else by the ``docker`` command."""
        script = f'"$2" -m hyperruntime_docker.cleanup "$1" || {{ {_BY_COMMAND}; }}'
        return ("/bin/sh", "-c", script, "cleanup", label, sys.executable or "python3")

    def close(self) -> None:
        """Close the connections."""
        self._engine.close()

    def _settings(self) -> Settings:
        return self._found().settings

    def _found(self) -> Probe:
        """Return what is known, which another thread may drop at any moment, or find it out."""
        if (found := self._probe) is None:
            found, remembered = cached_probe(self._engine)
            self._info = found.to_info()
            self._tried_at = -math.inf if remembered else time.monotonic()
            self._probe = found
        return found

    def _distrust(self) -> None:
        """Drop what is known of the daemon, unless it was tried just now: a container did not start."""
        if time.monotonic() - self._tried_at > _TRUSTED_S:
            self._probe = None
            forget()


def _record(entry: dict[str, Any]) -> ContainerRecord:
    names = entry.get("Names") or [entry.get("Id", "")]
    return ContainerRecord(
        id=str(names[0]).lstrip("/"),
        image=str(entry.get("Image") or ""),
        state=str(entry.get("State") or ""),
        created=float(entry.get("Created") or 0),
        labels=dict(entry.get("Labels") or {}),
    )


_: type[Driver] = DockerDriver
