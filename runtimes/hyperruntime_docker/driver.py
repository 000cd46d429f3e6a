"""The Docker driver: uses the API of any daemon of this machine, rootful or rootless."""

from __future__ import annotations

import os
from typing import Any

from hyperruntime.driver import ContainerRecord, Driver, Launch
from hyperruntime.host.engine_driver import EngineDriver, removal_args
from hyperruntime.host.owner import LABEL
from hyperruntime.layers.snapshots.kept_images import SNAPSHOTS, ImageSnapshots, KeptImages
from hyperruntime_docker.args import NAME, UID_LABEL
from hyperruntime_docker.client import Engine, translated
from hyperruntime_docker.container import DockerContainer, remove
from hyperruntime_docker.diagnosis import findings
from hyperruntime_docker.images import DockerImages
from hyperruntime_docker.probe import Probe, cached_probe
from hyperruntime_docker.shell import EndTurn
from hyperruntime_docker.snapshots import SnapshotImages, dead_snapshots

_BY_COMMAND = (
    'ids=$(docker ps --all --quiet --filter "label=$1") && { [ -z "$ids" ] || docker rm --force '
    '--volumes $ids; } && ids=$(docker images --format "{{.Repository}}:{{.Tag}}" --filter '
    f'"label=$1") && ids=$(printf "%s\\n" "$ids" | sed -n "\\|^{SNAPSHOTS}:|p" | sort -r) && '
    '{ [ -z "$ids" ] || docker rmi --force --no-prune $ids; }'
)


class DockerDriver(EngineDriver[Probe]):
    """Driver for Docker 20.10 and newer.

    Attributes:
        images: the daemon's images.
    """

    name = NAME

    def __init__(self) -> None:
        """Create a driver; it connects to the daemon when that is first needed."""
        self._engine = Engine()
        self.images = DockerImages(self._engine)
        self._snapshot_images = SnapshotImages(self._engine)
        self._kept = KeptImages(self._snapshot_images.remove)
        super().__init__(lambda: cached_probe(self._engine), lambda: findings(self._engine))

    def launch(self, launch: Launch) -> DockerContainer:
        """Start a container with its shell attached.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            SpecError: the source of a mount does not exist on the daemon's machine, or the
                environment is too long.
            EngineUnavailableError: no daemon answers, or it cannot run a container.
            HyperRuntimeError: the daemon refused; the class of the error says why.
        """
        found = self._probe.get_with(launch.spec.engine_network)
        turn = None if found.ends_many else EndTurn()
        return DockerContainer(
            launch, found.settings, self._engine, self._probe.distrust, turn, self._kept
        )

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this library's containers, and what is left of snapshots whose owner is dead;
        without those of other users of the daemon.
        """
        with translated("containers cannot be listed"):
            found = self._engine.api().containers(all=True, filters={"label": LABEL})
        mine = str(os.getuid())
        records = (*map(_record, found), *dead_snapshots(self._engine))
        return tuple(one for one in records if one.labels.get(UID_LABEL, mine) == mine)

    def remove_container(self, container_id: str) -> None:
        """End and remove a container; do nothing if it does not exist.

        Raises:
            EngineError: the container cannot be removed.
        """
        if container_id.startswith(SNAPSHOTS):
            self._snapshot_images.remove([container_id])
            return
        remove(self._engine, container_id)

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return the argv that removes every container with a label: by the SDK, else by the
        ``docker`` command.
        """
        script = f'label=$1; shift; "$@" || {{ set -- "$label"; {_BY_COMMAND}; }}'
        by_sdk = removal_args(self, label, empty_lists=2)
        return ("/bin/sh", "-c", script, "cleanup", label, *by_sdk)

    @property
    def snapshots(self) -> ImageSnapshots:
        """The named snapshots of this user."""
        return ImageSnapshots(NAME, self._snapshot_images)

    def close(self) -> None:
        """Remove the snapshots, and close the connections."""
        self._kept.close()
        self._engine.close()


def _record(entry: dict[str, Any]) -> ContainerRecord:
    return ContainerRecord(
        id=str(entry["Names"][0]).lstrip("/"),
        image=str(entry.get("Image") or ""),
        state=str(entry.get("State") or ""),
        created=float(entry.get("Created") or 0),
        labels=dict(entry.get("Labels") or {}),
    )


_: type[Driver] = DockerDriver
