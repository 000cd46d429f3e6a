"""A run of rollouts: items times group size, kept as it goes, gone on with after a kill.

``trajectories.jsonl`` is the truth: what has a line there is done, what has none is run. A run that is ended at any
instant loses nothing that was recorded and counts nothing twice.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from hyperruntime.errors import SpecError, name_hint
from hyperruntime.rollout.agent.agent import Agent, run_agent
from hyperruntime.rollout.agent.model import Model, Sampling
from hyperruntime.rollout.agent.toolset import Toolset, slot_tools
from hyperruntime.rollout.environment import Environment, Item
from hyperruntime.rollout.run.episode import EpisodeContext
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.scheduler import Job, RetryRule, run_jobs
from hyperruntime.rollout.run.slots import Slots
from hyperruntime.rollout.run.store import RunStore, recordable, slim
from hyperruntime.rollout.run.summary import RolloutSummary, Tally
from hyperruntime.rollout.run_files.record import SCORED, Group, Trajectory
from hyperruntime.rollout.run_files.run_dir import owned
from hyperruntime.rollout.training_data.groups import make_group
from hyperruntime.storage.atomic import make_directory

if TYPE_CHECKING:
    from hyperruntime.runtime import Runtime


@attrs.frozen(kw_only=True)
class RolloutEvent:
    """Something happened in a run.

    Attributes:
        kind: ``start`` or ``done``.
        id: of the trajectory.
        done: how many are recorded now, those of an earlier start included.
        wanted: of the whole run.
        mean_reward: so far, or None.
        trajectory: that is done.
    """

    kind: str
    id: str
    done: int
    wanted: int
    mean_reward: float | None = None
    trajectory: Trajectory | None = None


@attrs.define(kw_only=True)
class Parts:
    """What a program may hand in instead of having it made from the options.

    Attributes:
        environment: what agents are given to do.
        model: who is asked; stays open.
        slots: where agents work; stay open.
        agent: who asks the model.
        toolset: which tools agents get; the options' are of the slot.
    """

    environment: Environment | None = None
    model: Model | None = None
    slots: Slots | None = None
    agent: Agent | None = None
    toolset: Toolset | None = None


async def run_rollouts(
    runtime: Runtime,
    options: RolloutOptions,
    *,
    run_dir: Path | None = None,
    parts: Parts | None = None,
    on_event: Callable[[RolloutEvent], None] = lambda _: None,
    keep: Callable[[Trajectory], None] = lambda _: None,
) -> RolloutSummary:
    """Run all trajectories that are not recorded yet, and return figures of the whole run.

    Cancelled, it ends when every slot is given back; what was recorded stays.

    Args:
        runtime: where containers are.
        options: what to run.
        run_dir: where to keep it; one that exists is gone on with. None keeps nothing.
        parts: what is there already.
        on_event: told of every trajectory.
        keep: handed every trajectory that is done now.

    Raises:
        RunLockedError, LeaseLostError: another live process owns the directory, or took it over.
        RunError: too many trajectories in a row could not be scored, or the directory is of another run.
        SpecError: an option cannot be.
        ModelError: the model cannot be opened.
    """
    options = options.settled()
    parts = await _loaded(options, parts or Parts())  # before there is a directory: what cannot be leaves none behind
    environment = parts.environment
    assert environment is not None, "loaded"
    items = await asyncio.to_thread(chosen_items, environment, options)
    async with AsyncExitStack() as stack:
        if parts.model is None:
            parts = attrs.evolve(parts, model=_open_model(stack, options))
        store = None
        if run_dir is not None:
            store, options = _open_store(stack, run_dir, options)
        setting = await _open(stack, runtime, options, parts, environment)
        if store is not None:
            store.keep_options(options)  # not before: what cannot be opened leaves no run behind
        run = _Run(options, items, store, on_event, keep)
        parallel = min(options.parallel, run.wanted, getattr(setting.slots, "capacity", options.parallel))
        pace = RetryRule(parallel=parallel, attempts=options.attempts, give_up_after=options.give_up_after)

        def make(job: Job) -> EpisodeContext:
            return attrs.evolve(setting, sampling=_sampling(options, job))

        await run_jobs(make, run.jobs(), pace, on_start=run.on_start, on_done=run.on_done)
        return run.summary()


def _open_store(stack: AsyncExitStack, run_dir: Path, options: RolloutOptions) -> tuple[RunStore, RolloutOptions]:
    """Take a directory for this process, and return its files and the options that the run there has."""
    make_directory(run_dir)
    stack.enter_context(owned(run_dir))
    store = RunStore(run_dir)
    stack.push_async_callback(store.close)
    return store, store.begin(options)


async def _loaded(options: RolloutOptions, parts: Parts) -> Parts:
    """Return the parts with the code that the options name: environment and agent."""
    environment = parts.environment
    if environment is None:
        from hyperruntime.rollout.environment_lookup import load_environment

        environment = await asyncio.to_thread(load_environment, options.environment, options.environment_options)
    agent = parts.agent or await asyncio.to_thread(load_agent, options.agent)
    return attrs.evolve(parts, environment=environment, agent=agent)


def _open_model(stack: AsyncExitStack, options: RolloutOptions) -> Model:
    """Return the model that the options name; the stack closes it."""
    model = open_chosen_model(options)
    stack.push_async_callback(model.close)
    return model


async def _open(
    stack: AsyncExitStack, runtime: Runtime, options: RolloutOptions, parts: Parts, environment: Environment
) -> EpisodeContext:
    """Make what is not there yet; the stack lets go of it."""
    model = parts.model
    assert model is not None, "opened"
    slots = parts.slots
    if slots is None:
        from hyperruntime.rollout.run.slot_pools import PooledSlots

        count = options.pool.slots_per_container or getattr(environment, "slots_per_container", 1)
        slots = await stack.enter_async_context(PooledSlots(runtime, options, count))
    base = options.base_spec()
    return EpisodeContext(
        environment=environment,
        name=options.environment,
        model=model,
        slots=slots,
        spec_of=lambda item: environment.spec(item, base, runtime.images),
        toolset=parts.toolset or slot_tools(options.tools),
        agent=parts.agent or run_agent,
        limits=options.limits,
        require_tokens=options.require_tokens,
        setup_s=options.setup_s,
        verify_s=options.verify_s,
    )


def open_chosen_model(options: RolloutOptions) -> Model:
    """Return the client of the model that the options name.

    Raises:
        SpecError: they name none.
        ModelError: it cannot be opened.
    """
    from hyperruntime.rollout.models import open_model

    if options.model is None:
        raise SpecError("model", None, "ModelOptions, or a Model of your own handed in")
    return open_model(options.model)


def load_agent(reference: str | None) -> Agent:
    """Return an agent by ``module:function`` or ``path/file.py:function``, or ours.

    Raises:
        SpecError: there is no such function.
        DriverLoadError: its code is broken.
    """
    if reference is None:
        return run_agent
    from hyperruntime.rollout.loading import Kind, load_code

    agent: Agent = load_code(Kind(word="agent", members=(), code="function"), reference)
    return agent


def chosen_items(environment: Environment, options: RolloutOptions) -> list[Item]:
    """Return the items that a run takes.

    Raises:
        SpecError: there are none, two have one id, or one that is asked for is not there.
    """
    items = {}
    for item in environment.items():
        if item.id in items:
            raise SpecError("items", item.id, "each id once in an environment")
        items[item.id] = item
    for name in options.items:
        if name not in items:
            raise SpecError("items", name, f"an item of {options.environment!r}; {name_hint(name, items)}")
    chosen = [items[name] for name in options.items] or list(items.values())
    if not chosen:
        raise SpecError("environment", options.environment, "one with items; these options leave none")
    return chosen[: options.max_items]


def _sampling(options: RolloutOptions, job: Job) -> Sampling:
    """Return how a trajectory is sampled: its seed depends on the run's and its id, and on no order."""
    digest = hashlib.blake2b(f"{options.seed}\n{job.id}".encode(), digest_size=8).digest()
    seed = int.from_bytes(digest) % 2**31
    return Sampling(temperature=options.temperature, max_tokens=options.max_tokens, seed=seed)


