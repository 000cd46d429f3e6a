"""Rollouts of an environment of your own, with a scripted model, exported as a data set."""

import asyncio
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hyperruntime as hr
from hyperruntime.rollout.environment import Item, Verdict
from hyperruntime.rollout.run.runner import Parts
from hyperruntime.rollout.training_data.export import ExportOptions, export_run
from hyperruntime.testing.model import ModelReply, calls, says, scripted_model


class Sums:
    """Write the sum of two numbers into a file."""

    name = "sums"

    def items(self) -> list[Item]:
        return [Item(id=f"sum-{first}", data={"a": first, "b": first + 1}) for first in range(3)]

    def spec(self, item: Item, base: hr.ContainerSpec, images: Any) -> hr.ContainerSpec:
        return base

    async def setup(self, item: Item, lease: hr.Sandbox) -> dict[str, Any]:
        return {}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": "Write {a} + {b} to sum.txt.".format(**item.data)}]

    async def verify(
        self, item: Item, outcome: Any, lease: hr.Sandbox, fresh: Any, meta: Mapping[str, Any]
    ) -> Verdict:
        answer = await lease.exec(["head", "-c", "20", "sum.txt"], timeout_s=10)
        return Verdict(
            reward=float(answer.stdout.strip() == str(item.data["a"] + item.data["b"]).encode()),
            phase="sum",
        )


def script(request: Any) -> ModelReply:
    """Answer every task with 3, which is right once."""
    return (
        says("Done.")
        if request["messages"][-1]["role"] == "tool"
        else calls(bash={"command": "echo 3 > sum.txt"})
    )


with (
    tempfile.TemporaryDirectory() as folder,
    scripted_model(script) as model,
    hr.open_runtime() as runtime,
):
    run = Path(folder, "run")
    limited = runtime.info.limits.get("pids", "no") != "no"  # not by Apptainer's setuid program
    limits = hr.Limits() if limited else hr.Limits(pids=None)
    options = hr.RolloutOptions(
        environment="sums",
        model=hr.ModelOptions(name="scripted", base_url=model.url),
        container=hr.ContainerSpec(image=runtime.images.ensure("base"), limits=limits),
        group_size=2,
    )
    parts = Parts(environment=Sums())
    summary = asyncio.run(hr.run_rollouts(runtime, options, run_dir=run, parts=parts))
    if summary.mean_reward is None:
        raise SystemExit(f"no trajectory was scored: {'; '.join(summary.last_errors.values())}")
    print(f"{summary.scored} scored, mean reward {summary.mean_reward:.2f}")
    export_run(run, Path(folder, "data"), ExportOptions(to="huggingface"))
    text = Path(folder, "data/data/train.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    print(len(rows), "rows with", sorted(rows[0])[:4], "...")
