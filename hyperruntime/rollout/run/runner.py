"""A rollout run: ``group_size`` trajectories of each item, recorded one by one, so that the run can
resume.

A trajectory is done when it has a line in ``trajectories.jsonl``. A run can be killed at any time:
recorded trajectories are not lost and not counted twice.
"""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import attrs

from hyperruntime.datasets.left_out import shown, warn_left_out
from hyperruntime.errors import RunError, SpecError, UnsupportedOptionError, name_hint
from hyperruntime.logs import get_logger
from hyperruntime.rollout.agent.agent import Agent, Toolset, slot_tools
from hyperruntime.rollout.agent.model import Model
from hyperruntime.rollout.environment import (
    EnvironmentBase,
    Item,
    UnscoredEnvironment,
    UnscoredEnvironmentBase,
)
from hyperruntime.rollout.loading import completed_environment, load_agent, load_environment
from hyperruntime.rollout.models import open_model
from hyperruntime.rollout.models.server import check_server
from hyperruntime.rollout.run.episode import EpisodeContext, Job, Specs
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.progress import Keep, RolloutEvent, RunProgress
from hyperruntime.rollout.run.store import RunStore
from hyperruntime.rollout.run.summary import RolloutSummary
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Trajectory
from hyperruntime.runs.drain import Drain
from hyperruntime.runs.recording import owned
from hyperruntime.runs.retry import Streak
from hyperruntime.runs.run_file import RUN
from hyperruntime.runs.workers import Workers
from hyperruntime.storage.atomic import make_directory

if TYPE_CHECKING:
    from hyperruntime.rollout.run.slot_pools import PooledSlots
    from hyperruntime.runtime import Runtime
    from hyperruntime.spec import ContainerSpec

log = get_logger(__name__)
_RETRY_S = 1.0


class Episodes(Workers[Job, Trajectory], Protocol):
    """Make the trajectories of a run."""

    async def end(self, item: Item) -> None:
        """Remove what is kept for the trajectories of an item, which have all ended."""
        ...


