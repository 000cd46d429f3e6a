"""The Apptainer driver: runs as an ordinary user, without a daemon, a setuid program or an instance."""

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
    """Driver for Apptainer 1.3 and 1.4."""

    name = NAME

    def __init__(self) -> None:
        """Create a driver; the probe runs when it is first needed."""
        self._probe: Probe | None = None
        self._info: EngineInfo
        self._tried_at = 0.0

    @property
    def images(self) -> ApptainerImages:
        """This user's images."""
        return ApptainerImages()

    def open(self, private_dir: str) -> None:
        """Do nothing: this driver needs no private directory."""

    def probe(self) -> EngineInfo:
        """Return what Apptainer can do on this machine.

        Raises:
            EngineUnavailableError: Apptainer is missing or cannot run a container.
        """
        self._found()
        return self._info

    def diagnose(self) -> Sequence[Finding]:
        """Probe again and return the findings; never raises."""
        return diagnose()

    def launch(self, launch: Launch) -> ApptainerContainer:
        """Start a container with its shell attached.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            SpecError: the source of a mount does not exist.
            ImageNotFoundError: the image is not on this machine.
            EngineUnavailableError: Apptainer cannot run.
        """
        settings = self._settings()
        refuse(launch.spec, settings)
        for mount in launch.spec.mounts:
            if not Path(mount.source).exists():
                raise SpecError("Mount.source", mount.source, "a path that exists on this machine")
        return ApptainerContainer(launch, settings, self.images.source(launch.spec.image), self._distrust)

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this user's containers, from their records."""
        return tuple(record.to_container() for record in records.read_all())

    def remove_container(self, container_id: str) -> None:
        """End and remove a container; do nothing if it does not exist.

        Raises:
            EngineError: it runs on another machine, or does not end.
        """
        records.remove(container_id)

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return the argv that removes every container with a label."""
        return (sys.executable or "python3", "-m", "hyperruntime_apptainer.cleanup", label)

    def close(self) -> None:
        """Do nothing: this driver starts no service."""

    def _settings(self) -> Settings:
        """Return the probed settings with today's process limit, which may be lower than at the probe."""
        return attrs.evolve(self._found().settings, nproc=process_ceiling())

    def _found(self) -> Probe:
        """Return the known probe result, or probe; another thread may drop the result at any time."""
        if (found := self._probe) is None:
            found, remembered = cached_probe()
            self._info = found.to_info()
            self._tried_at = -math.inf if remembered else time.monotonic()
            self._probe = found
        return found

    def _distrust(self) -> None:
        """Drop the probe result after a container did not start, unless the probe is recent."""
        if time.monotonic() - self._tried_at > _TRUSTED_S:
            self._probe = None
            forget()


_: type[Driver] = ApptainerDriver
