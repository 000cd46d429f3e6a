"""Helpers for tests of the environment ``swe``: repositories, wheels without an index, and one
whole trajectory.
"""

from __future__ import annotations

import asyncio
import json
import os
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import attrs

import hyperruntime as hr
from hyperenvironment_swe import Swe
from hyperruntime.git.command import git
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.rollout.environment import Item, Outcome, Verdict
from hyperruntime.sandbox import Sandbox

PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
Agent = Callable[[Sandbox, str], Awaitable[None]]
Captured = Callable[[Sandbox], Awaitable[None]]


def make_repository(where: Path, files: Mapping[str, str]) -> str:
    """Make a repository with these files; return its commit."""
    for name, text in files.items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_text(text)
    git(["init", "-q", "--template=", "--initial-branch=main", "--", str(where)])
    git(["-C", str(where), "add", "--all", "--force"])
    git(["-C", str(where), "commit", "-q", "-m", "base"])
    return git(["-C", str(where), "rev-parse", "HEAD"]).decode().strip()


def make_wheelhouse(where: Path, names: tuple[str, ...]) -> Path:
    """Make wheels of pure Python packages that this Python has installed, so that no index is
    needed.
    """
    where.mkdir()
    for name in names:
        installed = distribution(name)
        file = f"{installed.name.replace('-', '_')}-{installed.version}-py3-none-any.whl"
        with zipfile.ZipFile(where / file, "w") as wheel:
            for path in installed.files or ():
                if not path.parts[0].startswith("..") and path.suffix != ".pyc":
                    wheel.write(str(path.locate()), str(path))
    return where


def make_site(where: Path, names: tuple[str, ...] = PYTEST) -> Path:
    """Make a directory of installed packages, like one in an image."""
    for wheel in make_wheelhouse(where.with_name(f"{where.name}-wheels"), names).iterdir():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(where)
    return where


def bash(script: str) -> Agent:
    """Return an agent that runs one bash program in the directory of the repository."""

    async def agent(lease: Sandbox, repo_dir: str) -> None:
        await lease.exec(["bash", "-c", script], workdir=repo_dir, timeout_s=60)

    return agent


def outcome(tool_calls: int = 1) -> Outcome:
    """Return the outcome of an agent that finished."""
    return Outcome(messages=(), turns=1, tool_calls=tool_calls, stop_reason="finished")


@attrs.frozen
class Bench:
    """Pools of one item's containers, for agents and for judges.

    Attributes:
        environment: the environment under test.
        agents: the agents' slots; several share a container unless agents are root.
        judges: fresh containers.
    """

    environment: Swe
    agents: SlotPool
    judges: SlotPool

    async def trajectory(
        self, item: Item, agent: Agent, *, tool_calls: int = 1, captured: Captured | None = None
    ) -> Verdict:
        """Set up an item, let the agent work, and judge it; await ``captured`` when its work has
        been read out.
        """
        async with self.agents.lease(item.id) as lease:
            meta = await self.environment.setup(item, lease)
            await agent(lease, str(meta["repo_dir"]))

            @asynccontextmanager
            async def fresh(spec: hr.ContainerSpec | None = None) -> AsyncIterator[Sandbox]:
                if captured is not None:
                    await captured(lease)
                async with self.judges.lease() as judge:
                    yield judge

            return await self.environment.verify(item, outcome(tool_calls), lease, fresh, meta)


async def open_bench(
    stack: AsyncExitStack,
    runtime: hr.Runtime,
    base: hr.ContainerSpec,
    environment: Swe,
    item: Item,
    *,
    root: bool = False,
) -> Bench:
    """Open the pools for trajectories of an item; agents at an absolute path are root in their own
    container.
    """
    spec = environment.spec(item, base, runtime.images)
    slots = 1 if root or item.data["repo_dir"].startswith("/") else None
    config = PoolConfig(spec=spec, name="agents", slots_per_container=slots)
    agents = await stack.enter_async_context(SlotPool(runtime, config))
    judging = PoolConfig(
        spec=spec, name="judges", slots_per_container=1, min_containers=1, max_containers=4
    )
    judges = await stack.enter_async_context(SlotPool(runtime, judging))
    return Bench(environment, agents, judges)


async def judge_all(
    runtime: hr.Runtime,
    base: hr.ContainerSpec,
    environment: Swe,
    agents: Mapping[str, Agent],
    item_id: str = "",
) -> dict[str, Verdict]:
    """Let agents work on one item, one after the other, each in its own slot; return their
    verdicts.
    """
    item = next(one for one in environment.items() if item_id in ("", one.id))
    async with AsyncExitStack() as stack:
        bench = await open_bench(stack, runtime, base, environment, item)
        return {name: await bench.trajectory(item, agent) for name, agent in agents.items()}


def judged(
    runtime: hr.Runtime,
    image: str | hr.ContainerSpec,
    environment: Swe,
    agents: Mapping[str, str | Agent],
    item_id: str = "",
) -> dict[str, Verdict]:
    """Return the verdicts on agents; a text is a program of bash."""
    base = hr.ContainerSpec(image=image) if isinstance(image, str) else image
    made = {name: bash(one) if isinstance(one, str) else one for name, one in agents.items()}
    return asyncio.run(judge_all(runtime, base, environment, made, item_id))


def rewards(verdicts: Mapping[str, Verdict]) -> dict[str, float]:
    return {name: verdict.reward for name, verdict in verdicts.items()}


def with_site(base: hr.ContainerSpec, site: Path) -> hr.ContainerSpec:
    """Return a container spec that has the packages of a directory."""
    mount = hr.Mount(source=str(site), target="/opt/site")
    return attrs.evolve(base, mounts=(mount,), env={"PYTHONPATH": "/opt/site"})


def row_of(where: Path, files: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """Make a repository with these files; return a row of it, with what else it says."""
    row = {"id": where.name, "repo": str(where), "base_commit": make_repository(where, files)}
    return {**row, "problem_statement": "repair it", **more}


def write_rows(path: Path, *rows: Mapping[str, Any]) -> str:
    """Write rows, one JSON object per line; return the path."""
    path.write_text("".join(json.dumps(row) + os.linesep for row in rows))
    return str(path)


def swe_of(folder: Path, *rows: Mapping[str, Any], **options: Any) -> Swe:
    """Return the environment of these rows; its files are in a folder."""
    items = write_rows(folder / "rows.jsonl", *rows)
    return Swe(items=items, cache_dir=str(folder / "cache"), **options)
