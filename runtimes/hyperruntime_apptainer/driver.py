"""The Apptainer driver: runs as an ordinary user, without a daemon, a setuid program or an instance."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import attrs

from hyperruntime.driver import ContainerRecord, Driver, EngineInfo, Finding, Launch
from hyperruntime.host.inherited import process_ceiling
from hyperruntime.host.probe_cache import TrustedProbe
from hyperruntime_apptainer import records
from hyperruntime_apptainer.args import NAME, Settings, refuse
from hyperruntime_apptainer.container import ApptainerContainer
from hyperruntime_apptainer.diagnosis import diagnose
from hyperruntime_apptainer.images import ApptainerImages
from hyperruntime_apptainer.probe import cached_probe


class ApptainerDriver:
    """Driver for Apptainer 1.3 and 1.4."""

    name = NAME

    def __init__(self) -> None:
        """Create a driver; the probe runs when it is first needed."""
        self._probe = TrustedProbe(NAME, cached_probe)

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
        return self._probe.info()

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
        return ApptainerContainer(launch, settings, self.images.source(launch.spec.image), self._probe.distrust)

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
        return attrs.evolve(self._probe.get().settings, nproc=process_ceiling())


_: type[Driver] = ApptainerDriver
