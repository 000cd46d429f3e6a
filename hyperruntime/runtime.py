"""The runtime: an opened engine that starts, lists and removes containers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import attrs

from hyperruntime import registry
from hyperruntime.concurrency.blocking import STARTS, blocking
from hyperruntime.concurrency.closing import AsyncClosing
from hyperruntime.concurrency.exhaustion import too_many_files
from hyperruntime.concurrency.parallel_map import parallel_map
from hyperruntime.container import Container, Group
from hyperruntime.driver import BuildsInContainers, ContainerRecord, Driver, DropsLayers, EngineInfo
from hyperruntime.errors import (
    DriverLoadError,
    EngineError,
    EngineUnavailableError,
    HyperRuntimeError,
    ImageNotFoundError,
    ProcessLimitError,
    PruneError,
    SpecError,
)
from hyperruntime.exec.exchange import Exchanges
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.owner import LABEL, Owner, OwnerIdentity, remove_owned, stale_directories
from hyperruntime.host.process import wait_until
from hyperruntime.images.store import ImageStore
from hyperruntime.layers.snapshots.snapshot import Snapshot, Snapshots, snapshots_of
from hyperruntime.logs import get_logger
from hyperruntime.services.group import ServiceContainer, hosts_of, start_services
from hyperruntime.spec import ContainerSpec

log = get_logger(__name__)

C = TypeVar("C", bound=Container)

AUTO = "auto"
ENVIRONMENT_VARIABLE = "HYPERRUNTIME_RUNTIME"
_REMOVE_AGAIN_S = 10.0  # for the directory of a dead owner
_START_TRIES_S = 5.0
_CLOSED_AT_ONCE = 16
_CLOSED = "the runtime is closed; open another one"


@attrs.frozen(kw_only=True)
class OwnedContainer:
    """A container of this library, with its owner.

    Attributes:
        record: the engine's record of the container.
        owner: the owner that its labels name.
        owner_state: ``alive``, ``dead`` or ``elsewhere`` (see :meth:`OwnerIdentity.state`).
    """

    record: ContainerRecord
    owner: OwnerIdentity
    owner_state: str


class Runtime(AsyncClosing):
    """An opened engine; a context manager. Safe to use from many threads.

    Attributes:
        name: the driver's name.

    Example:
        >>> image = runtime.images.ensure("base")
        >>> with runtime.container(spec) as container:
        ...     container.exec(["true"]).exit_code
        0
    """

    def __init__(self, driver: Driver, *, run_id: str = "") -> None:
        """Make this process the owner of all later containers; starts only the owner's guard.

        Args:
            driver: the engine's adapter.
            run_id: id of the run, for the labels of every container; "" means none.
        """
        self.name = driver.name
        self._driver = driver
        self._run_id = run_id
        identity = OwnerIdentity.current()
        self._owner = Owner(driver.cleanup_args(f"{LABEL}={identity.token}"), identity)
        try:
            driver.open(self._owner.private_dir)
        except BaseException:
            self._owner.close()
            raise
        images = driver.images
        if isinstance(images, BuildsInContainers):
            images.use(self.container, driver.probe)
        self._images = ImageStore(images, lambda: driver.probe().refuses, self.container)
        self._exchanges = Exchanges(self._owner.private_dir)
        self._changed = threading.Condition()  # for the three below
        self._open: set[Container] = set()
        self._starting: set[int] = set()  # threads
        self._closed = False

    def __repr__(self) -> str:
        """Return the engine, the run and the state."""
        run = f", run {self._run_id!r}" if self._run_id else ""
        state = "closed" if self._closed else f"open, {len(self._open)} containers"
        return f"<Runtime {self.name}{run}: {state}>"

    @property
    def images(self) -> ImageStore:
        """The engine's images.

        Raises:
            EngineError: the runtime is closed.
        """
        self._check_open()
        return self._images

    @property
    def snapshots(self) -> Snapshots:
        """The named snapshots of this user on this engine.

        Raises:
            EngineError: the runtime is closed.
            UnsupportedOptionError: snapshots have no names on this engine.
        """
        self._check_open()
        return snapshots_of(self._driver)

    def drop(self, snapshot: Snapshot) -> bool:
        """Remove the files of a snapshot without a name now, not when this runtime is closed.

        Nothing is removed while a container or a later snapshot needs them; the call may be
        repeated. Engines that keep snapshots as images remove nothing.

        Returns:
            Whether it has removed them. False for those that are gone already, that have a name, or
            that another runtime keeps.

        Example:
            >>> with runtime.container(spec) as container:
            ...     _ = container.exec(["touch", "/prepared"])
            ...     snapshot = container.snapshot()
            >>> runtime.drop(snapshot)
            True
        """
        driver = self._driver
        return isinstance(driver, DropsLayers) and driver.drop(snapshot.layers)

    @property
    def info(self) -> EngineInfo:
        """Capabilities of the engine on this machine.

        Raises:
            EngineUnavailableError: the engine cannot run a container.
        """
        return self._driver.probe()

    @property
    def late_removals(self) -> int:
        """The number of its containers that the engine did not remove in time."""
        return self._owner.removals.late

    @property
    def open_containers(self) -> tuple[str, ...]:
        """The names of its containers that are not closed; the engine is not asked."""
        with self._changed:
            return tuple(sorted(container.name for container in self._open))

    @property
    def left_containers(self) -> tuple[str, ...]:
        """The names of the containers among them that are not removed yet.

        They are removed in the background, after :meth:`close` by the owner's guard; see
        docs/engines.md.
        """
        return self._owner.removals.pending

    def container(
        self,
        spec: ContainerSpec,
        *,
        labels: Mapping[str, str] | None = None,
        base: Snapshot | str | None = None,
    ) -> Container:
        """Start a container; the caller closes it or uses it in a ``with`` statement, else
        :meth:`close` closes it.

        Args:
            spec: describes the container.
            labels: labels in addition to the spec's.
            base: a snapshot of the same image, or the name of one, whose files it gets.

        Raises:
            ImageNotFoundError: the image is not on this machine, and ``spec.pull`` is ``never``.
            ImagePullError: the image cannot be pulled, as ``spec.pull`` asks.
            UserNotFoundError: the spec's user does not exist in the image.
            UnsupportedOptionError: a field cannot be honoured on this machine.
            EngineUnavailableError: the engine cannot run a container.
            StorageError: no file descriptor or no space is left.
            EngineError: the runtime is closed, or this process is a forked child of the process
                that opened it.
            ServiceError: a service of it ended, or was not ready in time.
            TypeError: ``spec`` is not a ContainerSpec.
            SpecError: the source of a mount does not exist, or ``base`` is gone or has another
                image.
        """
        if not self._owner.is_here:
            raise EngineError(
                "this runtime belongs to the parent of this process; open another one after the "
                "fork"
            )
        given: object = spec  # callers without a type checker pass names of images
        if not isinstance(given, ContainerSpec):
            raise TypeError(f"container() takes a ContainerSpec, not {type(given).__name__}")
        for mount in spec.mounts:
            if not os.path.exists(mount.source):
                raise SpecError("Mount.source", mount.source, "a path that exists on this machine")
        if isinstance(base, str):
            base = self.snapshots.find(base)
        if base is not None:
            base.check_fits(self.name, spec.image)
        return self._own(spec, labels or {}, base)

    def _own(
        self, spec: ContainerSpec, labels: Mapping[str, str], base: Snapshot | None
    ) -> Container:
        """Start a container, with its services, that :meth:`close` closes."""
        run = {f"{LABEL}.run": self._run_id} if self._run_id else {}
        all_labels = {**labels, **run}
        with self._starting_here(), _naming_full_tables():
            hosts = None
            if spec.services:
                hosts = hosts_of(spec, self._driver, self._owner.private_dir)
            group = None if hosts is None else Group(hosts)
            make = partial(self._make, Container, spec, all_labels, base, group)
            container = self._start_pulled(spec, make)
            if hosts is not None:
                try:
                    start = partial(self._start_service, all_labels)
                    start_services(container, self._driver, hosts, start)
                except BaseException:
                    container.close()
                    raise
            with self._changed:
                if not self._closed:
                    self._open.add(container)
                    container.closed.listen(lambda: self._forget(container))
                    return container
            container.close()
            raise EngineError(_CLOSED)

    def _start_service(
        self, labels: Mapping[str, str], spec: ContainerSpec, group: Group
    ) -> ServiceContainer:
        make = partial(self._make, ServiceContainer, spec, labels, None, group)
        return self._start_pulled(spec, make)

    def _make(
        self,
        kind: type[C],
        spec: ContainerSpec,
        labels: Mapping[str, str],
        base: Snapshot | None,
        group: Group | None,
    ) -> C:
        another = partial(self.container, labels=labels)
        return kind(self._driver, self._owner, self._exchanges, spec, labels, base, another, group)

    def _start_pulled(self, spec: ContainerSpec, make: Callable[[], C]) -> C:
        """Start a container, and pull its image as the spec says."""
        if spec.pull == "always":
            self.images.pull(spec.image)
        try:
            return self._start(make)
        except ImageNotFoundError:
            if spec.pull != "missing":
                raise
        self.images.pull(spec.image)
        return self._start(make)

    async def acontainer(
        self,
        spec: ContainerSpec,
        *,
        labels: Mapping[str, str] | None = None,
        base: Snapshot | str | None = None,
    ) -> Container:
        """Do what :meth:`container` does without blocking the event loop; at most 16 start at once,
        others wait.

        If the caller is cancelled, the container is closed as soon as it has started. Use it with
        ``async with await runtime.acontainer(spec) as container``.
        """
        return await blocking(
            STARTS, lambda: self.container(spec, labels=labels, base=base), undo=Container.close
        )

    def containers(self) -> tuple[OwnedContainer, ...]:
        """Return this user's containers of this library, of all owners.

        Raises:
            EngineError: the runtime is closed, or the engine does not list them.
        """
        self._check_open()
        found = []
        for record in self._driver.containers():
            owner = OwnerIdentity.from_labels(record.labels)
            if owner is not None:
                found.append(OwnedContainer(record=record, owner=owner, owner_state=owner.state()))
        return tuple(found)

    def prune(self, *more_roots: Path) -> tuple[str, ...]:
        """Remove the containers and directories of dead owners on this machine; return their names.

        Args:
            more_roots: where directories may be, besides the usual places for temporary files.

        Raises:
            PruneError: some could not be removed; the others were.
            EngineError: the runtime is closed.
        """
        removed = []
        reasons = []
        for owned in self.containers():
            if owned.owner_state != "dead":
                continue
            try:
                self._driver.remove_container(owned.record.id)
            except HyperRuntimeError as error:
                reasons.append(str(error))
                continue
            removed.append(owned.record.id)
            log.info("container pruned", container=owned.record.id, owner_pid=owned.owner.pid)
        for directory in stale_directories(*more_roots):
            if _remove_directory(directory):
                removed.append(str(directory))
            else:
                reasons.append(f"{str(directory)!r} could not be removed")
        if reasons:
            raise PruneError(tuple(removed), tuple(reasons))
        return tuple(removed)

    def close(self) -> None:
        """Close all its containers, many at once, and stop the driver's services and the guard; may
        be called again.

        Later calls raise an error that says so. Does nothing in a forked child, because the parent
        owns the runtime. Containers that the engine does not remove in time raise nothing: see
        :attr:`left_containers`.
        """
        if not self._owner.is_here:
            return
        with self._changed:
            self._closed = True
            patience_s = limit_s(self.name, "start")
            self._changed.wait_for(lambda: not self._starting - {threading.get_ident()}, patience_s)
            containers = tuple(self._open)
        try:
            errors = [
                error
                for error in parallel_map(_CLOSED_AT_ONCE, _close, containers)
                if error is not None
            ]
            if left := self._owner.removals.settle():
                log.warning("containers left to the guard", driver=self.name, containers=left)
        finally:
            self._driver.close()
            self._owner.close()
        if errors:
            raise errors[0]

    @contextmanager
    def _starting_here(self) -> Iterator[None]:
        """Let :meth:`close` wait for the start of a container in this thread."""
        with self._changed:
            self._check_open()
            self._starting.add(threading.get_ident())
        try:
            yield
        finally:
            with self._changed:
                self._starting.discard(threading.get_ident())
                self._changed.notify_all()

    def _start(self, make: Callable[[], C]) -> C:
        """Start a container; retry for a few seconds while no process is left for it."""
        deadline = time.monotonic() + _START_TRIES_S
        pause_s = 0.2
        while True:
            try:
                return self._try_start(make)
            except ProcessLimitError:
                if self._closed or time.monotonic() + pause_s > deadline:
                    raise
                log.info("no process left for a container; starting it again", driver=self.name)
                time.sleep(pause_s)
                pause_s *= 2

    def _try_start(self, make: Callable[[], C]) -> C:
        known = self._driver.probe()
        try:
            return make()
        except EngineUnavailableError:
            if self._driver.probe() is known:
                raise
        log.info("the probe of the engine was out of date; starting once more", driver=self.name)
        return make()

    def _forget(self, container: Container) -> None:
        with self._changed:
            self._open.discard(container)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError(_CLOSED)


def open_runtime(name: str | None = None, *, run_id: str = "") -> Runtime:
    """Open an engine by name.

    Args:
        name: a driver's name, or ``"auto"``: the first working one of podman, apptainer, docker and
            the other drivers. None means the value of the environment variable
            ``HYPERRUNTIME_RUNTIME``, else ``auto``.
        run_id: id of the run, for the labels of every container; "" means none.

    Raises:
        DriverNotFoundError: no installed driver has this name.
        DriverLoadError: the driver is installed but cannot be loaded.
        EngineUnavailableError: the engine, or every engine, cannot run a container here.
    """
    wanted = name or os.environ.get(ENVIRONMENT_VARIABLE) or AUTO
    if wanted != AUTO:
        return Runtime(_usable_driver(wanted), run_id=run_id)
    reasons: list[str] = []
    for candidate in registry.auto_order():
        try:
            return Runtime(_usable_driver(candidate), run_id=run_id)
        except (DriverLoadError, EngineUnavailableError) as error:
            why = error.why if isinstance(error, EngineUnavailableError) else str(error)
            reasons.append(f"\n  {candidate}: {' '.join(why.split())}")
    if not reasons:
        raise EngineUnavailableError(AUTO, "no driver is installed", "see `hyperrun doctor`")
    raise EngineUnavailableError(
        AUTO, "no engine works here", f"run `hyperrun doctor` for details:{''.join(reasons)}"
    )


@contextmanager
def _naming_full_tables() -> Iterator[None]:
    """Turn the error of a process that has no file descriptor left into one that says what to
    do.
    """
    try:
        yield
    except OSError as error:
        raise too_many_files(error) or error from None


def _close(container: Container) -> HyperRuntimeError | None:
    """Close a container; return the error, so that the others are closed too."""
    try:
        container.close()
    except HyperRuntimeError as error:
        return error
    return None


def _usable_driver(name: str) -> Driver:
    driver: Driver = registry.load_driver(name)
    with registry.blaming(registry.RUNTIMES, name):
        driver.probe()
    return driver


def _remove_directory(path: Path) -> bool:
    """Remove a dead owner's directory; return whether it is gone.

    The owner's guard may be removing it at the same moment, and a process that outlived the owner
    may still write into it, so that one attempt can leave a file behind.
    """

    def is_gone() -> bool:
        remove_owned(path)
        return not path.exists()

    return wait_until(is_gone, _REMOVE_AGAIN_S, 0.05)
