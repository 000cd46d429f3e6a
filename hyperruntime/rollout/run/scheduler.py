"""Run trajectories in parallel, and retry infrastructure failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import attrs

from hyperruntime.errors import RunError
from hyperruntime.logs import get_logger
from hyperruntime.rollout.run.episode import EpisodeContext, Job, run_episode
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Trajectory

log = get_logger(__name__)
_RETRY_S = 1.0


async def run_jobs(
    context: EpisodeContext,
    jobs: Iterable[Job],
    parallel: int,
    *,
    on_start: Callable[[Job], None],
    on_done: Callable[[Job, Trajectory], Awaitable[None]],
) -> None:
    """Start jobs in order; on cancellation, release every slot before returning.

    Args:
        context: the context of the run; its options limit the retries.
        jobs: the jobs.
        parallel: maximum jobs at the same time.
        on_start: called before each job.
        on_done: awaited with each trajectory; an exception ends all jobs.

    Raises:
        RunError: too many trajectories in a row failed.
    """
    waiting = iter(jobs)
    failed_in_a_row = 0

    async def work() -> None:
        nonlocal failed_in_a_row
        for job in waiting:  # all workers share one iterator
            on_start(job)
            trajectory = await _settle(context, job)
            await on_done(job, trajectory)
            failed_in_a_row = failed_in_a_row + 1 if trajectory.status == INFRASTRUCTURE else 0
            if failed_in_a_row >= context.options.give_up_after:
                error = trajectory.error or {}
                raise RunError(
                    f"the last {failed_in_a_row} trajectories could not be scored ({error.get('kind')}: "
                    f"{error.get('message')}); fix the cause, then resume with `hyperrun rollout run --resume-from`"
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


async def _settle(context: EpisodeContext, job: Job) -> Trajectory:
    """Return a trajectory, and retry infrastructure failures while attempts are left."""
    attempt = 1
    while True:
        trajectory = attrs.evolve(await run_episode(context, job), attempts=attempt)
        if trajectory.status != INFRASTRUCTURE or attempt >= context.options.attempts:
            return trajectory
        log.warning("trajectory failed", trajectory=job.id, attempt=attempt, error=trajectory.error)
        await asyncio.sleep(_RETRY_S * attempt)
        attempt += 1
