"""Run one trajectory: lease, setup, agent, verification, release.

An error before the verdict is recorded as an infrastructure failure with its cause. It is never a reward.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.concurrency.cancellation import check_cancelled
from hyperruntime.errors import RunError
from hyperruntime.logs import get_logger
from hyperruntime.rollout.agent.agent import Agent, AgentLimits, AgentResult, AgentTask, run_agent
from hyperruntime.rollout.agent.model import Model, Sampling
from hyperruntime.rollout.agent.recorder import RecordedModel, RecordedTools, Stopwatch
from hyperruntime.rollout.agent.toolset import Toolset
from hyperruntime.rollout.environment import Item, Outcome, UnscoredEnvironment, Verdict
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, SCORED, UNSCORED, Trajectory

if TYPE_CHECKING:
    from hyperruntime.pool.lease import Lease
    from hyperruntime.rollout.run.slot_pools import PooledSlots
    from hyperruntime.spec import ContainerSpec

log = get_logger(__name__)
_ERROR_CHARACTERS = 2000


@attrs.frozen(kw_only=True)
class EpisodeContext:
    """The context of a trajectory; all trajectories of a run share it, except the seed in ``sampling``.

    Attributes:
        environment: the environment; without a ``verify``, trajectories get no reward.
        name: name of the environment in records.
        model: the model.
        slots: leases slots and containers for verification.
        spec_of: returns the container spec of an item; called in a thread, so it may block.
        toolset: the tools of the agents.
        agent: the agent.
        limits: limits of a conversation.
        sampling: sampling parameters.
        require_tokens: whether a turn without token ids and log probabilities is an infrastructure failure.
        setup_s: timeout of ``Environment.setup``.
        verify_s: timeout of the end of processes and ``Environment.verify`` together.
    """

    environment: UnscoredEnvironment
    name: str
    model: Model
    slots: PooledSlots
    spec_of: Callable[[Item], ContainerSpec]
    toolset: Toolset
    agent: Agent = run_agent
    limits: AgentLimits = attrs.field(factory=AgentLimits)
    sampling: Sampling = attrs.field(factory=Sampling)
    require_tokens: bool = False
    setup_s: float = 1800.0
    verify_s: float = 3600.0


async def run_episode(setting: EpisodeContext, item: Item, index: int, spec: ContainerSpec) -> Trajectory:
    """Return a trajectory, either ended or with an error; only cancellation is raised.

    Args:
        setting: the context of the trajectory.
        item: the item.
        index: index of the trajectory in its group, from 0.
        spec: container spec of the item.
    """
    return await _Episode(setting, item, index, spec).run()


def trajectory_id(item: Item, index: int) -> str:
    """Return the id of a trajectory: ``ITEM/INDEX``."""
    return f"{item.id}/{index}"


def new_trajectory(setting: EpisodeContext, item: Item, index: int) -> Trajectory:
    """Return a trajectory that starts now and has failed so far."""
    return Trajectory(
        id=trajectory_id(item, index),
        item_id=item.id,
        index=index,
        environment=setting.name,
        model=setting.model.name,
        status=INFRASTRUCTURE,
        started_at=time.time(),
    )


class _Episode:
    """The state of one trajectory while it runs."""

    def __init__(self, setting: EpisodeContext, item: Item, index: int, spec: ContainerSpec) -> None:
        self._setting, self._item, self._spec = setting, item, spec
        self._trajectory = new_trajectory(setting, item, index)
        self._id = self._trajectory.id
        self._watch = Stopwatch()
        self._model = RecordedModel(setting.model, self._watch, require_tokens=setting.require_tokens)
        self._tools: RecordedTools | None = None
        self._phase = "acquire"
        self._result: AgentResult | None = None
        self._ending: dict[str, Any] | None = None

    async def run(self) -> Trajectory:
        try:
            await self._work()
        except Exception as error:  # noqa: BLE001 - any error is recorded, and retried by the scheduler
            check_cancelled()
            if self._ending is None:
                return self._record(error=failure(error, self._phase))
            log.warning("slot not given back", trajectory=self._id, error=str(error))
        assert self._ending is not None, "set by the work"
        return self._record(**self._ending)

    async def _work(self) -> None:
        setting, item = self._setting, self._item
        async with self._leased(setting.slots.lease(self._spec, self._id)) as lease:
            with self._in("setup"):
                async with asyncio.timeout(setting.setup_s):
                    meta = await setting.environment.setup(item, lease)
            self._phase = "agent"
            self._result = await self._speak(lease, meta)
            self._ending = await self._score(self._result, lease, meta)
            self._phase = "release"

    async def _speak(self, lease: Lease, meta: Mapping[str, Any]) -> AgentResult:
        setting = self._setting
        tools = setting.toolset(lease)
        recorded = self._tools = RecordedTools(tools, self._model, self._watch)
        messages = setting.environment.messages(self._item, meta)
        self._trajectory = attrs.evolve(self._trajectory, messages=messages, tools=tools.schemas)
        task = AgentTask(
            id=self._id,
            model=self._model,
            messages=messages,
            tools=tools.schemas,
            tool_handler=recorded.handle,
            limits=_limits(setting, self._item),
            sampling=setting.sampling,
        )
        return await setting.agent(task)

    async def _score(self, result: AgentResult, lease: Lease, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the trajectory that the environment's verification decides."""
        verify = getattr(self._setting.environment, "verify", None)
        if verify is None:
            return {"status": UNSCORED}
        outcome = Outcome(
            messages=result.messages, turns=result.turns, tool_calls=result.tool_calls, stop_reason=result.stop_reason
        )
        with self._in("verify"):
            async with asyncio.timeout(self._setting.verify_s):
                await lease.end_processes()
                verdict: Verdict = await verify(self._item, outcome, lease, self._fresh, meta)
            check_verdict(verdict)
        told = {"phase": verdict.phase, "detail": verdict.detail, "facts": dict(verdict.facts)}
        scores = {"reward": float(verdict.reward), "parts": dict(verdict.parts)}
        return {"status": SCORED, "verdict": told, **scores}

    @contextlib.asynccontextmanager
    async def _fresh(self, spec: ContainerSpec | None = None) -> AsyncIterator[Lease]:
        """Lease an unused container, and measure the wait for it as the phase ``fresh_s``."""
        fresh = self._setting.slots.fresh(self._spec if spec is None else spec, f"{self._id}#verify")
        async with contextlib.AsyncExitStack() as stack:
            with self._watch.phase("fresh_s"):
                lease = await stack.enter_async_context(fresh)
            yield lease

    @contextlib.asynccontextmanager
    async def _leased(self, leased: AbstractAsyncContextManager[Lease]) -> AsyncIterator[Lease]:
        """Hold a lease, and measure the time to acquire and to release it."""
        with self._watch.phase("acquire_s"):
            lease = await leased.__aenter__()
        try:
            yield lease
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
            fields |= {
                "messages": self._result.messages,
                "turns": self._result.turns,
                "tool_calls": self._result.tool_calls,
                "stop_reason": self._result.stop_reason,
                "tool_errors": _by_turn([*self._result.tool_errors, *(self._tools.errors if self._tools else ())]),
            }
        elif self._model.conversation:
            fields |= {"messages": self._model.conversation, "turns": self._model.turns}
        return attrs.evolve(
            self._trajectory,
            usage=dict(self._model.usage),
            timing=self._watch.total(),
            segments=self._model.tokens.segments(),
            **fields,
        )


