"""Decide where containers run: in the user's store, or in this library's own beside it, which is
tried first.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

import attrs

from hyperruntime.errors import EngineLateError, HyperRuntimeError
from hyperruntime_podman.args import Settings, probe_args
from hyperruntime_podman.copies import copy_image, locked
from hyperruntime_podman.edge import run_podman
from hyperruntime_podman.own_store import SLOW, Store, chosen_slow, slow_step, user_store

_IMAGE = "localhost/hyperruntime-trial:latest"


@attrs.frozen(kw_only=True)
class Place:
    """Where containers run.

    Attributes:
        settings: how to call Podman.
        slow: why containers run in a slow store, or "".
        step: the command that makes them quick, or "".
        is_late: whether the trial did not end in time; it then says nothing about the store.
    """

    settings: Settings
    slow: str = ""
    step: str = ""
    is_late: bool = False


def choose_store(storage: str, settings: Settings, rootfs: str, userland: Sequence[str]) -> Place:
    """Return where containers run.

    Args:
        storage: the driver of the user's store.
        settings: how to call Podman with the user's store.
        rootfs: a root file system of links to the userland.
        userland: the host's directories to mount.
    """
    if storage != SLOW:
        return Place(settings=settings)
    if (store := user_store()) is None:
        return Place(
            settings=settings,
            slow="`podman info` does not name the store",
            step="see `hyperrun doctor`",
        )
    why = _forbidden()
    own = attrs.evolve(settings, root=store.own_root, run_root=store.own_run_root)
    if not why:
        try:
            why = _try_own(store, own, rootfs, userland)
        except EngineLateError as error:
            return Place(
                settings=settings,
                slow=str(error),
                step="try again on a less busy machine",
                is_late=True,
            )
        except (OSError, HyperRuntimeError) as error:
            why = f"an overlay store does not work: {error}"
    if not why:
        return Place(settings=own)
    if not store.has_own:
        shutil.rmtree(store.own_root, ignore_errors=True)
    return Place(settings=settings, slow=why, step=slow_step(store, why))


def _forbidden() -> str:
    # root's containers get addresses from a list in the run directory, one list for all
    if os.geteuid() == 0:
        return "root has one store"
    chosen = chosen_slow()
    return f"{chosen} chooses vfs" if chosen else ""


def _try_own(store: Store, own: Settings, rootfs: str, userland: Sequence[str]) -> str:
    """Do once what each start does: copy an image and run it. Return why that fails, or ""."""
    archive = Path(f"{rootfs}.tar")
    with tarfile.open(archive, "w") as tar:
        tar.add(rootfs, arcname=".")
    args = probe_args(own, rootfs, userland, "echo works >/written && cat /written", limited=False)
    at = args.index("--rootfs")
    with locked(store):
        _forget(store)
        try:
            made = run_podman(["podman", "import", "--quiet", str(archive), _IMAGE], "probe")
            if made.exit_code != 0:
                return f"no image can be made for the trial: {made.error_text}"
            identifier = made.stdout.decode().split()[-1].removeprefix("sha256:")
            copy_image(store, identifier, _IMAGE)
            result = run_podman([*args[:at], "--pull=never", identifier, *args[at + 2 :]], "probe")
        finally:
            _forget(store)
    return (
        ""
        if result.stdout == b"works\n"
        else f"an overlay store does not work: {result.error_text}"
    )


def _forget(store: Store) -> None:
    for args in ((), store.own_args):
        run_podman(["podman", *args, "rmi", _IMAGE], "probe")
