"""Rollouts without an engine: slots, a model and an environment whose answers a test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs

import hyperruntime as hr
from hyperruntime.rollout.agent.agent import Tools
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.environment import Fresh, Item, Outcome, Verdict
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.progress import Keep, RolloutEvent
from hyperruntime.rollout.run.runner import Parts, run_rollouts
from hyperruntime.rollout.run.summary import RolloutSummary
from hyperruntime.testing.model import ModelReply

RUNTIME = cast(hr.Runtime, SimpleNamespace(images=None))
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"required": ["command"]}}}


class FakeSlots:
    """Slots without containers; counts and notes the leases."""

    capacity = 1000

    def __init__(self) -> None:
        self.held = 0
        self.asked: list[tuple[str, hr.ContainerSpec]] = []

    @asynccontextmanager
    async def lease(self, spec: hr.ContainerSpec, task_id: str) -> AsyncIterator[Any]:
        self.held += 1
        self.asked.append((task_id, spec))
        try:
            yield self
        finally:
            self.held -= 1  # like a pool's release: no await before it
            await asyncio.sleep(0)

    fresh = lease

    async def end_processes(self) -> None: ...


class FakeModel:
    """A model with scripted replies, or with errors; then it says a word of the seed, with tokens.

    Attributes:
        asked: the conversation and the sampling parameters of each call.
    """

    name = "scripted"

    def __init__(
        self,
        *replies: ModelReply | Exception,
        wait: Callable[[], Awaitable[Any]] = lambda: asyncio.sleep(0),
        finish_reason: str = "stop",
    ) -> None:
        self.asked: list[tuple[Sequence[Mapping[str, Any]], Sampling]] = []
        self._replies = list(replies)
        self._wait = wait
        self._finish_reason = finish_reason

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
    ) -> Completion:
        self.asked.append((messages, sampling))
        await self._wait()
        usage = {"prompt_tokens": 10 * len(self.asked), "completion_tokens": 5}
        if self._replies:
            reply = self._replies.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return Completion(message=reply.message, finish_reason=reply.finish_reason, usage=usage)
        return Completion(
            message={"role": "assistant", "content": f"word \udc80 {sampling.seed}"},
            finish_reason=self._finish_reason,
            usage=usage,
            prompt_ids=(1, 2, 3),
            ids=(4, (sampling.seed or 0) % 100),
            logprobs=(-0.5, -0.25),
        )

    @property
    def seeds(self) -> list[int | None]:
        return [sampling.seed for _, sampling in self.asked]

    async def close(self) -> None: ...


@attrs.define
class Unscored:
    """An environment without a reward."""

    count: int = 3
    name: str = "world"

    def items(self) -> Iterable[Item]:
        return [Item(id=f"i{number}") for number in range(self.count)]

    def spec(self, item: Item, base: hr.ContainerSpec, images: Any) -> hr.ContainerSpec:
        return base

    async def setup(self, item: Item, lease: Any) -> Mapping[str, Any]:
        return {"item": item.id}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return [{"role": "user", "content": f"do {meta['item']}"}]


@attrs.define
class World(Unscored):
    """An environment with scripted failures and rewards."""

    fails: Callable[[str, int], BaseException | None] = lambda item, attempt: None
    rewards: Callable[[str, int], float] = lambda item, attempt: 1.0
    attempts: dict[str, int] = attrs.field(factory=dict)

    async def verify(
        self, item: Item, outcome: Outcome, lease: Any, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        attempt = self.attempts[item.id] = self.attempts.get(item.id, 0) + 1
        if (error := self.fails(item.id, attempt)) is not None:
            raise error
        async with fresh():
            reward = self.rewards(item.id, attempt)
            return Verdict(reward=reward, parts={"all": reward}, phase="tests", detail="so")


def options(**given: Any) -> RolloutOptions:
    return RolloutOptions(
        **{"environment": "world", "seed": 1, "group_size": 2, "parallel": 3, "tools": (), **given}
    )


def said(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
    return f"{name} {arguments['command']} of {task_id}"


def parts(environment: Any = None, model: Any = None, slots: Any = None, **more: Any) -> Parts:
    """Return parts of a run; without an environment, a world."""

    async def handle(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        return said(name, arguments, task_id)

    tools = Tools(schemas=(BASH,), handler=handle)
    chosen = {
        "environment": World() if environment is None else environment,
        "model": model or FakeModel(),
        "slots": slots or FakeSlots(),
        "toolset": lambda lease: tools,
    }
    return Parts(**{**chosen, **more})


def rollouts(
    environment: Any = None,
    run_dir: Path | None = None,
    *,
    model: Any = None,
    slots: Any = None,
    agent: Any = None,
    on_event: Callable[[RolloutEvent], None] = lambda _: None,
    keep: Keep = lambda _: None,
    **given: Any,
) -> RolloutSummary:
    """Run rollouts to their end."""
    return asyncio.run(
        run_rollouts(
            RUNTIME,
            options(**given),
            run_dir=run_dir,
            parts=parts(environment, model, slots, agent=agent),
            on_event=on_event,
            keep=keep,
        )
    )


def cancel(work: Any, begun: Callable[[], bool]) -> None:
    """Run a coroutine, and cancel it when something has begun."""

    async def run() -> None:
        task = asyncio.create_task(work)
        async with asyncio.timeout(60):
            while not begun():
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(run())
