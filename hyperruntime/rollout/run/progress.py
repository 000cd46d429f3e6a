"""The progress of a rollout run: which trajectories are done; records trajectories, groups and
journals.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping

import attrs

from hyperruntime.rollout.environment import Item
from hyperruntime.rollout.run.episode import Job
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.store import RunStore, recordable, slim
from hyperruntime.rollout.run.summary import RolloutSummary, Tally
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Group, Trajectory
from hyperruntime.rollout.run_files.run_dir import to_line
from hyperruntime.rollout.training_data.samples import make_group

Keep = Callable[[Trajectory], Awaitable[None] | None]


@attrs.frozen(kw_only=True)
class RolloutEvent:
    """The start or the end of a trajectory.

    Attributes:
        kind: ``start`` or ``done``.
        id: id of the trajectory.
        done: number of finished trajectories, those before a resume included.
        wanted: number of trajectories of the whole run.
        mean_reward: mean of all rewards so far, or None.
        trajectory: the finished trajectory, or None for ``start``.
    """

    kind: str
    id: str
    done: int
    wanted: int
    mean_reward: float | None = None
    trajectory: Trajectory | None = None


class RunProgress:
    """Which trajectories of a run are done; records each that ends.

    Attributes:
        wanted: number of trajectories of the whole run.
    """

    def __init__(
        self,
        options: RolloutOptions,
        items: list[Item],
        store: RunStore | None,
        on_event: Callable[[RolloutEvent], None],
        keep: Keep,
        *,
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        """Count the recorded trajectories, and write the groups that have all their trajectories.

        Args:
            options: options of the run.
            items: items of the run.
            store: files of the run; None writes no files.
            on_event: called at the start and at the end of every trajectory.
            keep: called with every trajectory that ends, and awaited if it is asynchronous.
            left_out: why items were left out, by name.
        """
        self._left_out = dict(left_out or {})
        self._options = options
        self._items = items
        self._store = store
        self._on_event = on_event
        self._keep = keep
        self._journals = None if store is None else store.journals(options)
        self._tally = Tally()
        self._groups: dict[str, dict[int, Trajectory]] = {item.id: {} for item in items}
        self.wanted = len(items) * options.group_size
        for trajectory in store.recorded() if store is not None else ():
            self._take_back(trajectory)
        if store is not None:
            store.write_groups(filter(None, (self._group(item.id) for item in items)))

    def jobs(self) -> Iterator[Job]:
        """Yield the trajectories that are not done, item by item."""
        for item in self._items:
            for index in range(self._options.group_size):
                if index not in self._groups[item.id]:
                    yield Job(item=item, index=index)

    def is_done(self, item: Item) -> bool:
        """Return whether no trajectory of an item is left to be made."""
        return len(self._groups[item.id]) == self._options.group_size

    def forget_journals(self) -> None:
        """Remove the journals of recorded trajectories, except those with an infrastructure
        failure.

        These may be retried when the run is resumed.
        """
        if self._journals is not None:
            failed = (
                Job(item=item, index=index).id
                for item in self._items
                for index, trajectory in self._groups[item.id].items()
                if trajectory.status == INFRASTRUCTURE
            )
            self._journals.keep_only({*(job.id for job in self.jobs()), *failed})

    async def on_start(self, job: Job) -> Job:
        """Return a trajectory that is to run, with its journal."""
        self._on_event(self._event("start", job))
        if self._journals is None:
            return job
        return attrs.evolve(job, journal=await self._journals.open(job.id))

    async def on_done(self, job: Job, trajectory: Trajectory) -> None:
        """Record a trajectory, and its group if all of its trajectories are done."""
        if self._store is not None:
            trajectory, line = recordable(trajectory)
            await self._store.trajectories.add(line)
            if self._journals is not None and trajectory.status != INFRASTRUCTURE:
                await self._journals.remove(job.id)
        recorded = slim(trajectory)
        self._tally.now.append(recorded)
        self._groups[job.item.id][job.index] = recorded
        if inspect.isawaitable(kept := self._keep(trajectory)):
            await kept
        group = self._group(job.item.id)
        if group is not None and self._store is not None:
            await self._store.groups.add(to_line(group))
        self._on_event(self._event("done", job, trajectory))

    def summary(self) -> RolloutSummary:
        """Return the summary of the whole run."""
        complete = sum(
            group.complete for item in self._items if (group := self._group(item.id)) is not None
        )
        run_dir = "" if self._store is None else str(self._store.run_dir)
        summary = self._tally.summary(run_dir, self.wanted, complete)
        return attrs.evolve(summary, left_out=self._left_out)

    def _take_back(self, trajectory: Trajectory) -> None:
        """Count a trajectory that is recorded already, unless it is to be retried."""
        group = self._groups.get(trajectory.item_id)
        if group is None or trajectory.index >= self._options.group_size:
            return
        if self._options.retry_failed and trajectory.status == INFRASTRUCTURE:
            return
        self._tally.before.append(trajectory)
        group[trajectory.index] = trajectory

    def _group(self, item_id: str) -> Group | None:
        """Return an item's group, or None if some of its trajectories are not done."""
        found = self._groups[item_id]
        size = self._options.group_size
        return make_group(item_id, size, list(found.values())) if len(found) == size else None

    def _event(self, kind: str, job: Job, trajectory: Trajectory | None = None) -> RolloutEvent:
        return RolloutEvent(
            kind=kind,
            id=job.id,
            done=len(self._tally.before) + len(self._tally.now),
            wanted=self.wanted,
            mean_reward=self._tally.mean_reward,
            trajectory=trajectory,
        )
