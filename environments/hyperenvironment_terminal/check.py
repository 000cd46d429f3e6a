"""Check tasks for their authors: the known solution must get reward 1, doing nothing must get less."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import attrs

from hyperenvironment_terminal.environment import Terminal
from hyperruntime.pool.lease import Lease
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool.values.config import PoolConfig
from hyperruntime.rollout.environment import Item, Outcome, Verdict
from hyperruntime.runtime import Runtime
from hyperruntime.spec import ContainerSpec


@attrs.frozen(kw_only=True)
class Check:
    """The result of the check of a task.

    Attributes:
        task: id of the task.
        begins: whether ``test_initial_state.py`` passes in an unused container; None if the task has no such test.
        nothing: the verdict for doing nothing.
        solution: the verdict for the known solution, or None if the task has none.
    """

    task: str
    begins: bool | None
    nothing: Verdict
    solution: Verdict | None

    @property
    def good(self) -> bool:
        """Whether the initial state is right, the solution gets reward 1, and doing nothing gets less."""
        solved = self.solution is None or self.solution.reward >= 1.0
        return self.begins is not False and solved and self.nothing.reward < 1.0


async def check_task(runtime: Runtime, environment: Terminal, item: Item, base: ContainerSpec) -> Check:
    """Judge a task's known solution, and doing nothing.

    Args:
        runtime: where containers run.
        environment: the environment with the task.
        item: the task.
        base: container spec for the environment.

    Raises:
        HyperRuntimeError: the image is not available, or the tests reach no verdict.
    """
    loop = asyncio.get_running_loop()
    spec = await loop.run_in_executor(None, environment.spec, item, base, runtime.images)
    config = PoolConfig(spec=spec, slots_per_container=1, min_containers=0, max_containers=2, acquire_timeout_s=300)
    async with SlotPool(runtime, config) as pool:

        def fresh(spec: ContainerSpec | None = None) -> AbstractAsyncContextManager[Lease]:
            return pool.lease()

        async def judged(lease: Lease) -> Verdict:
            meta = await environment.setup(item, lease)
            outcome = Outcome(messages=(), turns=1, tool_calls=1, stop_reason="finished")
            return await environment.verify(item, outcome, lease, fresh, meta)

        async with fresh() as lease:
            begins = await environment.begins_right(item, lease)
        async with fresh() as lease:
            nothing = await judged(lease)
        solution = None
        if environment.has_solution(item):
            async with fresh() as lease:
                await environment.solve(item, lease)
                await lease.end_processes()
                solution = await judged(lease)
    return Check(task=item.id, begins=begins, nothing=nothing, solution=solution)