def _limits(setting: EpisodeContext, item: Item) -> AgentLimits:
    """Return the limits of the run, with the lower of its time limit and the item's."""
    limit_of = getattr(setting.environment, "time_limit_s", None)
    allowed = None if limit_of is None else limit_of(item)
    if allowed is None:
        return setting.limits
    time_s = setting.limits.time_s
    return attrs.evolve(setting.limits, time_s=allowed if time_s is None else min(time_s, allowed))


def check_verdict(verdict: Verdict) -> None:
    """Check that the reward and its parts are finite numbers.

    Raises:
        RunError: a number is not finite, or not a number.
    """
    numbers: list[Any] = [verdict.reward, *verdict.parts.values()]
    if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
        raise RunError(f"reward and parts must be finite numbers, but they are {numbers!r}; fix Environment.verify()")


def failure(error: BaseException, phase: str) -> dict[str, str]:
    """Return an error of a trajectory in its recorded form: ``kind``, ``message`` and ``phase``."""
    text = str(error) or (f"{phase} took too long" if isinstance(error, TimeoutError) else type(error).__name__)
    text = text if len(text) <= _ERROR_CHARACTERS else f"{text[:_ERROR_CHARACTERS]}..."
    return {"kind": type(error).__name__, "message": text, "phase": phase}


def _by_turn(errors: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(errors, key=lambda error: turn if isinstance(turn := error.get("turn"), int) else 0)
