"""A runtime that all users in a process share, for frameworks that open and close nothing themselves."""

from __future__ import annotations

import os
import threading

from hyperruntime.runtime import Runtime, open_runtime

_lock = threading.Lock()
_open: dict[tuple[int, str | None], Runtime] = {}


def shared_runtime(name: str | None = None) -> Runtime:
    """Return the open runtime of this process for an engine; it ends with the process, with all its containers.

    Args:
        name: as for :func:`~hyperruntime.runtime.open_runtime`.

    Raises:
        HyperRuntimeError: as :func:`~hyperruntime.runtime.open_runtime`.
    """
    key = (os.getpid(), name)  # a forked child needs its own
    with _lock:
        known = _open.get(key)
        return known if known is not None else _open.setdefault(key, open_runtime(name))
