"""A rollout run: ``group_size`` trajectories of each item, recorded one by one, so that the run can resume.

A trajectory is done when it has a line in ``trajectories.jsonl``. A run can be killed at any time: recorded
trajectories are not lost and not counted twice.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from hyperruntime.errors import SpecError, name_hint
from hyperruntime.rollout.agent.agent import Agent, Toolset, slot_tools
from hyperruntime.rollout.agent.model import Model
from hyperruntime.rollout.environment import Item, UnscoredEnvironment
from hyperruntime.rollout.loading import load_agent, load_environment
from hyperruntime.rollout.models import open_model
from hyperruntime.rollout.models.server import check_server
from hyperruntime.rollout.run.episode import EpisodeContext, Job, Specs
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.scheduler import run_jobs
from hyperruntime.rollout.run.store import RunStore, recordable, slim
from hyperruntime.rollout.run.summary import RolloutSummary, Tally
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Group, Trajectory
from hyperruntime.rollout.run_files.run_dir import RUN, owned, to_line
from hyperruntime.rollout.training_data.samples import make_group
from hyperruntime.storage.atomic import make_directory

if TYPE_CHECKING:
    from hyperruntime.rollout.run.slot_pools import PooledSlots
    from hyperruntime.runtime import Runtime

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


@attrs.define(kw_only=True)
class Parts:
    """Objects that the caller passes to a run; fields that are None are created from the options.

    Attributes:
        environment: the environment; without a ``verify``, the trajectories get no reward.
        model: the model; the run does not close it.
        slots: leases slots and containers for verification; the run does not close it.
        agent: the agent.
        toolset: the tools of the agents, instead of slot tools.
    """

    environment: UnscoredEnvironment | None = None
    model: Model | None = None
    slots: PooledSlots | None = None
    agent: Agent | None = None
    toolset: Toolset | None = None


@attrs.define(kw_only=True)
class CompleteParts(Parts):
    """Parts of which only ``slots`` may be None."""

    environment: UnscoredEnvironment
    model: Model
    agent: Agent
    toolset: Toolset


async def run_rollouts(
    runtime: Runtime,
    options: RolloutOptions,
    *,
    run_dir: Path | None = None,
    parts: Parts | None = None,
    on_event: Callable[[RolloutEvent], None] = lambda _: None,
    keep: Keep = lambda _: None,
) -> RolloutSummary:
    """Run all trajectories that are not recorded yet, and return the summary of the whole run.

    On cancellation it releases every slot before it returns; recorded trajectories stay.

    Args:
        runtime: where containers run.
        options: rollout options.
        run_dir: directory of the run; an existing run is resumed. None writes no files.
        parts: objects of the caller; None creates all from the options.
        on_event: called at the start and at the end of every trajectory.
        keep: called with every trajectory that ends in this call, and awaited if it is asynchronous.

    Raises:
        RunLockedError, LeaseLostError: another live process owns the directory, or took it over.
        RunError: the infrastructure failed too often in a row, or the directory has another run.
        SpecError: an option is invalid.
        ModelError: the model cannot be opened, or its server is down; no container was started.
    """
    parts, resumed = parts or Parts(), run_dir is not None and (run_dir / RUN).is_file()
    async with AsyncExitStack() as stack:
        made = await complete_parts(stack, options, parts)  # validate before creating the directory
        if not resumed:
            await check_model(options, parts)
        if hasattr(made.environment, "verify"):
            options = options.settled()  # a run without rewards sends a seed only if the options have one
        items = await asyncio.to_thread(_checked_items, made.environment, options)
        store = None
        if run_dir is not None:
            stack.enter_context(owned(make_directory(run_dir)))
            store = RunStore(run_dir)
            stack.push_async_callback(store.close)
            options = store.begin(options)
        context = await _open(stack, runtime, options, made)
        if store is not None:
            store.keep_options(options)  # only after everything is open: a failed start writes no run.json
        run = _Run(options, items, store, on_event, keep)
        if resumed and next(run.jobs(), None) is not None:
            await check_model(options, parts)
        parallel = min(options.parallel, run.wanted, context.slots.capacity)
        await run_jobs(context, run.jobs(), parallel, on_start=run.on_start, on_done=run.on_done)
        return run.summary()


def _checked_items(environment: UnscoredEnvironment, options: RolloutOptions) -> list[Item]:
    items = chosen_items(environment, options)
    if (check := getattr(environment, "check_items", None)) is not None:
        check(items, options.base_spec())
    return items


async def complete_parts(stack: AsyncExitStack, options: RolloutOptions, parts: Parts) -> CompleteParts:
    """Return the parts with environment, agent, toolset and model created from the options where they are None.

    Args:
        stack: closes the model that is opened here.
        options: rollout options.
        parts: objects of the caller.

    Raises:
        SpecError, DriverLoadError, ModelError: one of them cannot be created.
    """
    environment, model = parts.environment, parts.model
    if environment is None:
        environment = await asyncio.to_thread(load_environment, options.environment, options.environment_options)
    agent = parts.agent if parts.agent is not None else await asyncio.to_thread(load_agent, options.agent)
    toolset = parts.toolset or slot_tools(options.tools)
    if model is None:
        if options.model is None:
            raise SpecError("model", None, "ModelOptions; or pass your own Model")
        model = open_model(options.model)
        stack.push_async_callback(model.close)
    return CompleteParts(environment=environment, agent=agent, toolset=toolset, model=model, slots=parts.slots)


async def check_model(options: RolloutOptions, parts: Parts) -> None:
    """Check that the server of a run's model answers; a model of the caller is not checked.

    Raises:
        ModelError: it does not.
    """
    if parts.model is None and options.model is not None:
        await check_server(options.model)


async def _open(
    stack: AsyncExitStack, runtime: Runtime, options: RolloutOptions, parts: CompleteParts
) -> EpisodeContext:
    """Create the context of the run; the stack closes the slots that are created here."""
    environment, slots = parts.environment, parts.slots
    if slots is None:
        from hyperruntime.rollout.run.slot_pools import PooledSlots

        slots = await stack.enter_async_context(PooledSlots(runtime, options, environment))
    base = options.base_spec()
    return EpisodeContext(
        options=options,
        environment=environment,
        model=parts.model,
        slots=slots,
        specs=Specs(lambda item: environment.spec(item, base, runtime.images)),
        toolset=parts.toolset,
        agent=parts.agent,
    )


def chosen_items(environment: UnscoredEnvironment, options: RolloutOptions) -> list[Item]:
    """Return the items of a run.

    Args:
        environment: the environment.
        options: ``items`` and ``max_items`` select the items.

    Raises:
        SpecError: there are no items, two items have the same id, or a selected item does not exist.
    """
    items = {}
    for item in environment.items():
        if item.id in items:
            raise SpecError("items", item.id, "an id that is unique in the environment")
        items[item.id] = item
    for name in options.items:
        if name not in items:
            raise SpecError("items", name, f"an item of {options.environment!r}; {name_hint(name, items)}")
    chosen = [items[name] for name in options.items] or list(items.values())
    if not chosen:
        raise SpecError("environment", options.environment, "an environment with items; these options select none")
    return chosen[: options.max_items]


class _Run:
    """The state of a run.

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
    ) -> None:
        self._options, self._items, self._store = options, items, store
        self._on_event, self._keep = on_event, keep
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

    def on_start(self, job: Job) -> None:
        self._on_event(self._event("start", job))

    async def on_done(self, job: Job, trajectory: Trajectory) -> None:
        """Record a trajectory, and its group if all of its trajectories are done."""
        if self._store is not None:
            trajectory, line = recordable(trajectory)
            await self._store.trajectories.add(line)
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
        complete = sum(group.complete for item in self._items if (group := self._group(item.id)) is not None)
        run_dir = "" if self._store is None else str(self._store.run_dir)
        return self._tally.summary(run_dir, self.wanted, complete)

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
