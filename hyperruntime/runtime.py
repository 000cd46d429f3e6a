"""What a user opens: a driver plus everything generic."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from types import TracebackType

import attrs

from hyperruntime import registry
from hyperruntime.container import Container
from hyperruntime.driver import ContainerRecord, Driver, EngineInfo
from hyperruntime.errors import DriverLoadError, EngineError, EngineUnavailableError, HyperRuntimeError, PruneError
from hyperruntime.host.owner import LABEL, Owner, OwnerIdentity, stale_directories
from hyperruntime.images.store import ImageStore
from hyperruntime.logs import get_logger

log = get_logger(__name__)

AUTO = "auto"
ENVIRONMENT_VARIABLE = "HYPERRUNTIME_RUNTIME"


@attrs.frozen(kw_only=True)
class OwnedContainer:
    """A container of this library and whose it is.

    Attributes:
        record: as the engine lists it.
        owner: whom its labels name.
        owner_state: ``alive``, ``dead`` or ``elsewhere`` (on another machine, or in another pid namespace).
    """

    record: ContainerRecord
    owner: OwnerIdentity
    owner_state: str


class Runtime:
    """An engine, opened; a context manager. Safe to use from many threads.

    Attributes:
        name: the driver's name.
        images: the engine's images.
    """

    def __init__(self, driver: Driver, *, run_id: str = "") -> None:
        """Own what will be started; nothing is started yet but the guard of this owner.

        Args:
            driver: the engine's adapter.
            run_id: put in the labels of every container.
        """
        self.name = driver.name
        self._driver, self._run_id = driver, run_id
        identity = OwnerIdentity.current()
        self._owner = Owner(driver.cleanup_args(f"{LABEL}={identity.token}"), identity)
        try:
            driver.open(self._owner.private_dir)
        except BaseException:
            self._owner.close()
            raise
        self.images = ImageStore(driver.images)

    @property
    def info(self) -> EngineInfo:
        """What the engine can do on this machine.

        Raises:
            EngineUnavailableError: it cannot run a container.
        """
        return self._driver.probe()

    def container(self, spec: object, *, labels: Mapping[str, str] | None = None) -> Container:
        """Start a container; close it, or use it in a ``with`` statement.

        Raises:
            ImageNotFoundError: the image is not here.
            UnsupportedOptionError: a field cannot be honoured on this machine.
            EngineUnavailableError: the engine cannot run a container.
            EngineError: this is a forked child of the process that opened the runtime.
        """
        from hyperruntime.spec import ContainerSpec

        if not self._owner.is_here:
            raise EngineError("this runtime belongs to the parent of this process; open another one after the fork")

        if not isinstance(spec, ContainerSpec):
            raise TypeError(f"container() takes a ContainerSpec, not {type(spec).__name__}")
        run = {f"{LABEL}.run": self._run_id} if self._run_id else {}
        given = {**(labels or {}), **run}
        known = self._driver.probe()
        try:
            return Container(self._driver, self._owner, spec, given)
        except EngineUnavailableError:
            if self._driver.probe() is known:
                raise
        log.info("what is known of the engine was out of date; starting once more", driver=self.name)
        return Container(self._driver, self._owner, spec, given)

    def containers(self) -> tuple[OwnedContainer, ...]:
        """Return this user's containers of this library, of every owner."""
        found = []
        for record in self._driver.containers():
            owner = OwnerIdentity.from_labels(record.labels)
            if owner is not None:
                found.append(OwnedContainer(record=record, owner=owner, owner_state=owner.state()))
        return tuple(found)

    def prune(self) -> tuple[str, ...]:
        """Remove what dead owners of this machine left, and only that; return its names.

        Raises:
            PruneError: something could not be removed; the rest was.
        """
        removed, reasons = [], []
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
        for directory in stale_directories():
            shutil.rmtree(directory, ignore_errors=True)
            if directory.exists():
                reasons.append(f"{str(directory)!r} could not be removed")
            else:
                removed.append(str(directory))
        if reasons:
            raise PruneError(tuple(removed), tuple(reasons))
        return tuple(removed)

    def close(self) -> None:
        """End the driver's services and dismiss the guard; containers are closed by whoever opened them.

        Does nothing in a forked child: what the runtime started is the parent's.
        """
        if self._owner.is_here:
            self._driver.close()
            self._owner.close()

    def __enter__(self) -> Runtime:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def open_runtime(name: str | None = None, *, run_id: str = "") -> Runtime:
    """Open an engine by name.

    Args:
        name: a driver's name, or ``"auto"``: the first that works of podman, apptainer, docker and plugins.
            None takes ``HYPERRUNTIME_RUNTIME`` from the environment, else ``auto``.
        run_id: put in the labels of every container, for people who look at them.

    Raises:
        DriverNotFoundError: no installed driver has this name.
        DriverLoadError: it is installed and cannot be loaded.
        EngineUnavailableError: the engine, or every engine, cannot run a container here.
    """
    wanted = name or os.environ.get(ENVIRONMENT_VARIABLE) or AUTO
    if wanted != AUTO:
        return Runtime(_usable_driver(wanted), run_id=run_id)
    reasons = []
    for candidate in registry.auto_order():
        try:
            return Runtime(_usable_driver(candidate), run_id=run_id)
        except (DriverLoadError, EngineUnavailableError) as error:
            reasons.append(str(error))
    raise EngineUnavailableError(AUTO, "; ".join(reasons) or "no driver is installed", "see `hyperrun doctor`")


def _usable_driver(name: str) -> Driver:
    driver: Driver = registry.load_driver(name)
    with registry.blaming(registry.RUNTIMES, name):
        driver.probe()
    return driver
