"""Layers of snapshots: what a container changed, kept after its end until its runtime closes."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Collection, Mapping, Sequence

from hyperruntime.driver import ContainerRecord
from hyperruntime.errors import FULL, StorageError, write_error
from hyperruntime.host.engine_program import ALL_IDS, ONE_ID
from hyperruntime.host.inherited import english_environment
from hyperruntime.host.process import ProcessResult, python_args, run_process
from hyperruntime.layers.one_file import mounting
from hyperruntime.layers.records import KEPT, Record, Records, discard, users_of
from hyperruntime.layers.scratch import remove_tree
from hyperruntime.layers.snapshots import merging
from hyperruntime.logs import get_logger

log = get_logger(__name__)

MOST_LAYERS = 120  # as many have room in the options of a mount
MERGED_ABOVE = 60  # starts over 100 layers take as long as over one
_MORE_LAYERS = 10  # until another try to merge them
# Whether files may belong to this user's subordinate ids; None: there are no user namespaces here.
Users = bool | None


class KeptLayers:
    """The layers that one driver keeps for snapshots. Safe to use from many threads.

    Many layers over each other are merged into one in the background, so that a chain of snapshots
    has no end. Earlier snapshots keep theirs.
    """

    def __init__(self, records: Records) -> None:
        """Keep nothing yet.

        Args:
            records: those of the engine; a kept layer has one, which leads to it after a kill.
        """
        self._records = records
        self._lock = threading.Lock()  # for all below
        self._kept: dict[str, Record] = {}  # by the layer
        self._merged: dict[tuple[str, ...], str] = {}
        self._merging: dict[str, threading.Thread] = {}  # by the highest layer
        self._unfinished: Record | None = None  # of the merge that runs
        self._next_try = 0  # with as many layers, after a failure
        self._is_closed = False
        self._one_merge = threading.Lock()  # held while one runs

    def freeze(
        self, record: Record, changes: str, lower: Sequence[str], *, running: bool, users: Users
    ) -> tuple[str, ...]:
        """Keep the directory with the changes of a container; return the layers of a snapshot.

        Args:
            record: the container's record.
            changes: the directory; an overlay still finds it after it was renamed.
            lower: the layers below it, with the tree of its image as the last one; none where the
                directory has all files.
            running: whether the container goes on, so that the directory is copied.
            users: whether files of it may belong to this user's subordinate ids.

        Raises:
            StorageError: it cannot be kept.
        """
        lower = self._shortened(tuple(lower))
        if len(lower) > MOST_LAYERS:
            self._begin_merge(record, lower, users=users, is_last_try=True)
            self._wait(lower)
            lower = self._shortened(lower)
        if len(lower) > MOST_LAYERS:
            raise StorageError(
                f"{MOST_LAYERS} snapshots lie over each other, and could not be merged; free space "
                f"in {os.path.dirname(record.files)}, or start a container from an earlier one"
            )
        kept = self._new(record, lower)
        target = f"{kept.files}/u"
        try:
            os.mkdir(kept.files, 0o700)
            if running:
                copy_files(changes, target, users=users)
            else:
                os.rename(changes, target)
        except OSError as error:
            discard(kept.files, self._records.path_of(kept.name))
            why = f"{kept.files} cannot be written: {error}; free space"
            raise write_error(why, error) from error
        with self._lock:
            self._kept[target] = kept
        self._begin_merge(record, lower, users=users, is_last_try=False)
        return (target, *lower)

    def drop(self, layers: tuple[str, ...]) -> bool:
        """Remove the highest layer; see :class:`~hyperruntime.driver.DropsLayers`."""
        top = layers[0] if layers else ""
        with self._lock:
            own = {one.name: one.source for one in self._kept.values()}
            kept = self._kept.get(top)
            # a merge may read it
            if kept is None or self._merging or any(top in below for below in own.values()):
                return False
        if next(users_of(kept.name, but=own), None) is not None:
            return False
        with self._lock:
            if self._kept.pop(top, None) is None:  # another thread was faster
                return False
        discard(kept.files, self._records.path_of(kept.name))
        return True

    def close(self) -> None:
        """Remove all layers."""
        with self._lock:
            self._is_closed = True
            threads = tuple(self._merging.values())
            unfinished = self._unfinished
            kept = tuple(self._kept.values())
            self._kept = {}
        if unfinished is not None:
            self._records.end(unfinished)
        for thread in threads:
            thread.join()
        if kept:
            remove_tree(*(one.files for one in kept))
        for one in kept:
            discard(one.files, self._records.path_of(one.name))

    def _new(self, record: Record, below: Sequence[str]) -> Record:
        """Write the record of a new directory for a layer, which needs those ``below``."""
        place = os.path.dirname(record.files)
        source = ":".join(below)
        return new_directory(self._records, place, record.image, source, record.labels)

    def _shortened(self, layers: tuple[str, ...]) -> tuple[str, ...]:
        """Return layers with the same files, of which as many as possible are merged."""
        with self._lock:
            for stack, one in self._merged.items():
                if stack[0] in layers:
                    at = layers.index(stack[0])
                    if layers[at : at + len(stack)] == stack:
                        layers = (*layers[:at], one, *layers[at + len(stack) :])
        return layers

    def _begin_merge(
        self, record: Record, layers: tuple[str, ...], *, users: Users, is_last_try: bool
    ) -> None:
        """Merge the layers over an image in the background, if they are many; after a failure not
        at once again.
        """
        with self._lock:
            is_due = is_last_try or len(layers) > max(MERGED_ABOVE, self._next_try)
            if not is_due or layers[0] in self._merging or self._is_closed:
                return
            thread = threading.Thread(target=self._merge, args=(record, layers, users), daemon=True)
            self._merging[layers[0]] = thread
            thread.start()

    def _wait(self, layers: tuple[str, ...]) -> None:
        """Wait until no merge of some of these layers runs."""
        with self._lock:
            running = [thread for top, thread in self._merging.items() if top in layers]
        for thread in running:
            thread.join()

    def _merge(self, record: Record, layers: tuple[str, ...], users: Users) -> None:
        try:
            with self._one_merge:
                self._try_merge(record, layers, users)
            self._next_try = 0
        except OSError as error:
            self._next_try = len(layers) + _MORE_LAYERS
            if not self._is_closed:
                log.warning(
                    "layers of snapshots not merged", count=len(layers) - 1, reason=str(error)
                )
        finally:
            with self._lock:
                del self._merging[layers[0]]

    def _try_merge(self, record: Record, layers: tuple[str, ...], users: Users) -> None:
        if self._is_closed:
            raise InterruptedError
        self._unfinished = kept = self._new(record, layers[-1:])
        target = f"{kept.files}/u"
        try:
            os.mkdir(kept.files, 0o700)
            stack = layers[:-1]
            count = merge_layers(stack, layers[-1:], target, users=users, some=True)
            with self._lock:
                if self._is_closed:  # nobody else removes it
                    raise InterruptedError
                self._kept[target] = kept
                self._merged[stack[:count]] = target
        except BaseException:
            discard(kept.files, self._records.path_of(kept.name))
            raise
        finally:
            self._unfinished = None


def new_directory(
    records: Records, place: str, image: str, source: str, labels: Mapping[str, str]
) -> Record:
    """Write the record of a new directory for files of snapshots, which the caller makes; without
    its owner they are removed.

    Args:
        records: those of the engine.
        place: the directory above it.
        image: the image reference of the files.
        source: the directories that they come from, joined by ``:``.
        labels: labels of the owner.

    Raises:
        StorageError: it cannot be written.
    """
    name = f"{KEPT}-{secrets.token_hex(4)}"
    return records.write(name, image, source, labels, os.getpid(), f"{place}/{name}")


def copy_files(source: str, target: str, *, users: Users) -> None:
    """Copy files as they are; blocks are shared if the file system can.

    Args:
        source: the directory, or its files as ``source/.``.
        target: the new one, or an existing one for files.
        users: see :data:`Users`.

    Raises:
        OSError: the copy failed.
    """
    trees = {source.removesuffix("/.")}
    args = inside(users, "cp", "-a", "--reflink=auto", source, target, trees=trees)
    _check(run_process(args, cwd="/", env=english_environment()))


def sync_files(path: str) -> None:
    """Write all files of a file system to its disk, also those that this user cannot open.

    Raises:
        OSError: they cannot be written.
    """
    _check(run_process(["sync", "-f", path], cwd="/"))


def merge_layers(
    stack: Sequence[str], lower: Sequence[str], target: str, *, users: Users, some: bool = False
) -> int:
    """Copy layers into one, which does not exist yet; return how many.

    Args:
        stack: the layers, the highest first.
        lower: what the new one lies over; without any, it is a tree of its own.
        target: the new one.
        users: whether files may belong to this user's subordinate ids.
        some: whether to leave out lower ones that have more than all others together, so that a
            long chain does not copy them each time.

    Raises:
        OSError: it cannot be written.
    """
    verb = "merge-some" if some else "merge"
    words = program(verb, target, *stack, "--", *lower)
    result = run_process(inside(users, *words, trees={*stack[-1:], *lower[-1:]}), cwd="/")
    _check(result)
    return int(result.stdout)


def program(*words: str) -> tuple[str, ...]:
    """Return the argv of the program that merges and compares layers."""
    return python_args("-I", "-S", merging.__file__, *words)


def inside(users: Users, *args: str, trees: Collection[str]) -> list[str]:
    """Return the argv that runs a program as root of a user namespace, with this user's ids.

    Args:
        users: see :data:`Users`.
        *args: the program.
        trees: the lowest layers that it reads, which may be images of one file.
    """
    if users is None:
        return [*args]
    return ["unshare", *(ALL_IDS if users else ONE_ID), "--mount", *mounting(trees, args)]


def _check(result: ProcessResult) -> None:
    if result.exit_code != 0:
        error = OSError(text := result.error_text)
        error.errno = next((one for one in FULL if os.strerror(one) in text), None)
        raise error


def forget(layer: str, engine: str) -> None:
    """Remove what is left of a kept layer that was moved elsewhere."""
    kept = os.path.dirname(layer)
    discard(kept, Records(engine).path_of(os.path.basename(kept)))


def without_kept(found: Sequence[ContainerRecord]) -> tuple[ContainerRecord, ...]:
    """Return the containers among the records, and the kept layers whose owner is dead."""
    return tuple(one for one in found if one.state == "dead" or not one.id.startswith(KEPT))
