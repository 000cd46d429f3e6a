"""The agent loop: one trajectory of verl is one episode of an environment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

from hyperruntime.adapters.episodes import Episodes
from hyperruntime.adapters.shared_runtime import ensure_image, shared_runtime
from hyperruntime.datasets.left_out import left_out_of, warn_left_out
from hyperruntime.errors import ContextLengthError
from hyperruntime.rollout.agent.agent import AgentLimits
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.agent.tool_calls import Message, with_calls
from hyperruntime.rollout.loading import load_environment
from hyperruntime.rollout.models.tokenizer import with_object
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.spec import ContainerSpec

NAME = "hyperruntime"


def dataset_rows(
    environment: str, options: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a dataset of verl, one for each item of an environment; logs the items
    that it leaves out.

    Args:
        environment: a name, ``module:Class`` or ``path/file.py:Class``, as in the configuration of
            the loop.
        options: options of the environment.
    """
    made = load_environment(environment, options)
    items = list(made.items())
    warn_left_out(left_out_of(made), "the environment's option unsupported=fail")
    return [
        {
            "data_source": environment,
            # the environment makes the messages of an agent
            "prompt": [{"role": "user", "content": item.id}],
            "agent_name": NAME,
            "extra_info": {"item": item.id},
        }
        for item in items
    ]


@register(NAME)
class AgentLoop(AgentLoopBase):
    """Runs the episode of the item that a row of the dataset names; all that it needs is shared by
    the process.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - as in verl
        environment: str,
        runtime: str | None = None,
        **kwargs: Any,  # noqa: ANN401 - as in verl
    ) -> None:
        """Read the configuration.

        Args:
            args: as for the base class.
            environment: as for :func:`dataset_rows`.
            runtime: the engine; None means ``HYPERRUNTIME_RUNTIME``, else the first one that works.
            kwargs: ``options`` of the environment, ``image``, ``turns`` of a conversation, and
                ``parallel``, the number of agents of this process at once; others are those of the
                base class.
        """
        chosen = {
            name: kwargs.pop(name)
            for name in ("options", "image", "turns", "parallel")
            if name in kwargs
        }
        super().__init__(*args, **kwargs)
        self.tool_parser = ToolParser.get_tool_parser(
            self.rollout_config.multi_turn.format, self.tokenizer
        )
        plain = OmegaConf.to_container(OmegaConf.create(chosen))
        self._episodes = _episodes(
            asyncio.get_running_loop(), environment, runtime, json.dumps(plain)
        )

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:  # noqa: ANN401 - as in verl
        """Run an episode; one that infrastructure failed is tried again.

        Args:
            sampling_params: of the model.
            kwargs: the row of the dataset; ``extra_info`` names the item.

        Raises:
            RunError: infrastructure failed each attempt.
        """
        item = str(kwargs["extra_info"]["item"])
        return self._output(
            *await self._episodes.run(item, lambda: _ServerModel(self, sampling_params))
        )

    def _output(self, model: _ServerModel, trajectory: Trajectory) -> AgentLoopOutput:
        most, start = self.rollout_config.response_length, len(model.ids) - len(model.mask)
        model_s, tools_s, verify_s = (
            trajectory.timing.get(f"{name}_s", 0.0) for name in ("model", "tools", "verify")
        )
        return AgentLoopOutput(
            prompt_ids=model.ids[:start],
            response_ids=model.ids[start:][:most],
            response_mask=model.mask[:most],
            response_logprobs=model.logprobs[:most] if model.logprobs else None,
            reward_score=trajectory.reward,
            num_turns=len(trajectory.messages),
            metrics=AgentLoopMetrics(
                generate_sequences=model_s, tool_calls=tools_s, compute_score=verify_s
            ),
            extra_fields={**model.extra_fields, "turn_scores": [], "tool_rewards": []},
        )


class _ServerModel:
    """The model of one trajectory: verl's servers, and the tokens so far as verl merges them."""

    name = "verl"

    def __init__(self, loop: AgentLoop, sampling_params: Mapping[str, Any]) -> None:
        """Begin a conversation."""
        self._loop, self._params, self._request = loop, dict(sampling_params), uuid4().hex
        self.ids, self.mask, self.logprobs = list[int](), list[int](), list[float]()
        self.extra_fields: dict[str, Any] = {}
        self._spoken = 0  # messages whose tokens are in `ids`

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling
    ) -> Completion:
        """Return the next turn; the sampling parameters are those of verl."""
        loop, given, schemas = (
            self._loop,
            [with_calls(message, with_object) for message in messages],
            list(tools),
        )
        if not self.ids:
            self.ids = await loop.ct_build_initial_tokens(given, tools=schemas)
        else:
            merged, self.mask, logprobs = await loop.ct_merge_context_msg(
                given[: self._spoken],
                given,
                self.ids,
                self.mask,
                self.logprobs or None,
                tools=schemas,
            )
            self.ids, self.logprobs = merged.token_ids, logprobs or []
        if len(self.mask) >= loop.rollout_config.response_length:
            raise ContextLengthError("the response has reached rollout.response_length")
        prompt = tuple(self.ids)
        output = await loop.server_manager.generate(
            request_id=self._request, prompt_ids=list(prompt), sampling_params=self._params
        )
        known = self.logprobs if self.logprobs or output.log_probs else None
        merged, self.mask, logprobs = await loop.ct_merge_assistant_token(
            self.ids,
            output.token_ids,
            self.mask,
            known,
            assistant_logprobs=output.log_probs or None,
        )
        self.ids, self.logprobs, self._spoken = merged.token_ids, logprobs or [], len(given) + 1
        self.extra_fields |= output.extra_fields
        is_full = len(self.mask) >= loop.rollout_config.response_length
        return Completion(
            message=await self._message(output.token_ids, schemas),
            finish_reason="length" if is_full else "stop",
            usage={"prompt_tokens": len(prompt), "completion_tokens": len(output.token_ids)},
            prompt_ids=prompt,
            ids=tuple(output.token_ids),
            logprobs=tuple(output.log_probs) if output.log_probs else None,
        )

    async def _message(self, ids: list[int], tools: Sequence[Message]) -> Message:
        schemas = [OpenAIFunctionToolSchema.model_validate(tool) for tool in tools]
        content, calls = await self._loop.tool_parser.extract_tool_calls(ids, schemas)
        written = []
        for number, call in enumerate(calls):
            name, function = (
                f"call_{self._spoken}_{number}",
                {"name": call.name, "arguments": call.arguments},
            )
            written.append(
                {"id": call.tool_call_id or name, "type": "function", "function": function}
            )
        text = content.removesuffix(self._loop.tokenizer.eos_token or "")
        return {
            "role": "assistant",
            "content": text,
            **({"tool_calls": written} if written else {}),
        }

    async def close(self) -> None:
        """Do nothing: the servers are verl's."""


@cache
def _episodes(
    _: asyncio.AbstractEventLoop, environment: str, engine: str | None, settings: str
) -> Episodes:
    runtime, chosen = shared_runtime(engine), json.loads(settings)
    options = RolloutOptions(
        environment=environment,
        environment_options=chosen.get("options", {}),
        parallel=chosen.get("parallel", 64),
        limits=AgentLimits(turns=chosen.get("turns", 30)),
        container=ContainerSpec(image=ensure_image(runtime, chosen.get("image", "base"))),
    )
    return Episodes(runtime, options)
