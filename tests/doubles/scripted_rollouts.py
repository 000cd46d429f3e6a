"""An environment and a model of rollouts that follow a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from hyperruntime.images.store import ImageStore
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.environment import EnvironmentBase, Fresh, Item, Outcome, Verdict
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ContainerSpec


@attrs.define
class Scripted(EnvironmentBase):
    """Items that a command sets up; functions judge what the agent wrote into ``log``.

    Attributes:
        names: those of the items.
        broken: the item that cannot be judged.
    """

    name = "scripted"
    names: tuple[str, ...] = ("item",)
    broken: str = ""
    set_up: str = ": >log"
    worth: Callable[[bytes], float] = len
    reward: Callable[[bytes], float] = lambda log: 1.0
    setup_per_trajectory: bool = False
    set_ups: int = 0

    def items(self) -> Iterable[Item]:
        return [Item(id=name) for name in self.names]

    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        return base

    async def setup(self, item: Item, lease: Sandbox) -> Mapping[str, Any]:
        self.set_ups += 1
        (await lease.exec(["sh", "-c", self.set_up])).check()
        return {}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return [{"role": "user", "content": "write"}]

    async def value(
        self, item: Item, outcome: Outcome, lease: Sandbox, meta: Mapping[str, Any]
    ) -> float:
        if item.id == self.broken:
            raise OSError("no value")
        return self.worth(await lease.read_file("log"))

    async def verify(
        self, item: Item, outcome: Outcome, lease: Sandbox, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        return Verdict(reward=self.reward(await lease.read_file("log")))


@attrs.define
class ScriptedModel:
    """Gives the commands of a function of the turn and the seed, and says that it is done at None.

    Attributes:
        command: the function.
        thinks_s: seconds that each answer takes.
    """

    command: Callable[[int, int], str | None]
    thinks_s: float = 0.0
    name: str = "scripted"

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
    ) -> Completion:
        await asyncio.sleep(self.thinks_s)
        turn = sum(message["role"] == "assistant" for message in messages)
        command = self.command(turn, sampling.seed or 0)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "done" if command is None else "",
        }
        if command is not None:
            function = {"name": "bash", "arguments": json.dumps({"command": command})}
            message["tool_calls"] = [{"id": "", "type": "function", "function": function}]
        at = turn * 10
        return Completion(
            message=message,
            finish_reason="stop",
            usage={"prompt_tokens": at, "completion_tokens": 2},
            prompt_ids=tuple(range(at)),
            ids=(at, at + 1),
            logprobs=(-0.5, -0.25),
        )

    async def close(self) -> None: ...
