"""Snapshots of Podman's containers: images that ``podman commit`` makes."""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperruntime.driver import ContainerRecord
from hyperruntime.errors import EngineError
from hyperruntime.host.owner import LABEL
from hyperruntime.layers.snapshots.kept_images import MOST_LAYERS, SNAPSHOTS, Labels, of_dead_owners
from hyperruntime.layers.snapshots.snapshot import IMAGE
from hyperruntime_podman.args import Settings, own_args
from hyperruntime_podman.container import remove
from hyperruntime_podman.edge import ask_podman, inspect_image
from hyperruntime_podman.images import listed_images
from hyperruntime_podman.own_store import own_store_args

_REMOVE_UNUSED = ("rmi", "--ignore", "--no-prune")
REMOVE = (*_REMOVE_UNUSED, "--force")  # ends containers of an image with its last name


def commit(
    settings: Settings,
    container: str,
    image: str,
    labels: Labels,
    name: str,
) -> str:
    """Make an image of a container's files; return its identifier.

    The configuration is that of the container's image: what its spec adds is not part of it.

    Args:
        settings: those of the container.
        container: its name.
        image: its image in the same store.
        labels: returns those to add, from what Podman knows about the image.
        name: the name of the new image.

    Raises:
        EngineError: Podman cannot make it.
    """
    below = _image_of(container, image, own_args(settings))
    squash = ("--squash",) if len(below["RootFS"]["Layers"]) >= MOST_LAYERS else ()
    added = (f"LABEL {key}={value}" for key, value in labels(below).items())
    changes = [f"--change={change}" for change in (*_changes(below["Config"]), *added)]
    words = (*own_args(settings), "commit", "--quiet", "--pause=false", *squash, *changes)
    made = ask_podman(f"{container} cannot be committed", *words, container, name, verb=None)
    return f"sha256:{made.stdout.decode().split()[-1].removeprefix('sha256:')}"


class SnapshotImages:
    """The images of snapshots, in each store of this user.

    See :class:`~hyperruntime.layers.snapshots.kept_images.EngineImages`.
    """

    def names(self, repository: str) -> Iterator[str]:
        """Return the names in a repository."""
        for store in _stores():
            for one in listed_images(*store, filters=(f"reference={repository}",)):
                yield from (name for name in one["Names"] if name.startswith(f"{repository}:"))

    def inspect(self, reference: str) -> dict[str, Any] | None:
        """Return what Podman knows about an image."""
        found = (inspect_image(reference, *store) for store in _stores())
        return next(filter(None, found), None)

    def tag(self, identifier: str, name: str) -> None:
        """Give an image a further name."""
        ask_podman(f"{name} cannot be made", *_store_of(identifier), "tag", identifier, name)

    def users(self, identifier: str) -> list[str]:
        """Return the names of the containers of an image."""
        # Podman compares this with the name that the container was started by, and with the
        # identifier, which has no prefix there
        ancestor = f"ancestor={identifier.removeprefix(IMAGE)}"
        words = ("ps", "--all", "--filter", ancestor, "--format", "{{.Names}}")
        listed = (ask_podman("containers cannot be listed", *one, *words) for one in _stores())
        return [name for one in listed for name in one.stdout.decode().split()]

    def export(self, identifier: str, tar: Path, labels: Mapping[str, str]) -> None:
        """Write all files of an image to a tar."""
        what = f"the files of image {identifier} cannot be read"
        store = _store_of(identifier)
        name = f"hyperruntime-{secrets.token_hex(6)}"
        given = [f"--label={key}={value}" for key, value in labels.items()]
        words = ("create", "--pull=never", "--network=none", "--name", name, *given)
        ask_podman(what, *store, *words, identifier, "never-started")
        try:
            ask_podman(what, *store, "export", "--output", str(tar), name, verb=None)
        finally:
            remove(name, store)

    def remove(self, names: Sequence[str]) -> None:
        """Remove snapshots by their names, from each store, in this order; Podman refuses the last
        name of a named one while a container uses it.
        """
        are_unnamed = all(name.startswith(f"{SNAPSHOTS}:") for name in names)
        words = REMOVE if are_unnamed else _REMOVE_UNUSED
        for store in _stores():
            ask_podman("snapshots cannot be removed", *store, *words, *names, verb=None)


def _stores() -> Iterator[tuple[str, ...]]:
    """Yield the global options of each store, those of this library's first."""
    return iter(dict.fromkeys((own_store_args(), ())))


def _store_of(identifier: str) -> tuple[str, ...]:
    found = (store for store in _stores() if inspect_image(identifier, *store) is not None)
    return next(found, ())


def dead_snapshots(store_args: Sequence[str]) -> tuple[ContainerRecord, ...]:
    """Return the snapshots in a store whose owner is dead.

    Raises:
        EngineError: Podman does not list them.
    """
    return of_dead_owners(
        (str(name), float(one["Created"]), dict(one["Labels"]))
        for one in listed_images(*store_args, filters=(f"reference={SNAPSHOTS}", f"label={LABEL}"))
        for name in one["Names"]
    )


@functools.lru_cache(maxsize=64)
def _image_of(container: str, image: str, store_args: Sequence[str]) -> dict[str, Any]:
    """Return what Podman knows about a container's image; it is asked once for a container.

    Raises:
        EngineError: it does not know it.
    """
    if (found := inspect_image(image, *store_args)) is None:
        raise EngineError(f"the image {image} of {container} is gone")
    return found


def _changes(config: dict[str, Any]) -> Iterator[str]:
    yield f"USER {config.get('User') or '0'}"
    yield f"WORKDIR {config.get('WorkingDir') or '/'}"
    yield f"ENTRYPOINT {json.dumps(config.get('Entrypoint') or [])}"
    yield f"CMD {json.dumps(config.get('Cmd') or [])}"
