"""The type of a launcher, which starts scripts as jobs, and what one says about its jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, Protocol

import attrs

from hyperruntime.errors import ClusterError


class JobRefusedError(ClusterError):
    """The batch system would refuse each job like this one."""


@attrs.frozen(kw_only=True)
class JobState:
    """What a launcher knows about a job.

    Attributes:
        phase: ``queued``, ``running``, ``ended``, or ``cancelled`` (by somebody, or preempted);
            ``unknown`` if it cannot be asked now.
        exit_code: of a job that has ended; None if it is not known.
        words: the last words of a job that has ended.
    """

    phase: Literal["queued", "running", "ended", "cancelled", "unknown"]
    exit_code: int | None = None
    words: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the job runs no more, and never will."""
        return self.phase in ("ended", "cancelled")


class Launcher(Protocol):
    """Starts scripts as jobs, each on a node of its own. It is used by one thread at a time.

    A package offers one by an entry point of ``hyperruntime.launchers``: a function of a
    :class:`~hyperruntime.cluster.config.ClusterConfig` and of the directory for its files.

    Attributes:
        interval_s: seconds between two questions for states, by the batch system's custom.
        walltime_s: the longest time of a job in seconds; None if it is not known.
    """

    interval_s: float
    walltime_s: float | None

    def start(self, script: str, name: str, *, excluded: Collection[str]) -> str:
        """Start a job; return its number.

        Args:
            script: for bash.
            name: of the job.
            excluded: hosts that it should not be on, where the batch system can be told so.

        Raises:
            JobRefusedError: another try would be refused too.
            ClusterError: the batch system does not answer, or has no room now.
        """
        ...

    def states(self, jobs: Collection[str]) -> Mapping[str, JobState]:
        """Return the states of jobs."""
        ...

    def cancel(self, jobs: Collection[str]) -> None:
        """End jobs; those that are over are ignored."""
        ...
