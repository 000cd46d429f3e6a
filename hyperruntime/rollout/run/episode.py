"""Run one trajectory: lease, setup, agent, verification, release.

An error before the verdict is recorded as an infrastructure failure with its cause. It is never a
reward.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.concurrency.blocking import check_cancelled
from hyperruntime.errors import HyperRuntimeError, RunError
from hyperruntime.logs import get_logger
from hyperruntime.pool.lease import Lease
from hyperruntime.rollout.agent.agent import Agent, AgentLimits, AgentResult, AgentTask, Toolset
from hyperruntime.rollout.agent.model import Model, Sampling
from hyperruntime.rollout.agent.recorder import RecordedModel, Stopwatch, recorded_handler
from hyperruntime.rollout.agent.replay import Replay
from hyperruntime.rollout.environment import (
    EnvironmentBase,
    Item,
    Outcome,
    UnscoredEnvironmentBase,
)
from hyperruntime.rollout.run.set_ups import SetUps
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, SCORED, UNSCORED, Trajectory
from hyperruntime.rollout.run_files.turn_journal import TurnJournal

if TYPE_CHECKING:
    from hyperruntime.rollout.run.options import RolloutOptions
    from hyperruntime.rollout.run.slot_pools import PooledSlots
    from hyperruntime.sandbox import Sandbox
    from hyperruntime.spec import ContainerSpec

log = get_logger(__name__)
_ERROR_CHARACTERS = 2000
_MOST_SERVERS = 100


@attrs.frozen(kw_only=True)
class Job:
    """One trajectory to run.

    Attributes:
        item: the item.
        index: index of the trajectory in its group, from 0.
        journal: the events of earlier attempts; those of each attempt are appended.
    """

    item: Item
    index: int
    journal: TurnJournal = attrs.field(factory=TurnJournal, eq=False, repr=False)

    @property
    def id(self) -> str:
        """Return the trajectory's id: ``ITEM/INDEX``."""
        return f"{self.item.id}/{self.index}"


class Specs:
    """Caches each item's container spec; failures are not cached."""

    def __init__(self, spec_of: Callable[[Item], ContainerSpec]) -> None:
        """Cache the specs that a function returns; it is called in a thread, so it may block."""
        self._spec_of = spec_of
        self._asked: dict[str, asyncio.Task[ContainerSpec]] = {}

    async def of(self, item: Item) -> ContainerSpec:
        """Return the spec of an item."""
        task = self._asked.get(item.id)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._asked[item.id] = asyncio.create_task(
                asyncio.to_thread(self._spec_of, item)
            )
        return await asyncio.shield(task)


@attrs.frozen(kw_only=True)
class EpisodeContext:
    """The context that all trajectories of a run share.

    Attributes:
        options: rollout options.
        environment: the environment; without a ``verify``, trajectories get no reward.
        model: the model.
        slots: leases slots and containers for verification.
        specs: the container specs of the items.
        toolset: the tools of the agents.
        agent: the agent.
        set_ups: prepares the slots.
    """

    options: RolloutOptions
    environment: UnscoredEnvironmentBase
    model: Model
    slots: PooledSlots
    specs: Specs
    toolset: Toolset
    agent: Agent
    set_ups: SetUps = attrs.field(init=False)

    @set_ups.default
    def _new_set_ups(self) -> SetUps:
        return SetUps(self.environment, self.options, self.slots)

    @property
    def capacity(self) -> int:
        """Upper bound on concurrent trajectories."""
        return self.slots.capacity

    async def run(self, job: Job) -> Trajectory:
        """Make a trajectory here; see :func:`run_episode`."""
        return await run_episode(self, job)

    async def end(self, item: Item) -> None:
        """Remove what is kept for the trajectories of an item, which have all ended."""
        await self.set_ups.end(item)


async def run_episode(context: EpisodeContext, job: Job) -> Trajectory:
    """Return a trajectory, either ended or with an error.

    What earlier attempts did is played back. If it diverges, the conversation starts again in
    another container.

    Args:
        context: the context of the run.
        job: the trajectory to run.

    Raises:
        StorageError: the journal cannot be written.
    """
    while True:
        await job.journal.begin()
        replay = Replay(job.journal)
        trajectory = await _run_once(context, job, replay)
        if not replay.diverged:
            return attrs.evolve(trajectory, attempts=replay.attempt, replay=replay.facts())
        log.warning("replay diverged", trajectory=job.id, **job.journal.restarts()[-1])


