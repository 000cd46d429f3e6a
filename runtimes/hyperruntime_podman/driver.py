"""The Podman driver: rootful and rootless; it leaves no daemon behind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from hyperruntime.driver import ContainerRecord, Driver, EngineInfo, Finding, Launch
from hyperruntime.host.owner import LABEL, make_short_directory
from hyperruntime.host.probe_cache import TrustedProbe
from hyperruntime_podman.args import NAME, Settings, base_args
from hyperruntime_podman.container import PodmanContainer, remove
from hyperruntime_podman.diagnosis import diagnose
from hyperruntime_podman.edge import environment_args
from hyperruntime_podman.images import PodmanImages
from hyperruntime_podman.probe import cached_probe
from hyperruntime_podman.service import PodmanService

_REMOVALS = 10


class PodmanDriver:
    """Driver for Podman 4 and 5."""

    name = NAME

    def __init__(self) -> None:
        """Create a driver; the probe runs, and the API service starts, when they are first needed."""
        self._probe = TrustedProbe(NAME, cached_probe)
        self._service: PodmanService | None = None
        self._private_dir: str | None = None

    @property
    def images(self) -> PodmanImages:
        """Podman's images."""
        return PodmanImages(self._api(), lambda: base_args(self._settings()))

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
        return diagnose()

    def launch(self, launch: Launch) -> PodmanContainer:
        """Start a container with its shell attached.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            SpecError: the source of a mount does not exist, or the spec does not fit in a command line.
            DeviceNotFoundError: no CDI spec describes a requested GPU.
            EngineUnavailableError: Podman is missing or cannot run a container.
        """
        return PodmanContainer(launch, self._settings(), self._probe.distrust)

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this library's containers in this user's Podman."""

        def listed(client: Any) -> tuple[ContainerRecord, ...]:  # noqa: ANN401 - podman-py is untyped
            found = client.containers.list(all=True, filters={"label": LABEL})
            return tuple(_record(container.attrs) for container in found)

        return self._api().call("containers cannot be listed", listed)

    def remove_container(self, container_id: str) -> None:
        """End and remove a container; do nothing if it does not exist.

        Raises:
            EngineError: the container cannot be removed.
        """
        remove(container_id)

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return the argv that removes every container with a label."""
        found = 'ids=$(podman ps --all --quiet --filter "label=$1") && [ -n "$ids" ]'
        again = f"[ $n -lt {_REMOVALS} ] && {found}"  # Podman gives up if processes are slow to end
        script = f"n=0; while {again}; do podman rm --force --ignore --volumes --time 0 $ids; n=$((n+1)); done"
        return (*environment_args(), "/bin/sh", "-c", script, "cleanup", label)

    def close(self) -> None:
        """End the API service."""
        if self._service is not None:
            self._service.close()

    def _settings(self) -> Settings:
        return self._probe.get().settings

    def _api(self) -> PodmanService:
        if self._service is None:
            self._service = PodmanService(lambda: make_short_directory(self._private_dir))
        return self._service


def _record(attrs: dict[str, Any]) -> ContainerRecord:
    names = attrs.get("Names") or [attrs.get("Name", "")]
    return ContainerRecord(
        id=str(names[0] or attrs.get("Id", "")).lstrip("/"),
        image=str(attrs.get("Image") or attrs.get("ImageName") or ""),
        state=str(attrs.get("State") if isinstance(attrs.get("State"), str) else attrs.get("Status", "")),
        created=_epoch(attrs.get("Created")),
        labels=dict(attrs.get("Labels") or {}),
    )


def _epoch(value: object) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        return 0.0


_: type[Driver] = PodmanDriver
