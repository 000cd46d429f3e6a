"""A container's methods for snapshots: keep its files, put them back, start another with them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, Self

from hyperruntime.driver import Driver, Freezes, LiveContainer
from hyperruntime.errors import ContainerStateError, UnsupportedOptionError
from hyperruntime.layers.snapshots.snapshot import Snapshot, new_snapshot, snapshots_of
from hyperruntime.spec import ContainerSpec


class CountsProcesses(Protocol):
    """The sessions of a container, as far as snapshots need them."""

    latest: object  # another one whenever a command begins or ends

    def count_processes(self) -> int:
        """Return how many processes of commands live."""
        ...

    def check_open(self) -> None:
        """Check that the container can be used."""
        ...


class ContainerSnapshots:
    """The part of a container that deals with snapshots."""

    spec: ContainerSpec
    name: str
    _driver: Driver
    _live: LiveContainer
    _start_another: Callable[..., Any] | None
    _changing: threading.Lock  # held while its files are frozen or exchanged
    # a snapshot that has the same files if no command ran since, and the latest command then
    _same: tuple[Snapshot | None, object]

    @property
    def _processes(self) -> CountsProcesses:
        raise NotImplementedError

    @property
    def _put_repositories(self) -> tuple[str, ...]:
        """Where its repositories from the host are."""
        raise NotImplementedError

    def _hand_on(self, child: Self) -> None:
        """Give a fork what may have changed since this container began."""

    def _end_own(self) -> None:
        """End processes of ours that no command needs now."""

    def _restart(self, same: Snapshot) -> None:
        """Start the container again over the layers of a snapshot; the lock is held."""
        raise NotImplementedError

    def close(self) -> None:
        """End the container."""
        raise NotImplementedError

    def _check_alone(self) -> None:
        if self.spec.services:
            why = "its services have files of their own; start a new container instead"
            raise UnsupportedOptionError(self._driver.name, "services", why)

    def _freezing(self) -> Freezes:
        self._check_alone()
        live = self._live
        if not isinstance(live, Freezes) or not self._driver.probe().snapshots:
            why = "it has no snapshots; copy what you need with `get` and `put`"
            raise UnsupportedOptionError(self._driver.name, "snapshot", why)
        return live

    def snapshot(self, name: str | None = None, *, allow_running: bool = False) -> Snapshot:
        """Keep its files as they are now, for other containers and for :meth:`rollback`.

        Only files are kept; what lies in mounts, ``/dev`` and memory is not part of it. Without an
        engine, the container goes on over the snapshot, with a new main process: shells and
        forwarded ports end, and a command that begins meanwhile fails. Podman and Docker copy the
        files and leave the container as it is.

        Args:
            name: a name by which later runtimes and other processes of this user find it, until
                ``runtime.snapshots.remove(name)``. None: it ends with the runtime.
            allow_running: whether commands may run meanwhile. They go on, and files that they
                write may be half written in the snapshot; the files are copied then.

        Raises:
            ContainerStateError: processes run in it, or it was closed.
            SpecError: a snapshot has the name, or it is not usable.
            UnsupportedOptionError: the engine has no snapshots.
            StorageError: the files cannot be kept.

        Example:
            >>> with runtime.container(spec) as container:
            ...     _ = container.exec(["touch", "/prepared"])
            ...     snapshot = container.snapshot()
            >>> with runtime.container(spec, base=snapshot) as other:
            ...     other.exec(["test", "-e", "/prepared"]).exit_code
            0
        """
        live = self._freezing()
        if name is not None:
            names = snapshots_of(self._driver)
            names.check_new(name)
            return names.keep(self.snapshot(allow_running=allow_running), name)
        with self._changing:
            self._processes.check_open()
            latest = self._processes.latest
            same, since = self._same
            # an image is committed while a command begins: its process may be there now
            if same is not None and since is latest and not same.is_image:
                return same
            if not allow_running:
                self._end_own()
            running = self._processes.count_processes()
            if same is not None and since is latest and not running:
                return same
            if running and not allow_running:
                raise ContainerStateError(
                    f"{running} processes run in container {self.name}, and a snapshot has only "
                    "files; end them, or allow them with allow_running=True"
                )
            put = self._put_repositories
            layers = live.freeze(running=bool(running), repositories=put)
            taken = new_snapshot(self._driver.name, self.spec.image, layers, put)
            if taken.is_image and not running:
                self._same = (taken, latest)
            elif not running:
                self._restart(taken)
            return taken

    def end_as_layers(self) -> tuple[str, ...]:
        """End it with all its processes, and return the layers over its image with its files, the
        highest first; they end with the runtime.

        Raises the errors of :meth:`snapshot`.
        """
        with self._changing:
            self._processes.check_open()
            self._end_own()
            layers = self._freezing().freeze(running=False)
        self.close()
        return layers

    def rollback(self, snapshot: Snapshot) -> None:
        """Put its files back as they are in a snapshot; all its processes end.

        Args:
            snapshot: one of the same engine and image.

        Raises:
            SpecError: the snapshot is of another engine or image.
            ContainerStateError: it was closed.
        """
        self._check_alone()
        snapshot.check_fits(self._driver.name, self.spec.image)
        with self._changing:
            self._processes.check_open()
            self._restart(snapshot)

    def fork(self) -> Self:
        """Return a new container with the same spec and the same files; the caller closes it.

        Raises the errors of :meth:`snapshot` and :meth:`Runtime.container`.
        """
        snapshot = self.snapshot()
        assert self._start_another is not None
        child: Self = self._start_another(self.spec, base=snapshot)
        self._hand_on(child)
        return child
