"""Slots for tests of the environment ``terminal``: a pool with the containers of one task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import hyperruntime as hr
from hyperenvironment_terminal import Terminal
from hyperruntime.network.egress import Network
from hyperruntime.pool.manager import PoolManager
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.pool_values.profiles import Profiles
from hyperruntime.rollout.environment import Outcome, Verdict
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ContainerSpec

Agent = Callable[[Sandbox], Awaitable[object]]
BASE = "localhost/hyperruntime/base:latest"


async def idle(lease: Sandbox) -> None:
    """Do nothing."""


async def attempt(
    runtime: hr.Runtime,
    environment: Terminal,
    task: str,
    agent: Agent,
    *,
    calls: int = 1,
    network: Network = "none",
) -> Verdict:
    """Run an agent in a slot of a real pool; return the verdict."""
    item = next(item for item in environment.items() if item.id == task)
    loop = asyncio.get_running_loop()
    base = ContainerSpec(image=BASE, network=network)
    spec = await loop.run_in_executor(None, environment.spec, item, base, runtime.images)
    config = PoolConfig(
        spec=spec,
        slots_per_container=1,
        max_containers=3,
        spare_containers=0,
        image_workdir=environment.image_workdir,
    )
    async with PoolManager(runtime, Profiles.of(config)) as pools:

        def fresh(spec: ContainerSpec | None = None) -> AbstractAsyncContextManager[Sandbox]:
            return pools.lease("judge", spec=spec)

        async with pools.lease("agent") as lease:
            meta = await environment.setup(item, lease)
            assert [m["role"] for m in environment.messages(item, meta)] == ["system", "user"]
            await agent(await environment.agent_lease(item, lease, meta))
            await lease.end_processes()
            outcome = Outcome(messages=(), turns=1, tool_calls=calls, stop_reason="finished")
            return await environment.verify(item, outcome, lease, fresh, meta)


def make_task(
    folder: Path,
    test: str,
    *,
    name: str = "test.sh",
    solution: str = "",
    settings: str = "",
    image: str = "",
) -> Path:
    """Write the directory of a task whose image extends the base image; ``image`` has other lines
    of its Dockerfile.
    """
    for part in ("environment", "tests"):
        (folder / part).mkdir(parents=True)
    (folder / "instruction.md").write_text("Do it.")
    (folder / "task.toml").write_text(settings or "[environment]\nallow_internet = false\n")
    (folder / "environment" / "Dockerfile").write_text(f"FROM {BASE}\n{image or _IMAGE}")
    (folder / "tests" / name).write_text(test)
    if solution:
        (folder / "solution").mkdir()
        (folder / "solution" / "solve.sh").write_text(solution)
    return folder


_IMAGE = """\
WORKDIR /app
RUN mkdir -p /app/old/deep /srv/data && touch /app/old/a /app/old/deep/b /app/gone && echo 1 > /srv/data/kept \\
    && ln -s /srv/data /app/data && echo before > /app/changed && chmod 600 /app/changed
"""
