"""A policy learns from rollouts on real slots, and resumes after an interruption."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import hyperruntime as hr
from hyperruntime.cli import main
from hyperruntime.rollout.agent.agent import AgentLimits
from hyperruntime.rollout.run.options import PoolOptions, RolloutOptions
from hyperruntime.rollout.training_data.export import ExportOptions, export_groups
from hyperruntime.spec import ContainerSpec
from hyperruntime.trainers.on_policy import METRICS, TrainOptions, Update, step_seed, train
from hypertrainer_grpo.grpo import Batch, GrpoConfig, update
from hypertrainer_grpo.learner import list_checkpoints, load_checkpoint
from hypertrainer_grpo.toy import Toy
from hypertrainer_grpo.toypolicy import ToyPolicy
from hypertrainer_grpo.trainer import Grpo
from tests.training.atropos_server import TrainerApi, atropos_server
from tests.training.weights import importance_ratios
from tests.unit.rollout.training_data.test_export import from_scored_data

pytestmark = pytest.mark.engine


def options(image: str, updates: int, *, parallel: int = 6, **more: Any) -> TrainOptions:
    """Return the options of a training on one container."""
    rollouts = RolloutOptions(
        environment="toy",
        group_size=4,
        parallel=parallel,
        seed=1,
        max_tokens=12,
        limits=AgentLimits(turns=2),
        tools=("bash",),
        require_tokens=True,
        container=ContainerSpec(image=image),
        pool=PoolOptions(slots_per_container=6, min_containers=1, max_containers=1),
    )
    return TrainOptions(rollouts=rollouts, updates=updates, **more)


def run(runtime: hr.Runtime, directory: Path, how: TrainOptions) -> list[Update]:
    """Train a policy; return the updates."""
    trainer = Grpo(directory=str(directory / "checkpoints"))
    return asyncio.run(train(runtime, trainer, Toy(), how, directory))


@pytest.fixture(scope="module")
def trained(
    runtime: hr.Runtime, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Update]]:
    """Train for thirty updates with three groups of four; return the directory and the updates."""
    directory = tmp_path_factory.mktemp("trained")
    return directory, run(runtime, directory, options(base_image, 30))


@pytest.mark.slow
def test_reward_rises_over_thirty_updates(trained: tuple[Path, list[Update]]) -> None:
    """GRPO on groups from real slots: with a wrong sign or without learning, the reward stays below
    one half.
    """
    directory, updates = trained
    rewards = [one.metrics["reward"] for one in updates]
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert len(rewards) == 30
    assert first < 0.7
    assert last > first + 0.25, rewards
    assert last > 0.85, rewards
    assert all((one.groups, one.not_scored) == (3, 0) for one in updates)
    lines = (directory / METRICS).read_text().splitlines()
    assert [json.loads(line)["metrics"]["reward"] for line in lines] == rewards


@pytest.mark.slow
def test_the_sampling_policy_has_importance_ratio_one(trained: tuple[Path, list[Update]]) -> None:
    """T3: the log-probabilities in the first rollouts' files are those of the policy then, and of
    no later policy.
    """
    directory, updates = trained
    assert max(one.metrics["ratio_error"] for one in updates) < 1e-4
    groups = list(export_groups(directory / "rollouts/step-000001", ExportOptions()))
    batch = Batch.of(groups)
    network = ToyPolicy().network
    assert float((importance_ratios(network, batch) - 1).abs().max()) < 1e-4
    network.load_state_dict(
        dict(load_checkpoint(list_checkpoints(directory / "checkpoints")[-1]).network)
    )
    assert float((importance_ratios(network, batch) - 1).abs().max()) > 1e-2


@pytest.mark.slow
def test_both_turns_of_a_trajectory_are_trained(trained: tuple[Path, list[Update]]) -> None:
    """R3, W23: one segment; the call and the final word are unmasked, the prompt and the tool's
    answer are masked.
    """
    directory, _ = trained
    policy = ToyPolicy()
    groups = list(export_groups(directory / "rollouts/step-000030", ExportOptions()))
    samples = [sample for group in groups for sample in group.samples]
    assert {sample.parts for sample in samples} == {1}
    shown = []
    for sample in samples:
        pairs = zip(sample.segment.ids, sample.segment.mask, strict=True)
        shown.append(policy.tokenizer.decode(token for token, mask in pairs if mask))
    wanted = "<tool_call>" + json.dumps(
        {"name": "bash", "arguments": {"command": "printf red > answer.txt"}}
    )
    assert f"{wanted}</tool_call><|end|>done<|end|>" in shown


@pytest.mark.slow
def test_a_trainer_gets_groups_through_the_real_server_with_ratio_one(
    trained: tuple[Path, list[Update]], capsys: pytest.CaptureFixture[str]
) -> None:
    """T3: `rollout submit` sends groups to atroposlib's server; for its batch, the unchanged policy
    has ratio 1.
    """
    directory, _ = trained
    run_dir = str(directory / "rollouts/step-000001")

    async def register(url: str) -> list[dict[str, Any]] | None:
        api = TrainerApi(url)
        try:
            if not await api.is_registered():
                await api.register(batch_size=12, max_token_len=64, num_steps=1)
            return await api.batch()
        finally:
            await api.close()

    with atropos_server() as url:
        assert asyncio.run(register(url)) is None
        named = ["--trainer-option", f"url={url}", "--trainer-option", "group_size=4"]
        assert main(["rollout", "submit", run_dir, *named, "--equal", "keep"]) == 0
        assert capsys.readouterr().out == "3 of 3 groups accepted\n"
        batch = asyncio.run(register(url))
    assert batch is not None
    groups = [from_scored_data(group) for group in batch]
    assert sorted(group.item_id for group in groups) == ["blue", "green", "red"]
    policy = ToyPolicy()
    assert float((importance_ratios(policy.network, Batch.of(groups)) - 1).abs().max()) < 1e-4
    optimizer = torch.optim.Adam(policy.network.parameters(), lr=1e-3)
    metrics = update(policy.network, optimizer, groups, GrpoConfig())
    assert metrics["grad_norm"] > 0


@pytest.mark.slow
def test_a_training_cancelled_during_rollouts_continues_exactly(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """Recorded rollouts count and the rest is drawn again; the weights equal those of an
    undisturbed training.
    """
    how = options(base_image, 1, parallel=2)
    run(runtime, tmp_path / "whole", how)

    async def until_recorded() -> None:
        trainer = Grpo(directory=str(tmp_path / "parts/checkpoints"))
        task = asyncio.create_task(train(runtime, trainer, Toy(), how, tmp_path / "parts"))
        lines = tmp_path / "parts/rollouts/step-000001/trajectories.jsonl"
        while not lines.exists() or lines.read_bytes().count(b"\n") < 3:
            await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(until_recorded(), 120))
    assert [path.name for path in list_checkpoints(tmp_path / "parts/checkpoints")] == [
        "step-000000.pt"
    ]
    before = (tmp_path / "parts/rollouts/step-000001/trajectories.jsonl").read_bytes()
    (made,) = run(runtime, tmp_path / "parts", how)
    after = (tmp_path / "parts/rollouts/step-000001/trajectories.jsonl").read_bytes()
    assert after.startswith(before)
    assert made.metrics["ratio_error"] < 1e-4
    whole, parts = (
        load_checkpoint(list_checkpoints(tmp_path / name / "checkpoints")[-1])
        for name in ("whole", "parts")
    )
    assert all(torch.equal(whole.network[name], parts.network[name]) for name in whole.network)


@pytest.mark.slow
def test_a_training_resumes_exactly_where_it_ended(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """Two updates at once, or one and then one: equal rewards and weights, because seeds depend on
    step and turn.
    """
    small = {"items_per_update": 2}
    run(runtime, tmp_path / "whole", options(base_image, 2, **small))
    run(runtime, tmp_path / "parts", options(base_image, 1, **small))
    with (tmp_path / "parts" / METRICS).open("a") as file:
        file.write('{"step": 2, "metr')
    run(runtime, tmp_path / "parts", options(base_image, 2, **small))
    whole, parts = (
        load_checkpoint(list_checkpoints(tmp_path / name / "checkpoints")[-1])
        for name in ("whole", "parts")
    )
    assert whole.step == parts.step == 2
    assert all(torch.equal(whole.network[name], parts.network[name]) for name in whole.network)
    lines = [(tmp_path / name / METRICS).read_text().splitlines() for name in ("whole", "parts")]
    assert [json.loads(line)["step"] for line in lines[1]] == [1, 2]
    assert [json.loads(line)["metrics"]["reward"] for line in lines[0]] == [
        json.loads(line)["metrics"]["reward"] for line in lines[1]
    ]
    assert run(runtime, tmp_path / "parts", options(base_image, 2, **small)) == []
    assert step_seed(1, 1) != step_seed(1, 2) != step_seed(2, 1)


def test_the_command_trains_and_resumes(
    base_image: str, runtime_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``hyperrun rollout train`` prints figures on standard error and the directory on standard
    output.
    """
    directory = tmp_path / "it"
    program = ["--runtime", runtime_name, "rollout", "train"]
    asked = [
        f"--output-dir={directory}",
        "--group-size=2",
        "--items-per-update",
        "1",
        f"--image={base_image}",
    ]
    assert main([*program, *asked, "--updates", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{directory}\n"
    assert "update 1: reward" in shown.err
    assert main([*program, *asked]) == 2
    assert "--resume-from" in capsys.readouterr().err
    assert main([*program, "--resume-from", str(directory), "--seed", "3"]) == 2
    assert "--seed cannot change" in capsys.readouterr().err
    assert main([*program, "--resume-from", str(directory), "--updates", "2", "--json"]) == 0
    (made,) = json.loads(capsys.readouterr().out)
    assert made["step"] == 2
