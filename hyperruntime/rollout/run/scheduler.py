"""Run trajectories in parallel, and retry infrastructure failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from hyperruntime.errors import RunError
from hyperruntime.logs import get_logger
from hyperruntime.rollout.run.episode import Job
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Trajectory
from hyperruntime.runs.retry import Streak
from hyperruntime.runs.workers import Workers

log = get_logger(__name__)
_RETRY_S = 1.0


Episodes = Workers[Job, Trajectory]


async def run_jobs(
    episodes: Episodes,
    options: RolloutOptions,
    jobs: Iterable[Job],
    parallel: int,
    *,
    on_start: Callable[[Job], Awaitable[Job]],
    on_done: Callable[[Job, Trajectory], Awaitable[None]],
) -> None:
    """Start jobs in order; on cancellation, release every slot before returning.

    Args:
        episodes: make the trajectories.
        options: they limit the retries.
        jobs: the jobs.
        parallel: maximum jobs at the same time.
        on_start: called before each job; returns it with its journal.
        on_done: awaited with each trajectory; an exception ends all jobs.

    Raises:
        RunError: the infrastructure failed too often in a row.
    """
    waiting = iter(jobs)
    streak = Streak(options.failures_allowed)

    async def work() -> None:
        for job in waiting:  # all workers share one iterator
            begun = await on_start(job)
            attempt = partial(episodes.run, begun)
            trajectory = await until_done(attempt, options.attempts, streak)
            await on_done(job, trajectory)
            if streak.is_over and trajectory.status == INFRASTRUCTURE:
                error = trajectory.error or {}
                raise RunError(
                    f"the infrastructure failed {streak.failures} times in a row "
                    f"({error.get('kind')}: {error.get('message')}); fix the cause, then resume "
                    "with `hyperrun rollout run --resume-from`"
                )

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(parallel):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]  # the other workers were cancelled because of it
        raise first from None


async def until_done(
    attempt: Callable[[], Awaitable[Trajectory]], attempts: int, streak: Streak | None = None
) -> Trajectory:
    """Return a trajectory, and retry infrastructure failures while attempts are left.

    Args:
        attempt: makes one attempt.
        attempts: maximum number of attempts.
        streak: counts the failures of all trajectories of a run; when it is over, nothing is
            retried.
    """
    streak = streak or Streak(attempts)
    made = 1
    while True:
        trajectory = await attempt()
        failed = trajectory.status == INFRASTRUCTURE
        streak.count(failed=failed)
        if not failed or streak.is_over or made >= attempts:
            return trajectory
        log.warning(
            "trajectory failed", trajectory=trajectory.id, attempt=made, error=trajectory.error
        )
        await asyncio.sleep(_RETRY_S * made)
        made += 1
