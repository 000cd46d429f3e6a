"""Why a pool gives no slot, in one sentence each."""

from __future__ import annotations

from hyperruntime.errors import PoolClosedError, PoolStartError, SlotTimeoutError
from hyperruntime.pool.values.status import PoolStatus


def too_late(status: PoolStatus, timeout_s: float, cause: Exception | None) -> SlotTimeoutError:
    """Return the error of a deadline; ``cause`` is what keeps containers from starting, if anything."""
    why = f"; containers do not start: {cause}" if cause is not None else ""
    error = SlotTimeoutError(
        f"no slot of pool {status.name!r} became free within {timeout_s:g} s ({status.leased} leased, "
        f"{status.waiting} more wait, at most {status.max_containers} containers at once){why}"
    )
    error.__cause__ = cause
    return error


def cannot_start(pool: str, cause: Exception | None) -> PoolStartError:
    """Return the error of a pool in which no container starts."""
    error = PoolStartError(f"no container of pool {pool!r} can be started: {cause}")
    error.__cause__ = cause
    return error


def closed(pool: str) -> PoolClosedError:
    """Return the error of a pool that was stopped."""
    return PoolClosedError(f"pool {pool!r} was stopped")