@attrs.define(kw_only=True)
class Parts:
    """Objects that the caller passes to a run; fields that are None are created from the options.

    Attributes:
        environment: the environment, of any class; without a ``verify``, the trajectories get no
            reward.
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

    environment: UnscoredEnvironmentBase
    model: Model
    agent: Agent
    toolset: Toolset


OpenEpisodes = Callable[[RolloutOptions, CompleteParts], AbstractAsyncContextManager[Episodes]]


async def run_rollouts(
    runtime: Runtime,
    options: RolloutOptions,
    *,
    run_dir: Path | None = None,
    parts: Parts | None = None,
    on_event: Callable[[RolloutEvent], None] = lambda _: None,
    keep: Keep = lambda _: None,
    on_start: Callable[[], None] = lambda: None,
    drain: Drain | None = None,
) -> RolloutSummary:
    """Run all trajectories that are not recorded yet, and return the summary of the whole run.

    On cancellation it releases every slot before it returns; recorded trajectories stay.

    Args:
        runtime: where containers run.
        options: rollout options.
        run_dir: directory of the run; an existing run is resumed. None writes no files.
        parts: objects of the caller; None creates all from the options.
        on_event: called at the start and at the end of every trajectory.
        keep: called with every trajectory that ends in this call, and awaited if it is
            asynchronous.
        on_start: called once when all is checked and opened, before the first trajectory.
        drain: ends the run without cancelling the trajectories that it has begun; None: nothing
            does.

    Raises:
        RunLockedError, LeaseLostError: another live process owns the directory, or took it over.
        RunError: the infrastructure failed too often in a row, or the directory has another run.
        SpecError: an option is invalid.
        ModelError: the model cannot be opened, or its server is down; no container was started.
    """
    here = partial(_open_as_asked, runtime)
    return await run_episodes(
        here,
        options,
        run_dir=run_dir,
        parts=parts,
        on_event=on_event,
        keep=keep,
        on_start=on_start,
        drain=drain,
    )


async def run_episodes(
    open_episodes: OpenEpisodes,
    options: RolloutOptions,
    *,
    run_dir: Path | None = None,
    parts: Parts | None = None,
    on_event: Callable[[RolloutEvent], None] = lambda _: None,
    keep: Keep = lambda _: None,
    on_start: Callable[[], None] = lambda: None,
    drain: Drain | None = None,
) -> RolloutSummary:
    """Do what :func:`run_rollouts` does, with trajectories that are made where ``open_episodes``
    opens them.
    """
    drain = drain or Drain()
    parts, resumed = parts or Parts(), run_dir is not None and (run_dir / RUN).is_file()
    async with AsyncExitStack() as stack:
        made = await complete_parts(stack, options, parts)  # validate before creating the directory
        if not resumed:
            await check_model(options, parts)
        if isinstance(made.environment, EnvironmentBase):
            # a run without rewards sends a seed only if the options have one
            options = options.settled()
        items, left = await asyncio.to_thread(_checked_items, made.environment, options)
        store = None
        if run_dir is not None:
            stack.enter_context(owned(make_directory(run_dir)))
            store = RunStore(run_dir)
            stack.push_async_callback(store.close)
            options = store.begin(options)
        episodes = await stack.enter_async_context(open_episodes(options, made))
        if store is not None:
            # only after everything is open: a failed start writes no run.json
            store.keep_options(options)
        run = RunProgress(options, items, store, on_event, keep, left_out=left)
        await asyncio.to_thread(run.forget_journals)
        if resumed and next(run.jobs(), None) is not None:
            await check_model(options, parts)
        on_start()
        parallel = min(options.parallel, run.wanted, episodes.capacity)
        await _run_jobs(episodes, options, run, parallel, drain)
        await asyncio.to_thread(run.forget_journals)
        is_interrupted = drain.begun and next(run.jobs(), None) is not None
        return attrs.evolve(run.summary(), interrupted=is_interrupted)


async def _run_jobs(
    episodes: Episodes, options: RolloutOptions, run: RunProgress, parallel: int, drain: Drain
) -> None:
    """Make the trajectories that are not done, in order; on cancellation, release every slot before
    returning.

    Args:
        episodes: make the trajectories.
        options: they limit the retries.
        run: has the trajectories, and records each.
        parallel: maximum trajectories at the same time.
        drain: when it has begun, no other trajectory begins.

    Raises:
        RunError: the infrastructure failed too often in a row.
    """
    waiting = iter(run.jobs())
    streak = Streak(options.failures_allowed)

    async def work() -> None:
        for job in waiting:  # all workers share one iterator
            if drain.begun:
                return
            begun = await run.on_start(job)
            attempt = partial(episodes.run, begun)
            trajectory = await until_done(attempt, options.attempts, streak)
            await run.on_done(job, trajectory)
            if run.is_done(job.item):
                await episodes.end(job.item)
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


def _checked_items(
    environment: UnscoredEnvironmentBase, options: RolloutOptions
) -> tuple[list[Item], Mapping[str, str]]:
    """Return the items of a run, and why items that the options choose were left out, by name."""
    items = chosen_items(environment, options)
    left = {
        name: why
        for name, why in environment.left_out.items()
        if not options.items or chosen_names(options.items, [name])
    }
    warn_left_out(left, "--option unsupported=fail")
    environment.check_items(items, options.base_spec())
    return items, left


async def complete_parts(
    stack: AsyncExitStack, options: RolloutOptions, parts: Parts
) -> CompleteParts:
    """Return the parts with environment, agent, toolset and model created from the options where
    they are None.

    Args:
        stack: closes the model that is opened here.
        options: rollout options.
        parts: objects of the caller.

    Raises:
        SpecError, DriverLoadError, ModelError: one of them cannot be created.
    """
    environment = parts.environment
    model = parts.model
    if environment is None:
        environment = await asyncio.to_thread(
            load_environment, options.environment, options.environment_options
        )
    agent = (
        parts.agent
        if parts.agent is not None
        else await asyncio.to_thread(load_agent, options.agent)
    )
    toolset = parts.toolset or slot_tools(options.tools)
    if model is None:
        if options.model is None:
            raise SpecError("model", None, "ModelOptions; or pass your own Model")
        model = open_model(options.model)
        stack.push_async_callback(model.close)
    return CompleteParts(
        environment=completed_environment(environment),
        agent=agent,
        toolset=toolset,
        model=model,
        slots=parts.slots,
    )


async def check_model(options: RolloutOptions, parts: Parts) -> None:
    """Check that the server of a run's model answers; a model of the caller is not checked.

    Raises:
        ModelError: it does not.
    """
    if parts.model is None and options.model is not None:
        await check_server(options.model)


@asynccontextmanager
async def open_here(
    runtime: Runtime,
    options: RolloutOptions,
    parts: CompleteParts,
    ask: Callable[[str], None] | None = None,
) -> AsyncIterator[EpisodeContext]:
    """Yield the context for trajectories on this machine; at the end, close the slots that were
    created here.

    Args:
        runtime: where containers run.
        options: rollout options.
        parts: objects of the run.
        ask: fetches a missing image of an item by name, in a thread; None: the environment must
            provide it.
    """
    environment = parts.environment
    base = options.base_spec()

    def spec_of(item: Item) -> ContainerSpec:
        if ask is None:
            return environment.spec(item, base, runtime.images)
        images = runtime.images.asking(ask)
        spec = environment.spec(item, base, images)
        return attrs.evolve(spec, image=images.ensure(spec.image))

    async with AsyncExitStack() as stack:
        slots = parts.slots
        if slots is None:
            from hyperruntime.rollout.run.slot_pools import PooledSlots

            slots = await stack.enter_async_context(PooledSlots(runtime, options, environment))
        yield EpisodeContext(
            options=options,
            environment=environment,
            model=parts.model,
            slots=slots,
            specs=Specs(spec_of),
            toolset=parts.toolset,
            agent=parts.agent,
        )


@asynccontextmanager
async def _open_as_asked(
    runtime: Runtime, options: RolloutOptions, parts: CompleteParts
) -> AsyncIterator[Episodes]:
    """Yield what makes trajectories on this machine: one by one, or by searches."""
    async with open_here(runtime, options, parts) as context:
        if options.search == "none":
            yield context
            return
        if not runtime.info.snapshots:
            why = "it has no snapshots; leave it at none"
            raise UnsupportedOptionError(runtime.name, "search", why)
        from hyperruntime.rollout.run.search import Searches

        async with Searches(context) as searches:
            yield searches


def chosen_items(environment: UnscoredEnvironmentBase, options: RolloutOptions) -> list[Item]:
    """Return the items of a run.

    Args:
        environment: the environment.
        options: ``items`` and ``max_items`` select the items.

    Raises:
        SpecError: there are no items, two items have the same id, or a selected item does not exist
            or was left out.
    """
    items = {}
    for item in environment.items():
        if item.id in items:
            raise SpecError("items", item.id, "an id that is unique in the environment")
        items[item.id] = item
    left = environment.left_out
    for wanted in options.items:
        if not chosen_names([wanted], items):
            if refused := chosen_names([wanted], left):
                raise SpecError(
                    "items",
                    wanted,
                    f"a supported item: {shown({name: left[name] for name in refused})}",
                )
            allowed = (
                f"an item of {options.environment!r}, or a pattern of items; "
                f"{name_hint(wanted, items)}"
            )
            raise SpecError("items", wanted, allowed)
    chosen = (
        [items[name] for name in chosen_names(options.items, items)]
        if options.items
        else list(items.values())
    )
    if not chosen:
        raise SpecError(
            "environment",
            options.environment,
            "an environment with items; these options select none",
        )
    return chosen[: options.max_items]


def chosen_names(wanted: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return names without duplicates: each wanted name, or those that a wanted pattern (``*``,
    ``?``, ``[``) matches.

    Args:
        wanted: names and patterns; their order is that of the result.
        names: the names that exist.
    """
    known = dict.fromkeys(names)
    found = ([one] if one in known else fnmatch.filter(known, one) for one in wanted)
    return list(dict.fromkeys(name for matches in found for name in matches))
