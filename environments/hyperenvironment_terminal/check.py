"""Check tasks as their authors must: the known solution is worth 1, doing nothing is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

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
    """What a task's tests say of it.

    Attributes:
        task: its id.
        begins: whether ``test_initial_state.py`` holds in a container that nobody has used; None where there is none.
        nothing: the verdict on doing nothing.
        solution: the verdict on the known solution, or None where there is none.
    """

    task: str
    begins: bool | None
    nothing: Verdict
    solution: Verdict | None

    @property
    def good(self) -> bool:
        """Whether the task can be solved, and not by doing nothing."""
        solved = self.solution is None or self.solution.reward >= 1.0
        return self.begins is not False and solved and self.nothing.reward < 1.0


async def check_task(runtime: Runtime, environment: Terminal, item: Item, base: ContainerSpec) -> Check:
    """Judge a task's known solution, and doing nothing.

    Raises:
        HyperRuntimeError: its image cannot be had, or its tests come to no verdict.
    """
    loop = asyncio.get_running_loop()
    spec = await loop.run_in_executor(None, environment.spec, item, base, runtime.images)
    config = PoolConfig(spec=spec, slots_per_container=1, min_containers=0, max_containers=2, acquire_timeout_s=300)
    async with SlotPool(runtime, config) as pool:

        def fresh(spec: ContainerSpec | None = None) -> AbstractAsyncContextManager[Lease]:
            return _leased(pool)

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


@asynccontextmanager
async def _leased(pool: SlotPool) -> AsyncIterator[Lease]:
    async with pool.lease() as lease:
        yield lease
