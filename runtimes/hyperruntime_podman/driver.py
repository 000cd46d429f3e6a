"""The Podman driver: rootful and rootless; it leaves no daemon behind."""

from __future__ import annotations

import os
from functools import partial

import attrs

from hyperruntime.driver import ContainerRecord, Driver, Launch
from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime.host.engine_driver import EngineDriver
from hyperruntime.host.engine_program import NO_IDS
from hyperruntime.layers.snapshots.kept_images import SNAPSHOTS, ImageSnapshots, KeptImages, Labels
from hyperruntime.logs import get_logger
from hyperruntime.run_as import is_root
from hyperruntime_podman.args import (
    NAME,
    OWN_DIRECTORY,
    Settings,
    build_args,
    in_user_store,
    own_args,
    store_args,
)
from hyperruntime_podman.container import OpenPodmanContainer, PodmanContainer, remove
from hyperruntime_podman.copies import ImageCopies, remove_orphans
from hyperruntime_podman.diagnosis import findings
from hyperruntime_podman.edge import environment_args, inspect_image
from hyperruntime_podman.images import PodmanImages
from hyperruntime_podman.own_store import COST, containers_in, own_store_args
from hyperruntime_podman.probe import Probe, cached_probe
from hyperruntime_podman.program import program
from hyperruntime_podman.snapshots import REMOVE, SnapshotImages, commit, dead_snapshots

log = get_logger(__name__)

# A list may fail because a container is being removed, and Podman gives up if processes are slow to
# end: then it asks again, and in the end fails, so that the guard goes on later. $1: the label;
# $2...: the program.
_CLEANUP = r"""
clean() {
    label=$1 n=0; shift
    while [ $n -lt 10 ]; do
        n=$((n + 1))
        if ids=$("$@" ps --all --quiet --filter "label=$label"); then
            if [ -n "$ids" ]; then
                "$@" rm --force --ignore --depend --volumes --time 0 $ids && continue
            else  # no commit runs any more: the removal of its container waited for it
                ids=$("$@" images --format "{{.Repository}}:{{.Tag}}" --filter "label=$label") &&
                    ids=$(printf "%s\n" "$ids" | sed -n "\|^SNAPSHOTS:|p" | sort -r) &&
                    { [ -z "$ids" ] || "$@" REMOVE $ids; } && return 0
            fi
        fi
        sleep 1
    done
    return 1
}
command -v "$2" || exit 127
failed=0
clean "$1" "$2" || failed=1
""".replace("SNAPSHOTS", SNAPSHOTS).replace("REMOVE", " ".join(REMOVE))
_CLEANUP_OWN = f"""
root=$("$2" info --format '{{{{.Store.GraphRoot}}}}')/{OWN_DIRECTORY} || failed=1
run=$("$2" info --format '{{{{.Store.RunRoot}}}}')/{OWN_DIRECTORY} || failed=1
if [ -d "$root/overlay-containers" ]; then
    clean "$1" "$2" {" ".join(store_args('"$root"', '"$run"'))} || failed=1
fi
"""


class PodmanDriver(EngineDriver[Probe]):
    """Driver for Podman 4 and 5.

    Attributes:
        images: Podman's images.
    """

    name = NAME

    def __init__(self) -> None:
        """Create a driver; the probe runs when it is first needed."""
        super().__init__(cached_probe, findings)
        self._copies = ImageCopies()
        self._snapshot_images = SnapshotImages()
        self._kept = KeptImages(self._snapshot_images.remove)
        self._stores: dict[str, Settings] = {}  # of snapshots
        self._has_warned = False
        self.images = PodmanImages(self._build_args, remove_orphans)

    def launch(self, launch: Launch) -> PodmanContainer:
        """Start a container with its shell attached.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            SpecError: the spec does not fit in a command line.
            DeviceNotFoundError: no CDI spec describes a requested GPU.
            EngineUnavailableError: Podman is missing or cannot run a container.
        """
        found = self._probe.get_with(launch.spec.engine_network)
        self._warn(found)
        settings = found.settings
        user = launch.spec.user
        if user is not None and not is_root(user) and not settings.has_users:
            raise UnsupportedOptionError(NAME, "user", NO_IDS)
        image = "".join(launch.layers)
        if image:
            settings = self._stores.get(image) or self._settings_of(image, settings)
        elif settings.root and not (image := self._copies.find(launch.spec.image)):
            settings = in_user_store(settings)
        rest = (settings, self._probe.distrust, image, self._keep)
        if launch.joins is None or not settings.uids:
            return OpenPodmanContainer(launch, *rest)
        # Podman enters a container's user namespace first, which has no rights in this network; so
        # the container's own root becomes its users
        config = (inspect_image(launch.spec.image) or {}).get("Config") or {}
        own = attrs.evolve(launch, spec=attrs.evolve(launch.spec, user="0:0"))
        container = PodmanContainer(own, *rest)
        container.user = user or str(config.get("User") or "")
        container.home = launch.spec.env.get("HOME", "")
        return container

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this library's containers in this user's Podman, in each of its stores, and what
        is left of snapshots whose owner is dead.
        """
        stores = dict.fromkeys(((), own_store_args()))
        found = [*map(containers_in, stores), *map(dead_snapshots, stores)]
        return tuple(record for records in found for record in records)

    def remove_container(self, container_id: str) -> None:
        """End and remove a container, in any store; do nothing if it does not exist.

        Raises:
            EngineError: the container cannot be removed.
        """
        if container_id.startswith(SNAPSHOTS):
            self._snapshot_images.remove([container_id])
            return
        remove(container_id)
        if args := own_store_args():
            remove(container_id, args)

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return the argv that removes every container with a label; it exits with 0 when no store
        has one.
        """
        script = _CLEANUP + ("" if os.geteuid() == 0 else _CLEANUP_OWN) + "exit $failed"
        return (*environment_args(), "/bin/sh", "-c", script, "cleanup", label, program())

    def close(self) -> None:
        """Remove the snapshots."""
        self._kept.close()

    @property
    def snapshots(self) -> ImageSnapshots:
        """The named snapshots of this user."""
        return ImageSnapshots(NAME, self._snapshot_images)

    def _keep(
        self, settings: Settings, container: str, image: str, labels: Labels
    ) -> tuple[str, ...]:
        layers = self._kept.keep(partial(commit, settings, container, image, labels))
        self._stores[layers[0]] = settings
        return layers

    def _settings_of(self, snapshot: str, settings: Settings) -> Settings:
        """Return the settings of the store that has a snapshot of another process.

        Raises:
            SpecError: it is in a store that containers do not use now.
        """
        unused = own_store_args() if not settings.root else ()
        if unused and inspect_image(snapshot) is None and inspect_image(snapshot, *unused):
            why = (
                f"it lies in the store {unused[1]}, which containers do not use now; `hyperrun "
                "snapshot save` makes an archive of it, and `hyperrun image load` an image of that"
            )
            raise SpecError("base", snapshot, why)
        is_own = not settings.root or inspect_image(snapshot, *own_args(settings)) is not None
        self._stores[snapshot] = settings if is_own else in_user_store(settings)
        return self._stores[snapshot]

    def _build_args(self) -> list[str]:
        return build_args(self._probe.get().settings)

    def _warn(self, found: Probe) -> None:
        """Log once what the store costs, if it is slow."""
        if found.slow and not self._has_warned:
            self._has_warned = True
            log.warning(
                "Podman's storage driver vfs is slow",
                cost=COST,
                why=found.slow,
                next_step=found.step,
            )


_: type[Driver] = PodmanDriver
