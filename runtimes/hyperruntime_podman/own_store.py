"""An overlay store of this library beside a store of the user that has the slow driver ``vfs``.

``vfs`` copies the whole image for each container. Podman cannot change the driver of a store
without removing all that is in it, so containers run in a second store; images stay where they are.
Why: docs/design/engines.md#podmans-own-store.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.driver import ContainerRecord
from hyperruntime.errors import EngineError, HyperRuntimeError
from hyperruntime.host.owner import LABEL
from hyperruntime.host.process import find_program
from hyperruntime.host.temporary import NETWORK_FILE_SYSTEMS, file_system
from hyperruntime.logs import get_logger
from hyperruntime_podman.args import OWN_DIRECTORY, store_args
from hyperruntime_podman.edge import ask_podman, run_podman
from hyperruntime_podman.program import program, storage_files

log = get_logger(__name__)

SLOW = "vfs"
COST = (
    "each container and each build step copies its whole image: 2 to 9 s for 200 MB, with "
    "overlay 0.3 s"
)
_OVERLAY: tuple[str, ...] = ("[storage]", 'driver = "overlay"')
_INFO = "{{.Store.GraphDriverName}}\n{{.Store.GraphRoot}}\n{{.Store.RunRoot}}"
_VARIABLES = (
    "STORAGE_DRIVER",
    "STORAGE_OPTS",
    "CONTAINERS_STORAGE_CONF",
    "XDG_DATA_HOME",
    "XDG_CONFIG_HOME",
    "HOME",
)


@attrs.frozen(kw_only=True)
class Store:
    """The user's store, as Podman describes it.

    Attributes:
        driver: its storage driver.
        root: the directory of its images and containers.
        run_root: the directory of its files of running containers.
    """

    driver: str
    root: str
    run_root: str

    @property
    def own_root(self) -> str:
        """The directory of this library's store; ``podman system reset`` removes it with the
        user's.
        """
        return os.path.join(self.root, OWN_DIRECTORY)

    @property
    def own_run_root(self) -> str:
        """The directory of the files of running containers of this library's store."""
        return os.path.join(self.run_root, OWN_DIRECTORY)

    @property
    def has_own(self) -> bool:
        """Whether this library's store exists; a trial that failed makes its directory, but no list
        of containers.
        """
        return os.path.isdir(os.path.join(self.own_root, "overlay-containers"))

    @property
    def own_args(self) -> tuple[str, ...]:
        """The global options of Podman that name this library's store."""
        return store_args(self.own_root, self.own_run_root)


def user_store() -> Store | None:
    """Return the store of this user; None if Podman cannot name it. It is asked once for one
    configuration.
    """
    try:
        return _ask_store(
            (
                program(),
                *store_facts(),
                *(os.environ.get(name) for name in ("XDG_RUNTIME_DIR", "PATH")),
            )
        )
    except (OSError, HyperRuntimeError) as error:
        log.debug("podman's store not named", why=str(error))
        return None


@functools.lru_cache(maxsize=8)
def _ask_store(_: tuple[Any, ...]) -> Store:
    result = run_podman(["info", "--format", _INFO], "probe")
    words = os.fsdecode(result.stdout).strip().split("\n")
    if result.exit_code != 0 or len(words) != len(attrs.fields(Store)):
        raise EngineError(f"`podman info` does not name its store: {result.error_text}")
    return Store(driver=words[0], root=words[1], run_root=words[2])


def own_store_args() -> tuple[str, ...]:
    """Return the global options of Podman that name this library's store, or () if there is none;
    root has none.
    """
    if os.geteuid() == 0:
        return ()
    store = user_store()
    return store.own_args if store is not None and store.has_own else ()