class _Run:
    """What a run has come to so far.

    Attributes:
        wanted: how many trajectories it has in all.
    """

    def __init__(
        self,
        options: RolloutOptions,
        items: list[Item],
        store: RunStore | None,
        on_event: Callable[[RolloutEvent], None],
        keep: Callable[[Trajectory], None],
    ) -> None:
        self._options, self._items, self._store = options, items, store
        self._on_event, self._keep = on_event, keep
        self._tally = Tally()
        self._groups: dict[str, dict[int, Trajectory]] = {item.id: {} for item in items}
        self._done = 0
        self.wanted = len(items) * options.group_size
        for trajectory in store.recorded() if store is not None else ():
            self._take_back(trajectory)
        if store is not None:
            store.write_groups(filter(None, (self._group(item.id) for item in items)))

    def jobs(self) -> Iterator[Job]:
        """Return what is still to be run, item by item."""
        for item in self._items:
            for index in range(self._options.group_size):
                if index not in self._groups[item.id]:
                    yield Job(item=item, index=index)

    def on_start(self, job: Job) -> None:
        self._on_event(self._event("start", job))

    async def on_done(self, job: Job, trajectory: Trajectory) -> None:
        """Record a trajectory, and its group if it was the last of it."""
        if self._store is not None:
            trajectory, line = recordable(trajectory)
            await self._store.add(line)
        self._tally.done(trajectory)
        self._groups[job.item.id][job.index] = slim(trajectory)
        self._done += 1
        self._keep(trajectory)
        group = self._group(job.item.id)
        if group is not None and self._store is not None:
            await self._store.add_group(group)
        self._on_event(self._event("done", job, trajectory))

    def summary(self) -> RolloutSummary:
        complete = sum(group.complete for item in self._items if (group := self._group(item.id)) is not None)
        run_dir = "" if self._store is None else str(self._store.run_dir)
        return self._tally.summary(run_dir, self.wanted, complete)

    def _take_back(self, trajectory: Trajectory) -> None:
        """Count what an earlier start recorded; what is to be tried again is not counted."""
        group = self._groups.get(trajectory.item_id)
        if group is None or trajectory.index >= self._options.group_size:
            return
        if self._options.retry_failed and trajectory.status != SCORED:
            return
        self._tally.seen(trajectory)
        group[trajectory.index] = slim(trajectory)
        self._done += 1

    def _group(self, item_id: str) -> Group | None:
        """Return an item's group, or None while some of it is still to be run."""
        found = self._groups[item_id]
        size = self._options.group_size
        return make_group(item_id, size, list(found.values())) if len(found) == size else None

    def _event(self, kind: str, job: Job, trajectory: Trajectory | None = None) -> RolloutEvent:
        return RolloutEvent(
            kind=kind,
            id=job.id,
            done=self._done,
            wanted=self.wanted,
            mean_reward=self._tally.mean_reward,
            trajectory=trajectory,
        )
