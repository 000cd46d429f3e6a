"""The Podman driver: rootful and rootless; it leaves no daemon behind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from hyperruntime.driver import ContainerRecord, Driver, EngineInfo, Finding, Launch
from hyperruntime.host.owner import LABEL, make_short_directory
from hyperruntime.host.probe_cache import TrustedProbe, forget_probes
from hyperruntime_podman.args import NAME, Settings, base_args
from hyperruntime_podman.container import PodmanContainer, remove
from hyperruntime_podman.diagnosis import findings
from hyperruntime_podman.edge import environment_args
from hyperruntime_podman.images import PodmanImages
from hyperruntime_podman.probe import cached_probe
from hyperruntime_podman.service import PodmanService

# A list may fail because a container is being removed, and Podman gives up if processes are slow to end: then it asks
# again, and in the end fails, so that the guard goes on later.
_CLEANUP = """
command -v podman || exit
n=0
while [ $n -lt 10 ]; do
    n=$((n + 1))
    if ids=$(podman ps --all --quiet --filter "label=$1"); then
        [ -n "$ids" ] || exit 0
        podman rm --force --ignore --volumes --time 0 $ids && continue
    fi
    sleep 1
done
exit 1
"""


class PodmanDriver:
    """Driver for Podman 4 and 5.

    Attributes:
        images: Podman's images.
    """

    name = NAME

    def __init__(self) -> None:
        """Create a driver; the probe runs, and the API service starts, when they are first needed."""
        self._probe = TrustedProbe(NAME, cached_probe)
        self._private_dir: str | None = None
        self._service = PodmanService(lambda: make_short_directory(self._private_dir))
        self.images = PodmanImages(self._service, lambda: base_args(self._settings()))

    def open(self, private_dir: str) -> None:
        """Store the private directory, with which the directory of the API socket is removed."""
        self._private_dir = private_dir

    def probe(self) -> EngineInfo:
        """Return what Podman can do on this machine.

        Raises:
            EngineUnavailableError: Podman is missing or cannot run a container.
        """
        return self._probe.info()

    def diagnose(self) -> Sequence[Finding]:
        """Probe again and return the findings; never raises."""
        forget_probes(NAME)
        return tuple(findings())

    def launch(self, launch: Launch) -> PodmanContainer:
        """Start a container with its shell attached.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            SpecError: the spec does not fit in a command line.
            DeviceNotFoundError: no CDI spec describes a requested GPU.
            EngineUnavailableError: Podman is missing or cannot run a container.
        """
        settings = self._probe.get_with(launch.spec.network).settings
        return PodmanContainer(launch, settings, self._probe.distrust)

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this library's containers in this user's Podman."""
        found = self._service.call(
            "containers cannot be listed",
            lambda client: client.containers.list(all=True, sparse=True, filters={"label": LABEL}),
        )
        return tuple(_record(container.attrs) for container in found)

    def remove_container(self, container_id: str) -> None:
        """End and remove a container; do nothing if it does not exist.

        Raises:
            EngineError: the container cannot be removed.
        """
        remove(container_id)

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return the argv that removes every container with a label; it exits with 0 when Podman lists none."""
        return (*environment_args(), "/bin/sh", "-c", _CLEANUP, "cleanup", label)

    def close(self) -> None:
        """End the API service."""
        self._service.close()

    def _settings(self) -> Settings:
        return self._probe.get().settings


def _record(attrs: dict[str, Any]) -> ContainerRecord:
    return ContainerRecord(
        id=str(attrs["Names"][0]),
        image=str(attrs["Image"]),
        state=str(attrs["State"]),
        created=datetime.fromisoformat(attrs["Created"]).timestamp(),
        labels=dict(attrs["Labels"]),
    )


_: type[Driver] = PodmanDriver
