"""Work on one row of a batch: lease a slot of its image and run the agent loop in it."""

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
    """Works on rows: ``await worker(row)`` returns the JSON values of the row's result; safe for concurrent calls.

    Attributes:
        lease: ``async with lease(spec, id)`` leases a slot and releases it at the end.
        model: the model.
        toolset: the tools of the agents.
        container: base spec of a row's container; the row's image and cwd replace its image and working directory.
        system: system message for conversations that do not start with one, or "".
        agent: the agent.
        limits: limits of one conversation.
        sampling: sampling parameters.
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
        """Run the conversation of a row and return the JSON values of its result.

        Raises:
            HyperRuntimeError: the model's server fails, no slot is available, or the slot is lost.
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
        """Return the spec of a row's container."""
        spec = self.container
        return attrs.evolve(spec, image=row.image or spec.image, workdir=row.cwd or spec.workdir)

    def opening(self, row: PromptRow) -> tuple[Mapping[str, Any], ...]:
        """Return a row's opening messages, with the system message if the row has none."""
        if self.system and row.messages[0]["role"] != "system":
            return {"role": "system", "content": self.system}, *row.messages
        return tuple(row.messages)
