"""The Podman driver: rootful and rootless; it leaves no daemon behind."""

from __future__ import annotations

import os

from hyperruntime.driver import ContainerRecord, Driver, Launch
from hyperruntime.host.engine_driver import EngineDriver
from hyperruntime.logs import get_logger
from hyperruntime_podman.args import NAME, OWN_DIRECTORY, base_args, in_user_store, store_args
from hyperruntime_podman.container import PodmanContainer, remove
from hyperruntime_podman.copies import ImageCopies, remove_orphans
from hyperruntime_podman.diagnosis import findings
from hyperruntime_podman.edge import environment_args
from hyperruntime_podman.images import PodmanImages
from hyperruntime_podman.own_store import COST, containers_in, own_store_args
from hyperruntime_podman.probe import Probe, cached_probe

log = get_logger(__name__)

# A list may fail because a container is being removed, and Podman gives up if processes are slow to
# end: then it asks again, and in the end fails, so that the guard goes on later. $1: the label;
# $2...: the program.
_CLEANUP = """
clean() {
    label=$1 n=0; shift
    while [ $n -lt 10 ]; do
        n=$((n + 1))
        if ids=$("$@" ps --all --quiet --filter "label=$label"); then
            [ -n "$ids" ] || return 0
            "$@" rm --force --ignore --volumes --time 0 $ids && continue
        fi
        sleep 1
    done
    return 1
}
command -v podman || exit 127
failed=0
clean "$1" podman || failed=1
"""
_CLEANUP_OWN = f"""
root=$(podman info --format '{{{{.Store.GraphRoot}}}}')/{OWN_DIRECTORY} || failed=1
run=$(podman info --format '{{{{.Store.RunRoot}}}}')/{OWN_DIRECTORY} || failed=1
if [ -d "$root/overlay-containers" ]; then
    clean "$1" podman {" ".join(store_args('"$root"', '"$run"'))} || failed=1
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
        found = self._probe.get_with(launch.spec.network)
        self._warn(found)
        settings = found.settings
        image = ""
        if settings.root and not (image := self._copies.find(launch.spec.image)):
            settings = in_user_store(settings)
        return PodmanContainer(launch, settings, self._probe.distrust, image)

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this library's containers in this user's Podman, in each of its stores."""
        stores = dict.fromkeys(((), own_store_args()))
        return tuple(record for store_args in stores for record in containers_in(store_args))

    def remove_container(self, container_id: str) -> None:
        """End and remove a container, in any store; do nothing if it does not exist.

        Raises:
            EngineError: the container cannot be removed.
        """
        remove(container_id)
        if args := own_store_args():
            remove(container_id, args)

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return the argv that removes every container with a label; it exits with 0 when no store
        has one.
        """
        script = _CLEANUP + ("" if os.geteuid() == 0 else _CLEANUP_OWN) + "exit $failed"
        return (*environment_args(), "/bin/sh", "-c", script, "cleanup", label)

    def _build_args(self) -> list[str]:
        return base_args(in_user_store(self._probe.get().settings))

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
