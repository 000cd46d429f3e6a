"""The batch job that a process belongs to, and what the batch system reports about it. Only Slurm
is supported.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.host.process import find_program, run_process
from hyperruntime.logs import get_logger
from hyperruntime.units import MIB

log = get_logger(__name__)

# a batch system's SIGTERM may reach a command in a container so long before its owner
SETTLE_S = 0.5
TERMINATED = 128 + signal.SIGTERM  # the exit code of such a command
# A promise to who waits: a controller that says nothing for so long is not asked further, and the
# job counts as alive.
_ASK_S = 10.0
_NO_LIMIT = 1 << 60  # cgroup v1 has a number near 2^63 in place of a word
_UNKNOWN_ID = "Invalid job id"  # squeue(1) of a job that ended some minutes ago
_GONE = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED "
    "REVOKED TIMEOUT".split()
)


@attrs.frozen(kw_only=True)
class BatchJob:
    """A job of Slurm.

    Attributes:
        slurm_job: its id.
        slurm_restarts: how often it was put back in the queue before.
        slurm_cluster: the cluster's name; "" if unknown.
    """

    slurm_job: str = attrs.field(converter=str)
    slurm_restarts: int = attrs.field(default=0, converter=int)
    slurm_cluster: str = attrs.field(default="", converter=str)

    @classmethod
    def current(cls, environ: Mapping[str, str] | None = None) -> BatchJob | None:
        """Return the job of this process, or None. Source: sbatch(1), "OUTPUT ENVIRONMENT
        VARIABLES".
        """
        known = os.environ if environ is None else environ
        job = known.get("SLURM_JOB_ID", "")
        restarts = known.get("SLURM_RESTART_COUNT", "0")
        if not (job.isascii() and job.isdigit() and restarts.isascii() and restarts.isdigit()):
            return None
        return cls(
            slurm_job=job,
            slurm_restarts=int(restarts),
            slurm_cluster=known.get("SLURM_CLUSTER_NAME", ""),
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> BatchJob | None:
        """Return the job that ``attrs.asdict`` gave, or None."""
        try:
            return cls(**{field.name: record[field.name] for field in attrs.fields(cls)})
        except (KeyError, TypeError, ValueError):
            return None

    def was_requeued(self) -> bool:
        """Return whether this process runs in a later start of the same job: the batch system ended
        the earlier one.
        """
        mine = BatchJob.current()
        same = mine is not None and (mine.slurm_job, mine.slurm_cluster) == (
            self.slurm_job,
            self.slurm_cluster,
        )
        return mine is not None and same and mine.slurm_restarts > self.slurm_restarts

    def is_over(self) -> bool:
        """Return whether Slurm reports the job as ended; False also if it cannot be asked, or is
        another cluster's.
        """
        if (
            not self.slurm_job.isdigit()
            or find_program("squeue") is None
            or not self._is_of_this_cluster()
        ):
            return False
        said = _run(
            "squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={self.slurm_job}"
        )
        if said is None:
            return False
        if _UNKNOWN_ID in said[1]:
            return True
        return bool(states := said[0].split()) and all(state in _GONE for state in states)

    def seconds_left(self) -> float | None:
        """Return the seconds until Slurm ends the job, 0 if it is being ended; None if unknown, or
        if it has no end.

        Preemption with ``GraceTime`` moves the end. Source: squeue(1), ``%e``; slurm.conf(5).
        """
        said = _run(
            "squeue",
            "--noheader",
            "--states=all",
            "--format=%T %e",
            f"--jobs={self.slurm_job}",
            SLURM_TIME_FORMAT="standard",
        )
        words = said[0].split() if said is not None else []
        if not words:
            return None
        if words[0] != "RUNNING":
            return 0.0
        try:
            return max(0.0, datetime.fromisoformat(words[-1]).timestamp() - time.time())
        except ValueError:
            return None

    def _is_of_this_cluster(self) -> bool:
        if not self.slurm_cluster:
            return True
        said = _run("scontrol", "show", "config")
        found = (
            None if said is None else re.search(r"^ClusterName\s*=\s*(\S+)", said[0], re.MULTILINE)
        )
        return found is not None and found[1] == self.slurm_cluster


def memory_limit_bytes() -> int | None:
    """Return how much memory this process and the others of its job may use together: the lowest
    limit of its cgroups, and of Slurm's job; None if there is none.

    Files on a tmpfs count. Source: cgroups(7); the kernel's cgroup-v2.rst, "Memory"; sbatch(1).
    """
    limits = [*_cgroup_limits()]
    if (megabytes := os.environ.get("SLURM_MEM_PER_NODE", "")).isdigit():
        limits.append(int(megabytes) * MIB)
    known = [limit for limit in limits if 0 < limit < _NO_LIMIT]
    return min(known, default=None)


def _cgroup_limits() -> Iterator[int]:
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            own = Path("/sys/fs/cgroup", "memory" if controllers else "", path.strip("/"))
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            for folder in (own, *own.parents):
                with suppress(OSError, ValueError):
                    yield int((folder / name).read_text())


def in_step() -> bool:
    """Return whether this process was started by ``srun``: Slurm sends the signals of a step to all
    its processes, and so to those in containers. Source: srun(1), "OUTPUT ENVIRONMENT VARIABLES".
    """
    return "SLURM_STEP_ID" in os.environ


def _run(*args: str, **environ: str) -> tuple[str, str] | None:
    """Return the output and the errors of a program of Slurm; None if it does not answer."""
    try:
        result = run_process(args, env={**os.environ, **environ}, timeout_s=_ASK_S)
    except (OSError, TimeoutError) as error:
        log.warning("batch system not asked", program=args[0], error=str(error))
        return None
    return result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")
