"""Single episodes of an environment, for programs that choose the items and bring the model of each
trajectory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar, cast

import attrs

from hyperruntime.datasets.left_out import left_out_of, warn_left_out
from hyperruntime.errors import RunError, SpecError, name_hint
from hyperruntime.rollout.agent.agent import slot_tools
from hyperruntime.rollout.agent.model import Model
from hyperruntime.rollout.loading import load_agent, load_environment
from hyperruntime.rollout.run.episode import EpisodeContext, Job, Specs, run_episode
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.scheduler import until_done
from hyperruntime.rollout.run.slot_pools import PooledSlots
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Trajectory
from hyperruntime.rollout.run_files.turn_journal import TurnJournal
from hyperruntime.runtime import Runtime

M = TypeVar("M", bound=Model)


class Episodes:
    """Runs episodes on one event loop; its containers end with the runtime.

    Attributes:
        options: rollout options; those that only a whole run needs, such as ``group_size``, are not
            used.
    """

    def __init__(self, runtime: Runtime, options: RolloutOptions) -> None:
        """Load the environment and the agent; no container starts yet.

        Args:
            runtime: where containers run.
            options: rollout options.

        Raises:
            SpecError, DriverLoadError: the environment or the agent cannot be loaded.
        """
        environment, base = (
            load_environment(options.environment, options.environment_options),
            options.base_spec(),
        )
        self.options, self._numbers = options, itertools.count()
        self._items = {item.id: item for item in environment.items()}
        warn_left_out(left_out_of(environment), "the environment's option unsupported=fail")
        self._context = EpisodeContext(
            options=options,
            environment=environment,
            model=cast(Model, None),  # each trajectory has its own
            slots=PooledSlots(runtime, options, environment),
            specs=Specs(lambda item: environment.spec(item, base, runtime.images)),
            toolset=slot_tools(options.tools),
            agent=load_agent(options.agent),
        )

    async def run(self, item_id: str, make_model: Callable[[], M]) -> tuple[M, Trajectory]:
        """Return a trajectory that has ended, and its model; infrastructure failures are retried.

        Args:
            item_id: id of the item.
            make_model: returns a model for each attempt.

        Raises:
            SpecError: the environment has no such item.
            RunError: infrastructure failed each attempt.
        """
        if item_id not in self._items:
            hint = name_hint(item_id, self._items)
            raise SpecError("item", item_id, f"an item of {self.options.environment!r}; {hint}")
        job = Job(item=self._items[item_id], index=next(self._numbers))
        models: list[M] = []

        async def attempt() -> Trajectory:
            models.append(make_model())
            return await run_episode(
                attrs.evolve(self._context, model=models[-1]), job, TurnJournal()
            )

        trajectory = await until_done(attempt, self.options.attempts)
        if trajectory.status == INFRASTRUCTURE:
            raise RunError(
                f"the trajectory {job.id} failed {len(models)} times: {trajectory.error}"
            )
        return models[-1], trajectory

    async def close(self) -> None:
        """Stop all pools."""
        await self._context.slots.__aexit__()