async def _run_once(context: EpisodeContext, job: Job, replay: Replay) -> Trajectory:
    try:
        spec = await context.specs.of(job.item)
    except Exception as error:  # noqa: BLE001 - an environment may raise anything; recorded and retried
        return failed_trajectory(context.options, context.model.name, job, error, "spec")
    return await Episode(context, job, spec, replay).run()


def failed_trajectory(
    options: RolloutOptions, model: str, job: Job, error: BaseException, phase: str
) -> Trajectory:
    """Return the infrastructure failure of a trajectory that could not begin.

    Args:
        options: options of the run.
        model: name of the model.
        job: the trajectory.
        error: the cause.
        phase: name of the phase that failed.
    """
    return attrs.evolve(_new_trajectory(options, model, job), error=_failure(error, phase))


def _new_trajectory(options: RolloutOptions, model: str, job: Job) -> Trajectory:
    """Return a trajectory that starts now and has failed so far."""
    return Trajectory(
        id=job.id,
        item_id=job.item.id,
        index=job.index,
        environment=options.environment,
        model=model,
        status=INFRASTRUCTURE,
        started_at=time.time(),
    )


class Episode:
    """The state of one trajectory while it runs; see :class:`EpisodeContext` and :class:`Job`."""

    def __init__(
        self, context: EpisodeContext, job: Job, spec: ContainerSpec, replay: Replay
    ) -> None:
        self._context = context
        self._job = job
        self._spec = spec
        self._replay = replay
        self._trajectory = _new_trajectory(context.options, context.model.name, job)
        self._watch = Stopwatch()
        tokens = context.options.require_tokens
        self._model = RecordedModel(context.model, self._watch, replay, require_tokens=tokens)
        self._tool_errors: list[Mapping[str, Any]] = []
        self._connections: list[dict[str, Any]] = []
        self._phase = "acquire"
        self._result: AgentResult | None = None
        self._ending: dict[str, Any] | None = None

    async def run(self) -> Trajectory:
        """Make the trajectory, and record any error in it."""
        try:
            await self._work()
        except Exception as error:  # noqa: BLE001 - any error is recorded, and retried by the scheduler
            check_cancelled()
            if self._ending is None:
                if self._phase == "verify":
                    await self._replay.failed(self._phase, error)
                return self._record(error=_failure(error, self._phase))
            log.warning("slot not released", trajectory=self._job.id, error=str(error))
        assert self._ending is not None, "set by the work"
        return self._record(**self._ending)

    async def _work(self) -> None:
        context = self._context
        item = self._job.item
        async with self._leased(context.slots.lease(self._spec, self._job.id)) as lease:
            with self._in("setup"):
                meta = await context.set_ups.prepare(item, lease, self._spec)
                async with asyncio.timeout(context.options.setup_s):
                    agents = await context.environment.agent_lease(item, lease, meta)
            self._phase = "agent"
            self._result = await self._speak(agents, meta)
            self._replay.check()  # an agent may have caught the error
            self._ending = await self._score(self._result, lease, meta)
            self._phase = "release"

    async def _speak(self, lease: Sandbox, meta: Mapping[str, Any]) -> AgentResult:
        context = self._context
        tools = context.toolset(lease)
        messages = context.environment.messages(self._job.item, meta)
        self._trajectory = attrs.evolve(self._trajectory, messages=messages, tools=tools.schemas)
        task = AgentTask(
            id=self._job.id,
            model=self._model,
            messages=messages,
            tools=tools.schemas,
            tool_handler=recorded_handler(
                tools, self._model, self._watch, self._replay, self._tool_errors
            ),
            limits=limits_of(context, self._job.item),
            sampling=sampling_of(context.options, self._job.id),
        )
        return await context.agent(task)

    async def _score(
        self, result: AgentResult, lease: Sandbox, meta: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the fields of the trajectory that the environment's verification decides."""
        environment = self._context.environment
        if not isinstance(environment, EnvironmentBase):
            return {"status": UNSCORED}
        outcome = Outcome(
            messages=result.messages,
            turns=result.turns,
            tool_calls=result.tool_calls,
            stop_reason=result.stop_reason,
        )
        with self._in("verify"):
            async with asyncio.timeout(self._context.options.verify_s):
                await lease.end_processes()
                verdict = await environment.verify(
                    self._job.item, outcome, lease, self._fresh, meta
                )
            numbers: list[Any] = [verdict.reward, *verdict.parts.values()]
            if not all(
                isinstance(number, (int, float)) and math.isfinite(number) for number in numbers
            ):
                raise RunError(
                    f"reward and parts must be finite numbers, not {numbers!r}; fix "
                    "Environment.verify()"
                )
        told = {"phase": verdict.phase, "detail": verdict.detail, "facts": dict(verdict.facts)}
        scores = {"reward": float(verdict.reward), "parts": dict(verdict.parts)}
        return {"status": SCORED, "verdict": told, **scores}

    @contextlib.asynccontextmanager
    async def _fresh(self, spec: ContainerSpec | None = None) -> AsyncIterator[Sandbox]:
        """Sandbox an unused container, and measure the wait for it as the phase ``fresh_s``."""
        fresh = self._context.slots.fresh(
            self._spec if spec is None else spec, f"{self._job.id}#verify"
        )
        async with contextlib.AsyncExitStack() as stack:
            with self._watch.phase("fresh_s"):
                lease = await stack.enter_async_context(fresh)
            yield lease

    @contextlib.asynccontextmanager
    async def _leased(self, leased: AbstractAsyncContextManager[Sandbox]) -> AsyncIterator[Sandbox]:
        """Hold a lease, and measure the time to acquire and to release it."""
        with self._watch.phase("acquire_s"):
            lease = await leased.__aenter__()
        since = time.time()
        try:
            yield lease
        finally:
            try:
                self._connections = await _connections(lease, since)
            finally:
                with self._watch.phase("release_s"):
                    await leased.__aexit__(*sys.exc_info())

    @contextlib.contextmanager
    def _in(self, phase: str) -> Iterator[None]:
        self._phase = phase
        with self._watch.phase(f"{phase}_s"):
            yield

    def _record(self, **fields: Any) -> Trajectory:  # noqa: ANN401 - of a trajectory
        if self._result is not None:
            fields |= {name: getattr(self._result, name) for name in attrs.fields_dict(AgentResult)}
            fields["tool_errors"] = sorted(
                [*self._result.tool_errors, *self._tool_errors], key=_turn
            )
        elif self._model.conversation:
            fields |= {"messages": self._model.conversation, "turns": self._model.turns}
        return attrs.evolve(
            self._trajectory,
            usage=dict(self._model.usage),
            timing=self._watch.total(),
            connections=self._connections,
            segments=self._model.tokens.segments(),
            **fields,
        )


async def _connections(lease: Sandbox, since: float) -> list[dict[str, Any]]:
    """Return what a slot reached through the list of its network, summed by server and refusal."""
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    with contextlib.suppress(HyperRuntimeError):
        for one in await lease.connections(since) if isinstance(lease, Lease) else ():
            server = {"host": one.host, "port": one.port, "refused": one.refused}
            zero = {"count": 0, "sent_bytes": 0, "received_bytes": 0}
            known = found.setdefault((one.host, one.port, one.refused), {**server, **zero})
            known["count"] += 1
            known["sent_bytes"] += one.sent_bytes
            known["received_bytes"] += one.received_bytes
    largest = sorted(found.values(), key=lambda one: (bool(one["refused"]), -one["received_bytes"]))
    return largest[:_MOST_SERVERS]


def sampling_of(options: RolloutOptions, name: str) -> Sampling:
    """Return sampling parameters whose seed depends only on the run's seed and the trajectory's
    name.
    """
    seed = None
    if options.seed is not None:
        digest = hashlib.blake2b(f"{options.seed}\n{name}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest) % 2**31
    return Sampling(temperature=options.temperature, max_tokens=options.max_tokens, seed=seed)


def limits_of(context: EpisodeContext, item: Item) -> AgentLimits:
    """Return the limits of the run, with the lower of its time limit and the item's."""
    allowed = context.environment.time_limit_s(item)
    times = [time_s for time_s in (context.options.limits.time_s, allowed) if time_s is not None]
    return attrs.evolve(context.options.limits, time_s=min(times, default=None))


def _failure(error: BaseException, phase: str) -> dict[str, str]:
    """Return an error of a trajectory in its recorded form: ``kind``, ``message`` and ``phase``."""
    text = str(error) or (
        f"{phase} took too long" if isinstance(error, TimeoutError) else type(error).__name__
    )
    text = text if len(text) <= _ERROR_CHARACTERS else f"{text[:_ERROR_CHARACTERS]}..."
    return {"kind": type(error).__name__, "message": text, "phase": phase}


def _turn(error: Mapping[str, Any]) -> int:
    return turn if isinstance(turn := error.get("turn"), int) else 0
