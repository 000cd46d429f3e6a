"""The errors of a pool that cannot lease a slot."""

from __future__ import annotations

from hyperruntime.errors import PoolStartError, SlotTimeoutError
from hyperruntime.pool.values.status import PoolStatus


def too_late(status: PoolStatus, timeout_s: float, cause: Exception | None) -> SlotTimeoutError:
    """Return the error of an acquire that reached its deadline.

    Args:
        status: the pool's status at the deadline.
        timeout_s: how long the acquire waited.
        cause: why containers do not start; None if they do.
    """
    why = f"; containers do not start: {cause}" if cause is not None else ""
    error = SlotTimeoutError(
        f"no slot of pool {status.name!r} became free within {timeout_s:g} s ({status.leased} leased, "
        f"{status.waiting} other acquires waiting, at most {status.max_containers} containers in use){why}"
    )
    error.__cause__ = cause
    return error


def cannot_start(pool: str, cause: Exception | None) -> PoolStartError:
    """Return the error of a pool whose containers do not start.

    Args:
        pool: the profile's name.
        cause: the last failure to start.
    """
    error = PoolStartError(f"no container of pool {pool!r} can be started: {cause}")
    error.__cause__ = cause
    return error
