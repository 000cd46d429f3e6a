"""Findings that the diagnoses of several drivers share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping

from hyperruntime.driver import Enforcement, Finding
from hyperruntime.errors import EngineUnavailableError
from hyperruntime.units import GIB, format_size


def failure_finding(subject: str, error: Exception, next_step: str = "") -> Finding:
    """Return the finding for an error; ``next_step`` is for an error that has none."""
    if isinstance(error, EngineUnavailableError):
        return Finding(subject=subject, ok=False, detail=error.why, next_step=error.next_step)
    return Finding(subject=subject, ok=False, detail=str(error), next_step=next_step)


def space_finding(subject: str, place: str, next_step: str) -> Finding:
    """Return whether a directory has 2 GiB of free space.

    Args:
        subject: the finding's subject.
        place: the directory, which need not exist yet.
        next_step: what to do if there is less space.
    """
    existing = place
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    free = shutil.disk_usage(existing).free
    ok = free >= 2 * GIB
    return Finding(
        subject=subject,
        ok=ok,
        detail=f"{place}, {format_size(free)} free",
        next_step="" if ok else next_step,
    )


def limit_findings(
    limits: Mapping[str, Enforcement], rlimit_note: str, next_step: str
) -> Iterator[Finding]:
    """Yield how each limit is enforced.

    Args:
        limits: the results of a probe.
        rlimit_note: what ``rlimit`` means for this engine, or "".
        next_step: what to do about a limit that is not enforced.
    """
    for field, how in limits.items():
        if how == "no":
            yield Finding(
                subject=f"limit {field}",
                ok=None,
                detail="cannot be enforced here",
                next_step=next_step,
            )
        else:
            note = rlimit_note if how == "rlimit" else ""
            yield Finding(subject=f"limit {field}", ok=True, detail=f"enforced by {how}{note}")
