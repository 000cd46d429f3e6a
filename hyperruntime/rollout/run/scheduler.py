"""Run many trajectories, some at once, each tried again while infrastructure fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import attrs

from hyperruntime.errors import RunError
from hyperruntime.logs import get_logger
from hyperruntime.rollout.environment import Item
from hyperruntime.rollout.run.episode import EpisodeContext, failure, run_episode, trajectory_id
from hyperruntime.rollout.run_files.record import SCORED, Trajectory

if TYPE_CHECKING:
    from hyperruntime.spec import ContainerSpec

log = get_logger(__name__)
_RETRY_S = 1.0


@attrs.frozen(kw_only=True)
class Job:
    """One trajectory to run.

    Attributes:
        item: at what.
        index: number in its group.
    """

    item: Item
    index: int

    @property
    def id(self) -> str:
        """Return the trajectory's id."""
        return trajectory_id(self.item, self.index)


@attrs.frozen(kw_only=True)
class RetryRule:
    """How much at once, and how often again.

    Attributes:
        parallel: trajectories at once.
        attempts: of one trajectory while infrastructure fails.
        give_up_after: so many trajectories in a row that infrastructure kept from being scored end the run.
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
    """Run jobs in their order, ``pace.parallel`` at once; cancelled, it ends when every slot is given back.

    Args:
        make: returns the setting of a job. jobs: which. pace: how many at once. on_start: called before each.
        on_done: awaited with each trajectory; what it raises ends all.

    Raises:
        RunError: too many trajectories in a row could not be scored.
    """
    waiting = iter(jobs)
    specs = _Specs()
    row = _Row(pace.give_up_after)

    async def work() -> None:
        for job in waiting:  # of all workers: each takes the next
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
    """Return a trajectory, tried again while infrastructure fails and attempts are left."""
    attempt = 1
    while True:
        trajectory = attrs.evolve(await _attempt(setting, job, specs), attempts=attempt)
        if trajectory.status == SCORED or attempt >= attempts:
            return trajectory
        log.warning("trajectory failed", trajectory=job.id, attempt=attempt, error=trajectory.error)
        await asyncio.sleep(_RETRY_S * attempt)
        attempt += 1


async def _attempt(setting: EpisodeContext, job: Job, specs: _Specs) -> Trajectory:
    try:
        spec = await specs.of(setting, job.item)
    except Exception as error:  # noqa: BLE001 - an environment of anybody's; recorded, and tried again
        return Trajectory(
            id=job.id,
            item_id=job.item.id,
            index=job.index,
            environment=setting.name,
            model=setting.model.name,
            status="infrastructure",
            error=failure(error, "spec"),
        )
    return await run_episode(setting, job.item, job.index, spec)


class _Specs:
    """The container of each item, asked for once; one that could not be had is asked for again."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Task[ContainerSpec]] = {}

    async def of(self, setting: EpisodeContext, item: Item) -> ContainerSpec:
        task = self._asked.get(item.id)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._asked[item.id] = asyncio.create_task(asyncio.to_thread(setting.spec_of, item))
        return await asyncio.shield(task)


class _Row:
    """Counts trajectories in a row that could not be scored."""

    def __init__(self, limit: int) -> None:
        self._limit, self._count = limit, 0

    def count(self, trajectory: Trajectory) -> None:
        self._count = 0 if trajectory.status == SCORED else self._count + 1
        if self._count >= self._limit:
            error = trajectory.error or {}
            raise RunError(
                f"the last {self._count} trajectories could not be scored ({error.get('kind')}: "
                f"{error.get('message')}); mend that, then go on with `hyperrun rollout run --resume-from`"
            )


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group: the others are of workers that ended with it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
