"""The set-up of a group: one where the engine has snapshots, and the same results where not."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.images.store import ImageStore
from hyperruntime.layers.records import KEPT, Records
from hyperruntime.rollout.agent.agent import AgentResult, AgentTask
from hyperruntime.rollout.environment import EnvironmentBase, Fresh, Item, Outcome, Verdict
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import Parts, run_rollouts
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES, read_trajectories
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ContainerSpec
from tests.doubles.episodes import FakeModel

pytestmark = pytest.mark.engine

GROUP = 4


def kept(runtime: hr.Runtime) -> set[str]:
    """Return the files that this process keeps for snapshots."""
    records = Records(runtime.name).read_all()
    own = (one.name for one in records if one.keeper.pid == os.getpid())
    return {name for name in own if name.startswith(KEPT)}


@attrs.define
class Workshop(EnvironmentBase):
    """The set-up makes a file, which each agent must find as it was, beside none of others."""

    name = "workshop"
    setup_per_trajectory: bool = False
    leaves_running: bool = False
    count: int = 2
    set_ups: Counter[str] = attrs.field(factory=Counter)

    def items(self) -> Iterable[Item]:
        return [Item(id=name) for name in "abcdefgh"[: self.count]]

    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        return base

    async def setup(self, item: Item, lease: Sandbox) -> Mapping[str, Any]:
        self.set_ups[item.id] += 1
        running = "sleep 300 >/dev/null 2>&1 &" if self.leaves_running else ""
        (await lease.exec(["sh", "-c", f"echo {item.id} >made; {running}"])).check()
        return {"made": [item.id]}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        meta["made"].append("changed")
        return [{"role": "user", "content": f"{len(meta['made'])}"}]

    async def verify(
        self, item: Item, outcome: Outcome, lease: Sandbox, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        seen = (await lease.exec(["sh", "-c", "cat made; ls"])).stdout.decode().split()
        async with fresh() as judge:
            used = (await judge.exec(["ls", "-A"])).stdout.decode()
            await judge.write_file("left-by-a-judge", b"")
        return Verdict(reward=float(seen == [item.id, item.id, "made", "used"] and not used))


async def agent(task: AgentTask) -> AgentResult:
    """Change the file that the set-up made, and leave another."""
    assert task.messages[0]["content"] == "2"
    await task.tool_handler("bash", {"command": "echo $(cat made) >>made; touch used"}, "1")
    return AgentResult(messages=task.messages, turns=1, tool_calls=1, stop_reason="finished")


def roll_out(
    runtime: hr.Runtime, image: str, environment: Workshop, run_dir: Path, **given: Any
) -> list[Trajectory]:
    options = RolloutOptions(
        environment="workshop",
        group_size=GROUP,
        parallel=3,
        attempts=1,
        container=hr.ContainerSpec(image=image),
        **given,
    )
    parts = Parts(environment=environment, model=FakeModel(), agent=agent)
    asyncio.run(run_rollouts(runtime, options, run_dir=run_dir, parts=parts))
    return list(read_trajectories(run_dir))


def test_a_group_pays_one_set_up_where_the_engine_has_snapshots(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    environment = Workshop()
    found = roll_out(runtime, base_image, environment, tmp_path / "run")
    assert [(one.reward, one.error) for one in found] == [(1.0, None)] * 2 * GROUP
    info = runtime.info  # where a rollback is slow, only a long set-up is shared
    wanted = 1 if info.snapshots and not info.slow_rollbacks else GROUP
    assert environment.set_ups == {"a": wanted, "b": wanted}


def test_the_files_of_earlier_items_do_not_stay(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    before = kept(runtime)
    most = 0

    class Watched(Workshop):
        async def setup(self, item: Item, lease: Sandbox) -> Mapping[str, Any]:
            nonlocal most
            most = max(most, len(kept(runtime) - before))
            return await super().setup(item, lease)

    run_dir = tmp_path / "run"
    found = roll_out(runtime, base_image, Watched(count=8), run_dir)
    assert {one.reward for one in found} == {1.0}
    assert most < 5
    assert kept(runtime) <= before
    # a resumed run, in which each group has two
    lines = (run_dir / TRAJECTORIES).read_text().splitlines(keepends=True)
    half = "".join(line for line in lines if json.loads(line)["index"] < GROUP / 2)
    (run_dir / TRAJECTORIES).write_text(half)
    again = Watched(count=8)
    assert len(roll_out(runtime, base_image, again, run_dir)) == 8 * GROUP
    assert sum(again.set_ups.values()) >= 8
    assert most < 5
    assert kept(runtime) <= before


@pytest.mark.parametrize("reason", ["setup_per_trajectory", "leaves_running"])
def test_each_trajectory_has_its_own_set_up_if_a_snapshot_would_change_something(
    runtime: hr.Runtime, base_image: str, tmp_path: Path, reason: str
) -> None:
    environment = Workshop(
        setup_per_trajectory=reason == "setup_per_trajectory",
        leaves_running=reason == "leaves_running",
    )
    found = roll_out(runtime, base_image, environment, tmp_path / "run", items=["a"])
    assert [(one.reward, one.error) for one in found] == [(1.0, None)] * GROUP
    assert environment.set_ups == {"a": GROUP}
