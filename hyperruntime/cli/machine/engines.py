"""Probe every installed driver; a broken driver does not hide the others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import attrs

from hyperruntime import registry
from hyperruntime.driver import Driver, EngineInfo, Finding
from hyperruntime.errors import DriverNotFoundError, EngineUnavailableError, HyperRuntimeError


@attrs.frozen(kw_only=True)
class EngineView:
    """The state of one driver on this machine.

    Attributes:
        name: name of its entry point.
        source: the package that publishes it.
        info: what it can do; None if it cannot be used.
        why: why it cannot be used, or "".
        next_step: what the user can do about that, or "".
    """

    name: str
    source: str
    info: EngineInfo | None = None
    why: str = ""
    next_step: str = ""

    @property
    def usable(self) -> bool:
        """Whether the driver can run containers here."""
        return self.info is not None


def engine_names(only: str | None = None) -> list[str]:
    """Return the names of the drivers in the order in which ``auto`` tries them, or only the named one.

    Args:
        only: a driver's name; None or ``auto`` means all.

    Raises:
        DriverNotFoundError: no installed driver has this name.
    """
    names = registry.auto_order()
    if only is None or only == "auto":
        return names
    if only not in names:
        raise DriverNotFoundError(only, names)
    return [only]


def view_engine(name: str) -> EngineView:
    """Return what a driver can do here, or why it cannot be used."""
    source = registry.plugins(registry.RUNTIMES)[name].source
    try:
        with _loaded(name) as driver:
            return EngineView(name=name, source=source, info=driver.probe())
    except EngineUnavailableError as error:
        return EngineView(name=name, source=source, why=error.why, next_step=error.next_step)
    except HyperRuntimeError as error:
        return EngineView(name=name, source=source, why=str(error))


def view_engines() -> list[EngineView]:
    """Return the views of all drivers, in the order of ``auto``; probed in parallel, since each starts a container."""
    names = engine_names()
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as threads:
        return list(threads.map(view_engine, names))


def diagnose_engine(name: str) -> list[Finding]:
    """Return a driver's findings; an error of the driver is a finding."""
    try:
        with _loaded(name) as driver:
            return list(driver.diagnose())
    except HyperRuntimeError as error:
        return [Finding(subject="driver", ok=False, detail=str(error))]


@contextmanager
def _loaded(name: str) -> Iterator[Driver]:
    driver: Any = registry.load_driver(name)
    with registry.blaming(registry.RUNTIMES, name):
        try:
            yield driver
        finally:
            driver.close()
