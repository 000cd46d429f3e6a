"""Work on a slow Podman finishes, and nothing is left; a quick test of each promise is in
tests/contract.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.cli import main
from hyperruntime.host.engine_limits import forget_delays
from hyperruntime.host.process import wait_until
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.rollout.run_files.run_dir import read_trajectories
from hyperruntime.testing.model import ModelReply, calls, says, scripted_model
from tests.doubles.slow_podman import ANY, SlowPodman
from tests.e2e.rollout_world import rollout

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(7200)]

_GONE_S = 1200.0


@pytest.fixture
def slow_podman(tmp_path: Path, base_image: str, monkeypatch: pytest.MonkeyPatch) -> SlowPodman:
    """Put a slow ``podman`` on PATH, with a cache of its own for what the probe finds."""
    program = SlowPodman(tmp_path / "slow")
    monkeypatch.setenv("PATH", program.path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget_delays()
    return program


def expect_nothing_is_left(engine_command: Any, run: str) -> None:
    found = f"label=io.hyperruntime.owner.run={run}"
    assert wait_until(lambda: not engine_command.containers(found), _GONE_S, 1.0), (
        engine_command.containers(found)
    )


def generate(tmp_path: Path, run: str, *more: str) -> int:
    place = ["--output-dir-parent", str(tmp_path / "out"), "--run-id", run]
    return main(["--runtime", "podman", "generate", "--domains", "circle_packing", *place, *more])


def test_a_run_of_30_generations_finishes_on_an_engine_with_random_delays(
    slow_podman: SlowPodman, tmp_path: Path, engine_command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_podman.change(before={ANY: (0.1, 90)}, after={"run": (0.1, 90)})
    code = generate(tmp_path, "random", "--max-generation", "30", "--parallel", "6", "--seed", "1")
    shown = capsys.readouterr()
    slow_podman.change()
    view = load_run(tmp_path / "out" / "generate_random")
    assert (code, view.state, len(view.generations)) == (0, "finished", 31), shown.err
    assert [record.genid for record in view.generations if record.failure == "infrastructure"] == []
    expect_nothing_is_left(engine_command, "random")


def test_fifty_leases_of_a_pool_succeed_on_an_engine_with_random_delays(
    slow_podman: SlowPodman, engine_command: Any
) -> None:
    """Each lease has a container of its own, so that fifty are started and removed."""
    slow_podman.change(before={ANY: (0.1, 90)}, after={"run": (0.1, 90)})
    config = hr.PoolConfig(
        spec=hr.ContainerSpec(image="localhost/hyperruntime/base:latest"),
        slots_per_container=1,
        max_containers=10,
        reset="replace",
        acquire_timeout_s=3600.0,
    )

    async def lease_all() -> list[bytes]:
        async def use(pool: hr.SlotPool, number: int) -> bytes:
            async with pool.lease() as lease:
                return (await lease.exec(["echo", str(number)])).check().stdout

        with hr.open_runtime("podman", run_id="leases") as runtime:
            async with hr.SlotPool(runtime, config) as pool:
                return await asyncio.gather(*(use(pool, number) for number in range(50)))

    assert asyncio.run(lease_all()) == [b"%d\n" % number for number in range(50)]
    slow_podman.change()
    expect_nothing_is_left(engine_command, "leases")


def test_a_rollout_scores_all_trajectories_on_an_engine_with_random_delays(
    slow_podman: SlowPodman, tmp_path: Path, engine_command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def fixing(request: Mapping[str, Any]) -> ModelReply:
        number = request["messages"][0]["content"].split()[-1].rstrip(".")
        is_done = request["messages"][-1]["role"] == "tool"
        return says("done") if is_done else calls(bash={"command": f"echo {number} > answer.txt"})

    slow_podman.change(before={ANY: (0.1, 90)}, after={"run": (0.1, 90)})
    run_dir = tmp_path / "rollout_slow"
    with scripted_model(fixing) as model:
        args = rollout(model.url, run_dir, "--group-size=5", "--parallel=5", "--json")
        code = main(["--runtime", "podman", *args])
    shown = capsys.readouterr()
    slow_podman.change()
    assert code == 0, shown.err
    assert json.loads(shown.out)["scored"] == 10
    assert [one.reward for one in read_trajectories(run_dir)] == [1.0] * 10
    expect_nothing_is_left(engine_command, "rollout_slow")
