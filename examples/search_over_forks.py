"""A search over forks of a container, with a scripted model: moves that cannot be taken back."""

import asyncio
from collections.abc import Mapping
from typing import Any

import hyperruntime as hr
from hyperruntime.rollout.environment import Item, Verdict
from hyperruntime.rollout.run.runner import Parts
from hyperruntime.testing.model import ModelReply, calls, says, scripted_model

GOAL = 21


class Numbers:
    """Get from 1 to the goal by adding 1 and doubling, in a file."""

    name = "numbers"

    def items(self) -> list[Item]:
        return [Item(id="number")]

    def spec(self, item: Item, base: hr.ContainerSpec, images: Any) -> hr.ContainerSpec:
        return base

    async def setup(self, item: Item, lease: hr.Sandbox) -> dict[str, Any]:
        await lease.write_file("n", b"1")
        return {}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": f"Make {GOAL}."}]

    async def value(
        self, item: Item, outcome: Any, lease: hr.Sandbox, meta: Mapping[str, Any]
    ) -> float:
        number = int(await lease.read_file("n"))
        return float(number if number <= GOAL else -number)

    async def verify(
        self, item: Item, outcome: Any, lease: hr.Sandbox, fresh: Any, meta: Mapping[str, Any]
    ) -> Verdict:
        return Verdict(reward=float(int(await lease.read_file("n")) == GOAL))


def script(request: Any) -> ModelReply:
    """Choose a move by the seed; stop at the goal."""
    last = request["messages"][-1]["content"]
    if f'"output": "{GOAL}' in last:
        return says("Done.")
    move = ["+ 1", "* 2"][request["seed"] // 7 % 2]
    return calls(bash={"command": f"n=$(cat n); echo $((n {move})) >n; cat n"})


with scripted_model(script) as model, hr.open_runtime() as runtime:
    options = hr.RolloutOptions(
        environment="numbers",
        model=hr.ModelOptions(name="scripted", base_url=model.url),
        seed=1,
        search="best",
        search_children=3,
        search_width=3,
    )
    found: list[Any] = []
    parts = Parts(environment=Numbers())
    asyncio.run(hr.run_rollouts(runtime, options, parts=parts, keep=found.append))
    facts = found[0].verdict["facts"]["search"]
    print(f"reward {found[0].reward:g} after {found[0].tool_calls} moves")
    print(f"{facts['nodes']} nodes, path {facts['path']}")
