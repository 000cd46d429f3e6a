"""Slots in verl (0.9): an agent loop that runs the episodes of an environment, and a tool.

This is an example, not part of the package: its interfaces were tested with verl 0.9 and a scripted
model server, but it never ran in a training. Copy this file to a directory of ``PYTHONPATH``; verl
needs Python 3.11 or 3.12.

**The agent loop.** Each trajectory is an episode in a slot. The file that
``actor_rollout_ref.rollout.agent.agent_loop_config_path`` names::

    - name: hyperruntime
      _target_: hyperruntime_verl.AgentLoop
      environment: toy        # a name, module:Class or path/file.py:Class
      image: base
      turns: 20               # of a conversation
      parallel: 64            # agents of one worker

``runtime`` is the engine, and ``options`` has the options of the environment. The data set is
``pandas.DataFrame(dataset_rows("toy")).to_parquet("train.parquet")``. verl merges the turns, so the
tokens, the mask and the log probabilities are its own. The reward of the environment is in
``reward_score``. An episode that infrastructure failed is tried again, three times in all; then it
is an error, never a reward.

**The tool.** verl's own loop (``tool_agent``) gets ``bash`` in a slot. The file that
``actor_rollout_ref.rollout.multi_turn.tool_config_path`` names::

    tools:
      - class_name: hyperruntime_verl.BashTool
        config: {type: native, image: base, slots_per_container: 8}

``config`` has the keys of a pool, and ``runtime``. verl's loop makes an instance of a tool for each
call, so the slot is that of the trajectory, and is released when the trajectory has ended.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any, cast
from uuid import uuid4

import attrs
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from hyperruntime.adapters.shared_runtime import ensure_image, shared_runtime
from hyperruntime.datasets.left_out import warn_left_out
from hyperruntime.errors import ContextLengthError, RunError, SandboxLostError, StaleLeaseError
from hyperruntime.pool.manager import PoolManager
from hyperruntime.pool.tools import tool_schemas
from hyperruntime.pool.tools.agent_tools import SlotTools
from hyperruntime.pool_values.profiles import Profiles, parse_profile
from hyperruntime.pool_values.results import ExecutionResult, Slot
from hyperruntime.rollout.agent.agent import AgentLimits, run_agent, slot_tools
from hyperruntime.rollout.agent.model import Completion, Model, Sampling
from hyperruntime.rollout.agent.tool_calls import Message, with_calls
from hyperruntime.rollout.loading import load_environment
from hyperruntime.rollout.models.tokenizer import with_object
from hyperruntime.rollout.run.episode import EpisodeContext, Job, Specs, run_episode
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import until_done
from hyperruntime.rollout.run.slot_pools import PooledSlots
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Trajectory
from hyperruntime.rollout.run_files.turn_journal import TurnJournal
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
    warn_left_out(made.left_out, "the environment's option unsupported=fail")
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
        *args: Any,
        environment: str,
        runtime: str | None = None,
        **kwargs: Any,
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
        loop = asyncio.get_running_loop()
        self._episodes = _episodes(loop, environment, runtime, json.dumps(plain))

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Run an episode; one that infrastructure failed is tried again.

        Args:
            sampling_params: of the model.
            kwargs: the row of the dataset; ``extra_info`` names the item.

        Raises:
            RunError: infrastructure failed each attempt.
        """
        item = str(kwargs["extra_info"]["item"])
        return self._output(*await self._episodes.run(item, self, sampling_params))

    def _output(self, model: _ServerModel, trajectory: Trajectory) -> AgentLoopOutput:
        most = self.rollout_config.response_length
        start = len(model.ids) - len(model.mask)
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
        self._loop = loop
        self._params = dict(sampling_params)
        self._request = uuid4().hex
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        self.extra_fields: dict[str, Any] = {}
        self._spoken = 0  # messages whose tokens are in `ids`

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling
    ) -> Completion:
        """Return the next turn; the sampling parameters are those of verl."""
        loop = self._loop
        given = [with_calls(message, with_object) for message in messages]
        schemas = list(tools)
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
        self.ids = merged.token_ids
        self.logprobs = logprobs or []
        self._spoken = len(given) + 1
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
            name = f"call_{self._spoken}_{number}"
            function = {"name": call.name, "arguments": call.arguments}
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


