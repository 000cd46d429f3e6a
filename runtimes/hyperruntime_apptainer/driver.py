"""The Apptainer driver: for an ordinary user, with no daemon, no setuid program and no instance."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import attrs

from hyperruntime.driver import ContainerRecord, Driver, EngineInfo, Finding, Launch
from hyperruntime.errors import SpecError
from hyperruntime.host.inherited import process_ceiling
from hyperruntime_apptainer import records
from hyperruntime_apptainer.args import NAME, Settings, refuse
from hyperruntime_apptainer.container import ApptainerContainer
from hyperruntime_apptainer.diagnosis import diagnose
from hyperruntime_apptainer.images import ApptainerImages
from hyperruntime_apptainer.probe import Probe, cached_probe, forget

_TRUSTED_S = 60.0


class ApptainerDriver:
    """Adapter for Apptainer 1.3 and 1.4."""

    name = NAME

    def __init__(self) -> None:
        """Start and read nothing."""
        self._probe: Probe | None = None
        self._info: EngineInfo
        self._tried_at = 0.0

    @property
    def images(self) -> ApptainerImages:
        """The images of this user."""
        return ApptainerImages()

    def open(self, private_dir: str) -> None:
        """Need nothing of it."""

    def probe(self) -> EngineInfo:
        """Return what Apptainer can do here."""
        self._found()
        return self._info

    def diagnose(self) -> Sequence[Finding]:
        """Probe anew and say what was found."""
        return diagnose()

    def launch(self, launch: Launch) -> ApptainerContainer:
        """Start a container with its shell attached."""
        settings = self._settings()
        refuse(launch.spec, settings)
        for mount in launch.spec.mounts:
            if not Path(mount.source).exists():
                raise SpecError("Mount.source", mount.source, "a path that exists on this machine")
        return ApptainerContainer(launch, settings, self.images.source(launch.spec.image), self._distrust)

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this user's containers of which there is a record."""
        return tuple(record.to_container() for record in records.read_all())

    def remove_container(self, container_id: str) -> None:
        """End and remove a container."""
        records.remove(container_id)

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return what removes every container with a label."""
        return (sys.executable or "python3", "-m", "hyperruntime_apptainer.cleanup", label)

    def close(self) -> None:
        """Have nothing to end."""

    def _settings(self) -> Settings:
        """Return how to call it; the limit on processes may have been lowered since it was tried."""
        return attrs.evolve(self._found().settings, nproc=process_ceiling())

    def _found(self) -> Probe:
        """Return what is known, which another thread may drop at any moment, or find it out."""
        if (found := self._probe) is None:
            found, remembered = cached_probe()
            self._info = found.to_info()
            self._tried_at = -math.inf if remembered else time.monotonic()
            self._probe = found
        return found

    def _distrust(self) -> None:
        """Drop what is known of this machine, unless it was tried just now: a container did not start."""
        if time.monotonic() - self._tried_at > _TRUSTED_S:
            self._probe = None
            forget()


_: type[Driver] = ApptainerDriver