def containers_in(store_args: Sequence[str]) -> Iterator[ContainerRecord]:
    """Yield this library's containers in a store.

    Args:
        store_args: the global options of Podman that name the store; none for the user's.

    Raises:
        EngineError: Podman does not list them.
    """
    words = ("ps", "--all", "--filter", f"label={LABEL}", "--format", "json")
    listed = ask_podman("containers cannot be listed", *store_args, *words)
    for found in json.loads(listed.stdout or b"[]"):
        yield ContainerRecord(
            id=str(found["Names"][0]),
            image=str(found["Image"]),
            state=str(found["State"]),
            created=float(found["Created"]),
            labels=dict(found["Labels"] or {}),
        )


def store_facts() -> tuple[Any, ...]:
    """Return what decides about the store of a user and can change while the machine runs:
    variables and files.
    """
    variables = [os.environ.get(name, "") for name in _VARIABLES]
    return (*variables, *(file_version(path) for path in storage_files()))


def chosen_slow() -> str:
    """Return the variable or the file with which somebody chose the slow driver, or ""."""
    if chosen := os.environ.get("STORAGE_DRIVER"):
        return "STORAGE_DRIVER" if chosen == SLOW else ""
    for path in storage_files():
        if chosen := _driver(path):
            return str(path) if chosen == SLOW else ""
    return ""


def file_version(path: Path) -> tuple[int, int, int]:
    """Return what changes with a file; zeros if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _driver(path: Path) -> str:
    """Return the driver that a file chooses, or ""; Podman itself reports an invalid file."""
    try:
        storage = tomllib.loads(path.read_text(errors="replace")).get("storage")
    except (OSError, ValueError):
        return ""
    return str(storage.get("driver") or "") if isinstance(storage, dict) else ""


def slow_step(store: Store, why: str) -> str:
    """Return the command that makes the containers of a slow store quick.

    Args:
        store: the user's store.
        why: the reason why this library's store is not used; "" if it is used.
    """
    is_root = os.geteuid() == 0
    place = _own_file()
    if not is_root and (chosen := chosen_slow()):
        return _choose_overlay(chosen)
    if why and (kind := file_system(store.root)) in NETWORK_FILE_SYSTEMS:
        return f"name a local disk instead of {kind} as graphroot in {place}"
    # Podman warns of such a file in each process, and its helper that maps the users of an image
    # then counts as failed.
    if why and not is_root and place.exists() and not _driver(place):
        return f'write driver = "overlay" below [storage] in {place}'
    if why and not is_root and find_program("fuse-overlayfs") is None:
        return "ask root for `apt-get install fuse-overlayfs`"
    return reset_step(store)


def _choose_overlay(chosen: str) -> str:
    """Return the command that takes back a choice: a store with vfs stays as it is, and this
    library uses its own.
    """
    if chosen == "STORAGE_DRIVER":
        return "`unset STORAGE_DRIVER`"
    place = _own_file()
    if chosen == str(place):
        return f"`sed -i '/^ *driver *=/s/vfs/overlay/' {shlex.quote(chosen)}`"
    if place.exists():
        return f'write driver = "overlay" below [storage] in {place}'
    return f"`{_write(place, *_OVERLAY)}`"


def reset_step(store: Store) -> str:
    """Return the command that gives the user a new store with overlay; it removes all images and
    containers.
    """
    place = _own_file()
    lines = _OVERLAY
    if place.exists():
        return (
            f"`podman system reset --force` (it removes all images), then {lines[1]} below "
            f"{lines[0]} in {place}"
        )
    if os.geteuid() == 0:  # root's Podman needs both
        lines = (*lines, f'graphroot = "{store.root}"', f'runroot = "{store.run_root}"')
    return f"`podman system reset --force && {_write(place, *lines)}` (it removes all images)"


def _write(place: Path, *lines: str) -> str:
    """Return the command of a shell that writes a new file."""
    written = " ".join(shlex.quote(line) for line in lines)
    return (
        f"mkdir -p {shlex.quote(str(place.parent))} && printf '%s\\n' {written} "
        f">{shlex.quote(str(place))}"
    )


def _own_file() -> Path:
    """Return the file in which this user configures the store."""
    return storage_files()[0]
