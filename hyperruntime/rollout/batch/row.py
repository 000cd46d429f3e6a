"""What a batch does with a row: a slot of its image, and the agent loop in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import attrs

from hyperruntime.pool.lease import Lease
from hyperruntime.rollout.agent.agent import Agent, AgentLimits, AgentTask, run_agent
from hyperruntime.rollout.agent.model import Model, Sampling
from hyperruntime.rollout.agent.recorder import RecordedModel, RecordedTools, Stopwatch
from hyperruntime.rollout.agent.toolset import Toolset
from hyperruntime.rollout.batch.prompts import PromptRow
from hyperruntime.spec import ContainerSpec

Leases = Callable[[ContainerSpec, str], AbstractAsyncContextManager[Lease]]


@attrs.frozen(kw_only=True)
class RowWorker:
    """Works on rows, many at a time; ``await attendant(row)`` returns what is written of one.

    Attributes:
        lease: ``lease(spec, id)`` hands out a slot to work in; who leaves its ``async with`` has given it back.
        model: who is asked.
        toolset: which tools they get.
        container: what a row's container begins from: its image and working directory are the row's own, if it has any.
        system: put in front of a conversation that has no system message, or "".
        agent: who asks the model.
        limits: of one conversation.
        sampling: of the model.
    """

    lease: Leases
    model: Model
    toolset: Toolset
    container: ContainerSpec
    system: str = ""
    agent: Agent = run_agent
    limits: AgentLimits = attrs.field(factory=AgentLimits)
    sampling: Sampling = attrs.field(factory=Sampling)

    async def __call__(self, row: PromptRow) -> Mapping[str, Any]:
        """Hold the conversation of a row.

        Raises:
            HyperRuntimeError: the model or the row's slot is gone, or there was none to be had.
        """
        watch = Stopwatch()
        model = RecordedModel(self.model, watch)
        spec = self.container_of(row)
        async with AsyncExitStack() as stack:
            with watch.phase("slot_s"):
                lease = await stack.enter_async_context(self.lease(spec, row.id))
            tools = self.toolset(lease)
            recorded = RecordedTools(tools, model, watch)
            result = await self.agent(
                AgentTask(
                    id=row.id,
                    model=model,
                    messages=self.opening(row),
                    tools=tools.schemas,
                    tool_handler=recorded.handle,
                    limits=self.limits,
                    sampling=self.sampling,
                )
            )
        return {
            "model": self.model.name,
            "messages": [dict(message) for message in result.messages],
            "stop_reason": result.stop_reason,
            "turns": result.turns,
            "tool_calls": result.tool_calls,
            "tool_errors": [*(dict(error) for error in result.tool_errors), *recorded.errors],
            "usage": dict(model.usage),
            "timing": watch.total(),
        }

    def container_of(self, row: PromptRow) -> ContainerSpec:
        """Return the container that a row is worked on in."""
        spec = self.container
        return attrs.evolve(spec, image=row.image or spec.image, workdir=row.cwd or spec.workdir)

    def opening(self, row: PromptRow) -> tuple[Mapping[str, Any], ...]:
        """Return a row's opening messages."""
        if self.system and row.messages[0]["role"] != "system":
            return {"role": "system", "content": self.system}, *row.messages
        return tuple(row.messages)
