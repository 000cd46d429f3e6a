"""A runtime that all users in a process share, for frameworks that open and close nothing
themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyperruntime.concurrency.blocking import STARTS, blocking
from hyperruntime.concurrency.per_process import LockedDict, PerProcess
from hyperruntime.container import Container
from hyperruntime.pool_values.profiles import parse_profile
from hyperruntime.runtime import Runtime, open_runtime

_open: PerProcess[LockedDict[str | None, Runtime]] = PerProcess(LockedDict)


def shared_runtime(name: str | None = None) -> Runtime:
    """Return the open runtime of this process for an engine; it ends with the process, with all its
    containers.

    Args:
        name: as for :func:`~hyperruntime.runtime.open_runtime`.

    Raises:
        HyperRuntimeError: as :func:`~hyperruntime.runtime.open_runtime`.
    """
    runtimes = _open.get()
    with runtimes.lock:
        known = runtimes.get(name)
        return known if known is not None else runtimes.setdefault(name, open_runtime(name))


def start_container(image: str, fields: Mapping[str, Any], runtime: str | None = None) -> Container:
    """Return a new container of the shared runtime, from values of a configuration.

    Args:
        image: a reference, or the name of a recipe such as ``base``.
        fields: fields of :class:`~hyperruntime.spec.ContainerSpec`, and the table ``limits``.
        runtime: the engine, as for :func:`shared_runtime`.

    Raises:
        HyperRuntimeError: a field is invalid, or the container cannot be started; the message says
            why.
    """
    engine = shared_runtime(runtime)
    given = {**fields, "image": ensure_image(engine, image)}
    return engine.container(parse_profile("container", given).spec)


async def astart_container(
    image: str, fields: Mapping[str, Any], runtime: str | None = None
) -> Container:
    """Do what :func:`start_container` does without blocking the event loop; if cancelled, nothing
    is left.
    """
    return await blocking(
        STARTS, lambda: start_container(image, fields, runtime), undo=Container.close
    )


def ensure_image(runtime: Runtime, image: str) -> str:
    """Return the reference of an image; that of a recipe, such as ``base``, is built if it is
    missing.

    Args:
        runtime: where the image is.
        image: a reference, or the name of a recipe.
    """
    return image if {"/", ":"} & set(image) else runtime.images.ensure(image)
