"""``hyperrun runtimes``, and the state of every installed driver; a broken driver does not hide the
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import attrs
import click

from hyperruntime import registry
from hyperruntime.cli.command import Command, example
from hyperruntime.cli.tables import json_option, print_json, print_table
from hyperruntime.driver import Driver, EngineInfo, Finding
from hyperruntime.errors import DriverNotFoundError, EngineUnavailableError, HyperRuntimeError
from hyperruntime.gpu.devices import load_devices
from hyperruntime.gpu.nvidia import PROGRAM
from hyperruntime.host.process import find_program
from hyperruntime.runtime import AUTO

_COLUMNS = (
    "runtime",
    "usable",
    "version",
    "mode",
    "oci runtime",
    "storage",
    "networks",
    "limits",
    "gpus",
)


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
    """Return the names of the drivers in the order in which ``auto`` tries them, or only the named
    one.

    Args:
        only: a driver's name; None or ``auto`` means all.

    Raises:
        DriverNotFoundError: no installed driver has this name.
    """
    names = registry.auto_order()
    if only is None or only == AUTO:
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
    """Return the views of all drivers, in the order of ``auto``; probed in parallel, since each
    starts a container.
    """
    names = engine_names()
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as threads:
        return list(threads.map(view_engine, names))


def usable_engines() -> list[str]:
    """Return the names of the usable drivers, in the order of ``auto``.

    Raises:
        EngineUnavailableError: no driver is usable.
    """
    names = [view.name for view in view_engines() if view.usable]
    if not names:
        raise EngineUnavailableError(AUTO, "no runtime works here", "see `hyperrun doctor`")
    return names


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


@click.command(cls=Command, epilog=example("hyperrun runtimes", "hyperrun runtimes --json"))
@json_option
def runtimes(as_json: bool) -> None:
    """List the container engines and what each can do on this machine, in the order that auto tries
    them.
    """
    views = view_engines()
    if as_json:
        print_json([engine_to_json(view) for view in views])
        return
    print_table(_COLUMNS, [_row(view) for view in views])
    for view in views:
        if not view.usable:
            step = f"; {view.next_step}" if view.next_step else ""
            click.echo(f"{view.name}: {view.why}{step}")


def _row(view: EngineView) -> tuple[str, ...]:
    if view.info is None:
        return (view.name, "no", *[""] * (len(_COLUMNS) - 2))
    info = view.info
    return (
        view.name,
        "yes",
        info.version,
        "rootless" if info.rootless else "root",
        info.oci_runtime or "default",
        info.storage,
        ", ".join(info.networks),
        _limits_text(info),
        _gpu_text(info),
    )


def _gpu_text(info: EngineInfo) -> str:
    """Return ``yes``, ``no`` (the engine cannot give GPUs), or ``none here`` (this machine has
    none).
    """
    if not info.gpus:
        return "no"
    described = any(device.kind.endswith("/gpu") for device in load_devices().devices.values())
    return "yes" if described or find_program(PROGRAM) is not None else "none here"


def _limits_text(info: EngineInfo) -> str:
    """Return how limits are enforced: one word such as ``cgroup``, or one for each limit if they
    differ.
    """
    if len(set(info.limits.values())) == 1:
        return next(iter(info.limits.values()))
    return ", ".join(f"{name.removesuffix('_bytes')} {how}" for name, how in info.limits.items())


def engine_to_json(view: EngineView) -> dict[str, Any]:
    """Return a view as JSON values."""
    facts = {} if view.info is None else attrs.asdict(view.info, recurse=False)
    facts.pop("engine", None)  # the name of the driver is there already
    if "limits" in facts:
        facts["limits"] = dict(facts["limits"])
        facts["refuses"] = sorted(facts["refuses"])
    return {
        "runtime": view.name,
        "package": view.source,
        "usable": view.usable,
        "why_not": view.why,
        "next_step": view.next_step,
        **facts,
    }