class _Episodes:
    """The environment of the loops of one process, and the slots in which its episodes run."""

    def __init__(self, environment: str, engine: str | None, settings: Mapping[str, Any]) -> None:
        """Load the environment; no container starts yet."""
        runtime = shared_runtime(engine)
        image = ensure_image(runtime, settings.get("image", "base"))
        self._options = options = RolloutOptions(
            environment=environment,
            environment_options=settings.get("options", {}),
            parallel=settings.get("parallel", 64),
            limits=AgentLimits(turns=settings.get("turns", 30)),
            container=ContainerSpec(image=image),
        )
        made, base = load_environment(environment, options.environment_options), options.base_spec()
        self._items = {item.id: item for item in made.items()}
        self._numbers = itertools.count()
        self._context = EpisodeContext(
            options=options,
            environment=made,
            model=cast(Model, None),  # each trajectory has its own
            slots=PooledSlots(runtime, options, made),
            specs=Specs(lambda item: made.spec(item, base, runtime.images)),
            toolset=slot_tools(options.tools),
            agent=run_agent,
        )

    async def run(
        self, item: str, loop: AgentLoop, params: Mapping[str, Any]
    ) -> tuple[_ServerModel, Trajectory]:
        """Return a trajectory that has ended, and its model; infrastructure failures are retried.

        Raises:
            RunError: infrastructure failed each attempt.
        """
        job = Job(item=self._items[item], index=next(self._numbers))
        models: list[_ServerModel] = []

        async def attempt() -> Trajectory:
            models.append(_ServerModel(loop, params))
            context = attrs.evolve(self._context, model=models[-1])
            return await run_episode(context, attrs.evolve(job, journal=TurnJournal()))

        trajectory = await until_done(attempt, self._options.attempts)
        if trajectory.status == INFRASTRUCTURE:
            why = f"the trajectory {job.id} failed {len(models)} times: {trajectory.error}"
            raise RunError(why)
        return models[-1], trajectory


@cache
def _episodes(
    _: asyncio.AbstractEventLoop, environment: str, engine: str | None, settings: str
) -> _Episodes:
    return _Episodes(environment, engine, json.loads(settings))


class BashTool(BaseTool):
    """Runs the calls of one trajectory in one slot; all calls are on one event loop, as in verl's
    workers.

    A call whose slot was lost says so, and the next one gets a new slot.
    """

    def __init__(
        self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None
    ) -> None:
        """Configure the pool, which starts with the first call; no ``tool_schema`` means that of
        ``bash``.
        """
        (bash,) = tool_schemas(("bash",))
        super().__init__(config, tool_schema or OpenAIFunctionToolSchema.model_validate(bash))
        given = {key: value for key, value in config.items() if key not in ("type", "runtime")}
        runtime = shared_runtime(config.get("runtime"))
        given["image"] = ensure_image(runtime, given.get("image", "base"))
        self._pools = PoolManager(runtime, Profiles.of(parse_profile("verl", given)))
        # by trajectory; of a loop that has none, by instance
        self._of_trajectories: MutableMapping[Any, _Slots] = weakref.WeakKeyDictionary()
        self._of_instances: dict[str, _Slots] = {}

    async def create(
        self,
        instance_id: str | None = None,
        **kwargs: Any,
    ) -> tuple[str, ToolResponse]:
        """Return the id of an instance; a slot is leased with the first call."""
        return instance_id or str(uuid4()), ToolResponse()

    async def execute(
        self,
        instance_id: str,
        parameters: dict[str, Any],
        **kwargs: Any,
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Run a command; return its output as the agents of rollouts see it, no reward, and no
        metrics.
        """
        trajectory = kwargs.get("agent_data")
        known: MutableMapping[Any, _Slots] = self._of_trajectories
        owner = trajectory
        if trajectory is None:
            known, owner = self._of_instances, instance_id
        if owner not in known:
            known[owner] = _Slots(self._pools)
            if trajectory is not None:
                weakref.finalize(trajectory, _end_soon, asyncio.get_running_loop(), known[owner])
        text = await SlotTools(known[owner].call).tool_handler("bash", parameters, instance_id)
        return ToolResponse(text=text), 0.0, {}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Release the slot of an instance; its files and processes are removed."""
        if slots := self._of_instances.pop(instance_id, None):
            await slots.end()


class _Slots:
    """The slot of one trajectory; another one after it was lost."""

    def __init__(self, pools: PoolManager) -> None:
        """Lease no slot yet."""
        self._pools = pools
        self._leasing: asyncio.Future[Slot] | None = None

    async def call(self, tool: str, args: Mapping[str, Any]) -> ExecutionResult:
        """Call a tool; calls that begin at the same time share one slot."""
        pool = await self._pools.pool()
        leasing = self._leasing = self._leasing or asyncio.ensure_future(pool.acquire())
        try:
            return await pool.execute(await asyncio.shield(leasing), tool, args)
        except (SandboxLostError, StaleLeaseError):
            if self._leasing is leasing:  # no other call has found it before
                await self.end()
            raise
        finally:
            has_failed = leasing.done() and (leasing.cancelled() or leasing.exception())
            if has_failed and self._leasing is leasing:
                self._leasing = None

    async def end(self) -> None:
        """Release the slot, which ends its processes and removes its files; may be called again."""
        leasing, self._leasing = self._leasing, None
        if leasing is not None:
            await (await self._pools.pool()).release_if_held(await leasing)


def _end_soon(loop: asyncio.AbstractEventLoop, slots: _Slots) -> None:
    """Release the slot of a trajectory that has ended; the thread that drops it calls this."""
    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(slots.end(), loop)
