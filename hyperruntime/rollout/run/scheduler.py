"""Run trajectories in parallel, and retry infrastructure failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import attrs

from hyperruntime.errors import RunError
from hyperruntime.logs import get_logger
from hyperruntime.rollout.environment import Item
from hyperruntime.rollout.run.episode import EpisodeContext, failure, new_trajectory, run_episode, trajectory_id
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Trajectory

if TYPE_CHECKING:
    from hyperruntime.spec import ContainerSpec

log = get_logger(__name__)
_RETRY_S = 1.0


@attrs.frozen(kw_only=True)
class Job:
    """One trajectory to run.

    Attributes:
        item: the item.
        index: index of the trajectory in its group, from 0.
    """

    item: Item
    index: int

    @property
    def id(self) -> str:
        """Return the trajectory's id."""
        return trajectory_id(self.item, self.index)


@attrs.frozen(kw_only=True)
class RetryRule:
    """Limits of parallel work and retries.

    Attributes:
        parallel: maximum trajectories at the same time.
        attempts: maximum attempts of a trajectory whose infrastructure fails.
        give_up_after: the run ends after this many infrastructure failures in a row.
    """

    parallel: int = 8
    attempts: int = 3
    give_up_after: int = 20


async def run_jobs(
    make: Callable[[Job], EpisodeContext],
    jobs: Iterable[Job],
    pace: RetryRule,
    *,
    on_start: Callable[[Job], None] = lambda _: None,
    on_done: Callable[[Job, Trajectory], Awaitable[None]],
) -> None:
    """Start jobs in order, ``pace.parallel`` at a time; on cancellation, release every slot before returning.

    Args:
        make: returns the context of a job.
        jobs: the jobs.
        pace: limits of parallel work and retries.
        on_start: called before each job.
        on_done: awaited with each trajectory; an exception ends all jobs.

    Raises:
        RunError: too many trajectories in a row failed.
    """
    waiting = iter(jobs)
    specs = _Specs()
    row = _Row(pace.give_up_after)

    async def work() -> None:
        for job in waiting:  # all workers share one iterator
            on_start(job)
            trajectory = await _settle(make(job), job, specs, pace.attempts)
            await on_done(job, trajectory)
            row.count(trajectory)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(pace.parallel):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise _first(errors) from None


async def _settle(setting: EpisodeContext, job: Job, specs: _Specs, attempts: int) -> Trajectory:
    """Return a trajectory, and retry infrastructure failures while attempts are left."""
    attempt = 1
    while True:
        trajectory = attrs.evolve(await _attempt(setting, job, specs), attempts=attempt)
        if trajectory.status != INFRASTRUCTURE or attempt >= attempts:
            return trajectory
        log.warning("trajectory failed", trajectory=job.id, attempt=attempt, error=trajectory.error)
        await asyncio.sleep(_RETRY_S * attempt)
        attempt += 1


async def _attempt(setting: EpisodeContext, job: Job, specs: _Specs) -> Trajectory:
    try:
        spec = await specs.of(setting, job.item)
    except Exception as error:  # noqa: BLE001 - an environment may raise anything; recorded and retried
        return attrs.evolve(new_trajectory(setting, job.item, job.index), error=failure(error, "spec"))
    return await run_episode(setting, job.item, job.index, spec)


class _Specs:
    """Caches each item's container spec; failures are not cached."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Task[ContainerSpec]] = {}

    async def of(self, setting: EpisodeContext, item: Item) -> ContainerSpec:
        task = self._asked.get(item.id)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._asked[item.id] = asyncio.create_task(asyncio.to_thread(setting.spec_of, item))
        return await asyncio.shield(task)


class _Row:
    """Counts infrastructure failures in a row."""

    def __init__(self, limit: int) -> None:
        self._limit, self._count = limit, 0

    def count(self, trajectory: Trajectory) -> None:
        self._count = self._count + 1 if trajectory.status == INFRASTRUCTURE else 0
        if self._count >= self._limit:
            error = trajectory.error or {}
            raise RunError(
                f"the last {self._count} trajectories could not be scored ({error.get('kind')}: "
                f"{error.get('message')}); fix the cause, then resume with `hyperrun rollout run --resume-from`"
            )


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group; the other workers were cancelled because of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
