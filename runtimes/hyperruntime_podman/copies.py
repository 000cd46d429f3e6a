"""Copies of the user's images in this library's own store, made when a container first needs
them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hyperruntime.errors import EngineError, EngineLateError, HyperRuntimeError
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.layers.snapshots.kept_images import FACTS
from hyperruntime.logs import get_logger
from hyperruntime_podman.args import NAME
from hyperruntime_podman.edge import ask_podman, inspect_image, run_podman
from hyperruntime_podman.own_store import Store, file_version, user_store

log = get_logger(__name__)

_NAME = "localhost/hyperruntime-copy"  # the name of a copy whose image has none


class ImageCopies:
    """The copies of one user's images; safe to use from many threads and processes.

    The user's store decides which image a reference names. A copy has the same identifier.
    """

    def __init__(self) -> None:
        """Know no copy; nothing is asked yet."""
        self._lock = threading.Lock()
        # by reference: the user's images when it was found
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}

    def find(self, reference: str) -> str:
        """Return the identifier of an image's copy, which is made if there is none.

        Returns:
            "" if the user's store does not have the image, or it cannot be copied: then only that
            store can run it.
        """
        store = user_store()
        if store is None:
            return ""
        # Podman replaces this file with every change of the user's images
        version = file_version(Path(store.root, f"{store.driver}-images", "images.json"))
        with self._lock:
            known = self._known.get(reference)
        if known is not None and any(version) and known[0] == version:
            return known[1]
        if found := self._found(store, reference):  # the next call asks again: a failure may pass
            with self._lock:
                self._known[reference] = (version, found)
        return found

    def _found(self, store: Store, reference: str) -> str:
        try:
            image = inspect_image(reference)
            if image is None:
                return ""
            identifier = str(image["Id"]).removeprefix("sha256:")
            if inspect_image(identifier, *store.own_args) is None:
                with locked(store):
                    copy_image(store, identifier, _name(image, reference))
        except (OSError, HyperRuntimeError) as error:
            log.warning(
                "image not copied to the overlay store; its containers are slow",
                image=reference,
                why=str(error),
            )
            return ""
        return identifier


def copy_image(store: Store, identifier: str, name: str) -> None:
    """Copy an image to this library's store, if it is not there; the caller holds the lock.

    Args:
        store: the user's store.
        identifier: the image.
        name: one of its names, or "" if it has none.

    Raises:
        EngineError: Podman cannot copy it.
    """
    if inspect_image(identifier, *store.own_args) is not None:
        return
    what = f"image {identifier} cannot be copied"
    started = time.monotonic()
    given = name or f"{_NAME}:{identifier[:12]}"
    if not name:
        ask_podman(what, "tag", identifier, given)
    try:
        source = f"containers-storage:[{store.driver}@{store.root}+{store.run_root}]{given}"
        ask_podman(what, *store.own_args, "pull", "--quiet", source, verb=None)  # maybe gigabytes
    finally:
        if not name:
            run_podman(["untag", identifier, given])
    if inspect_image(identifier, *store.own_args) is None:
        raise EngineError(f"the copy of image {identifier} has another identifier")
    log.info(
        "image copied to the overlay store", image=given, duration_s=time.monotonic() - started
    )
    _remove_orphans(store)


def remove_orphans() -> None:
    """Remove the copies whose image the user's store no longer has; never raises. Containers keep
    theirs.
    """
    store = user_store() if os.geteuid() != 0 else None
    if store is None or not store.has_own:
        return
    try:
        with locked(store):
            _remove_orphans(store)
    except (OSError, HyperRuntimeError) as error:
        log.debug("copies of images not removed", why=str(error))


@contextmanager
def locked(store: Store) -> Iterator[None]:
    """Hold the lock under which one process at a time changes the copies.

    Raises:
        EngineLateError: another process held it for too long.
    """
    allowed_s = limit_s(NAME, "copy")  # the wait is not measured: it says nothing about Podman
    lock = FileLock(os.path.join(store.run_root, "hyperruntime-copies.lock"), timeout=allowed_s)
    try:
        lock.acquire()
    except Timeout as error:
        why = f"another process has not finished its copy of an image within {allowed_s:.0f} s"
        raise EngineLateError(f"{why}; `fuser {lock.lock_file}` names it") from error
    try:
        yield
    finally:
        lock.release()


def _remove_orphans(store: Store) -> None:
    what = "images cannot be listed"
    kept = ask_podman(what, "images", "--all", "--quiet", "--no-trunc").stdout.split()
    listed = (what, *store.own_args, "images", "--quiet", "--no-trunc")
    copies = ask_podman(*listed).stdout.split()
    snapshots = ask_podman(*listed, "--filter", f"label={FACTS}").stdout.split()
    for identifier in set(copies) - set(kept) - set(snapshots):
        if inspect_image(os.fsdecode(identifier)) is not None:  # in a store that no list shows
            continue
        # `rmi` alone refuses an image with two names; it never ends a container
        for verb in ("untag", "rmi"):
            run_podman([*store.own_args, verb, os.fsdecode(identifier)], None)


def _name(image: dict[str, Any], reference: str) -> str:
    names = [str(name) for name in image.get("RepoTags") or ()]
    return reference if reference in names else next(iter(names), "")
