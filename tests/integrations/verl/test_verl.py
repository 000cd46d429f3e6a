"""The published interface of verl: signatures, and a dry run whose model server is scripted.
Nothing is trained.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import hydra
import pytest
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    DictConfigWrap,
    ToolListWrap,
    _agent_loop_registry,
)
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.base_tool import BaseTool
from verl.tools.tool_registry import load_all_tools
from verl.workers.rollout.replica import TokenOutput

from hyperruntime.errors import PoolError, RunError
from hyperruntime.pool.pool import SlotPool
from hyperruntime_verl import AgentLoop, BashTool, dataset_rows
from tests.integrations.crashes import check_container_ends_with

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
END = "<|im_end|>"
TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
CONFIG = OmegaConf.create(
    {
        "actor_rollout_ref": {
            "rollout": {
                "prompt_length": 20000,
                "response_length": 4000,
                "full_determinism": False,
                "multi_turn": {
                    "format": "hermes",
                    "max_user_turns": None,
                    "max_assistant_turns": None,
                    "max_parallel_calls": 2,
                    "max_tool_response_length": 1000,
                    "tool_response_truncate_side": "middle",
                },
            }
        },
        "data": {},
    }
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes with the chat template of a small model."""
    alphabet = {
        letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    made = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token="<|endoftext|>")
    found.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    found.chat_template = TEMPLATE
    return found


class ScriptedServers:
    """verl's client of model servers: says what a test tells it to, with the log probability -0.5
    of each token.
    """

    def __init__(self, tokenizer: Any, *texts: str) -> None:
        self._tokenizer, self._texts, self.prompts = tokenizer, list(texts), list[str]()

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """Return the next text."""
        self.prompts.append(self._tokenizer.decode(prompt_ids))
        ids = self._tokenizer.encode(self._texts.pop(0) + END, add_special_tokens=False)
        extra = {"global_steps": 7, "min_global_steps": 7, "max_global_steps": 7}
        return TokenOutput(
            token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields=extra
        )


def call(command: str) -> str:
    """Return how a model writes a call of bash."""
    return (
        f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call>"
    )


def make_loop(
    config: Any, tokenizer: Any, servers: ScriptedServers, tools: Sequence[Any] = ()
) -> Any:
    """Return a loop as verl's worker makes one for each trajectory."""
    return hydra.utils.instantiate(
        config=config,
        trainer_config=DictConfigWrap(config=CONFIG),
        server_manager=servers,
        tokenizer=tokenizer,
        processor=None,
        hf_model_type="qwen2",
        dataset_cls=None,
        data_config=DictConfigWrap(CONFIG.data),
        tools=ToolListWrap(list(tools)),
    )


@pytest.fixture
def loop_config(base_image: str, runtime_name: str) -> Any:
    """Return the configuration of the page, with the engine and the image under test."""
    (config,) = OmegaConf.load(HERE / "agent_loop.yaml")
    return OmegaConf.merge(config, {"image": base_image, "runtime": runtime_name, "parallel": 4})


@pytest.mark.parametrize(
    "name", ["create", "execute", "calc_reward", "release", "get_openai_tool_schema", "__init__"]
)
def test_the_tool_has_the_signatures_of_its_base(name: str) -> None:
    _check_signature(getattr(BashTool, name), inspect.unwrap(getattr(BaseTool, name)))


def test_the_agent_loop_has_the_signatures_of_its_base(loop_config: Any) -> None:
    _check_signature(AgentLoop.run, AgentLoopBase.run)
    assert _agent_loop_registry["hyperruntime"]["_target_"].endswith("AgentLoop")
    assert AgentLoop.__abstractmethods__ == frozenset()


def _check_signature(ours: Any, theirs: Any) -> None:
    mine, base = (
        inspect.signature(function).parameters for function in (inspect.unwrap(ours), theirs)
    )
    assert [(one.name, one.kind) for one in mine.values()] == [
        (one.name, one.kind) for one in base.values()
    ]
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)


async def test_a_trajectory_is_an_episode_in_a_slot(loop_config: Any, tokenizer: Any) -> None:
    row = next(row for row in dataset_rows("toy") if row["extra_info"]["item"] == "red")
    assert row["agent_name"] == "hyperruntime"
    servers = ScriptedServers(tokenizer, call("printf red > answer.txt; echo written"), "done")
    loop = make_loop(loop_config, tokenizer, servers)
    output = await loop.run({"temperature": 1.0}, raw_prompt=row["prompt"], index=0, **row)
    assert output.reward_score == 1.0
    lengths = {
        len(part) for part in (output.response_ids, output.response_mask, output.response_logprobs)
    }
    assert len(lengths) == 1
    spoken = [
        token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask
    ]
    assert (
        tokenizer.decode(spoken)
        == call("printf red > answer.txt; echo written") + END + "done" + END
    )
    told = [
        token
        for token, mask in zip(output.response_ids, output.response_mask, strict=True)
        if not mask
    ]
    assert "written" in tokenizer.decode(told)
    pairs = zip(output.response_mask, output.response_logprobs, strict=True)
    assert all((logprob == -0.5) == bool(mask) for mask, logprob in pairs)
    whole = tokenizer.decode([*output.prompt_ids, *output.response_ids])
    assert whole == servers.prompts[-1] + "done" + END
    assert servers.prompts[1].startswith(servers.prompts[0])
    assert (output.num_turns, output.extra_fields["max_global_steps"]) == (4, 7)
    assert output.metrics.tool_calls > 0
    tensors = output.as_dict()
    assert tensors["rm_scores"][-1] == 1.0
    assert tensors["rollout_log_probs"].shape == tensors["responses"].shape


async def test_trajectories_of_one_item_run_at_once_and_apart(
    loop_config: Any, tokenizer: Any
) -> None:
    row = {"extra_info": {"item": "blue"}}
    words = ["blue", "wrong", "blue", "wrong"]
    loops = [
        make_loop(
            loop_config,
            tokenizer,
            ScriptedServers(tokenizer, call(f"ls; printf {word} > answer.txt"), "done"),
        )
        for word in words
    ]
    outputs = await asyncio.gather(*(loop.run({}, raw_prompt=[], **row) for loop in loops))
    assert [output.reward_score for output in outputs] == [1.0, 0.0, 1.0, 0.0]


async def test_a_response_ends_at_its_length(loop_config: Any, tokenizer: Any) -> None:
    servers = ScriptedServers(tokenizer, call("head -c 9000 /dev/zero | tr '\\0' x"), "never asked")
    output = await make_loop(loop_config, tokenizer, servers).run({}, extra_info={"item": "red"})
    assert (
        len(output.response_ids)
        == len(output.response_mask)
        == len(output.response_logprobs)
        == 4000
    )
    assert (len(servers.prompts), output.reward_score) == (1, 0.0)


async def test_an_episode_that_cannot_run_is_no_reward(loop_config: Any, tokenizer: Any) -> None:
    config = OmegaConf.merge(loop_config, {"image": "localhost/no-such-image:1"})
    loop = make_loop(config, tokenizer, ScriptedServers(tokenizer))
    with pytest.raises(RunError, match="no-such-image"):
        await loop.run({}, extra_info={"item": "red"})


@pytest.fixture
async def tool(base_image: str, runtime_name: str, tmp_path: Path) -> AsyncIterator[Any]:
    """Yield the tool of the page's configuration, as verl loads it."""
    config = OmegaConf.load(HERE / "tool.yaml")
    config.tools[0].config.image, config.tools[0].config.runtime = base_image, runtime_name
    config.tools[0].config.slots_per_container = 2
    config.tools[0].config.max_containers = 1
    OmegaConf.save(config, tmp_path / "tool.yaml")
    (found,) = load_all_tools(str(tmp_path / "tool.yaml"), None)
    yield found
    await found._pools.stop()


async def test_instances_have_a_slot_each_until_they_are_released(tool: Any) -> None:
    assert (tool.name, tool.tool_schema.function.parameters.required) == ("bash", ["command"])
    first, created = await tool.create()
    second, _ = await tool.create("second")
    assert (second, created.is_empty()) == ("second", True)
    for name in (first, second):
        response, reward, metrics = await tool.execute(name, {"command": f"echo {name} > mine; ls"})
        assert ("mine" in response.text, reward, metrics) == (True, 0.0, {})
    response, _, _ = await tool.execute(first, {"command": "cat mine"})
    assert first in response.text
    assert await tool.calc_reward(first) == 0.0
    await tool.release(first)
    third, _ = await tool.create()  # there are two slots
    assert "mine" not in (await tool.execute(third, {"command": "ls"}))[0].text
    assert "error" in (await tool.execute(third, {"no command": 1}))[0].text
    for name in (second, third, "never made"):
        await tool.release(name)


async def test_in_verls_own_loop_the_slot_is_that_of_the_trajectory(
    tool: Any, tokenizer: Any
) -> None:
    for word in ("one", "two", "three"):  # one slot for each; there are two
        servers = ScriptedServers(
            tokenizer, call(f"echo {word} >> kept; ls") * 2, call("cat kept"), "done"
        )
        config = {"_target_": f"{ToolAgentLoop.__module__}.ToolAgentLoop"}
        loop = make_loop(config, tokenizer, servers, [tool])
        output = await loop.run({}, raw_prompt=[{"role": "user", "content": "write"}])
        assert output.response_logprobs is not None
        assert f'"{word}\\n{word}\\n"' in servers.prompts[2]
    gc.collect()
    await wait_for_free_slots(tool)


class Conversation:
    """Stands for the data of a trajectory, which verl's loop gives to each call."""


async def test_a_slot_that_could_not_be_had_or_was_lost_is_asked_for_again(tool: Any) -> None:
    for trajectory in (None, Conversation()):
        name, _ = await tool.create()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                SlotPool, "acquire", AsyncMock(side_effect=PoolError("no slot became free"))
            )
            response, _, _ = await tool.execute(name, {"command": "true"}, agent_data=trajectory)
            assert "no slot became free" in response.text
        response, _, _ = await tool.execute(name, {"command": "echo again"}, agent_data=trajectory)
        assert "again" in response.text
        session = (
            tool._of_instances[name] if trajectory is None else tool._of_trajectories[trajectory]
        )
        await tool._pools.release(session._slot)  # as when its container ends
        said = [
            await tool.execute(name, {"command": "echo again"}, agent_data=trajectory)
            for _ in range(2)
        ]
        assert ["lost its container" in response.text for response, _, _ in said] == [True, False]
        await tool.release(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlotPool, "acquire", AsyncMock(side_effect=PoolError("no slot became free")))
        await tool.execute("failed", {"command": "true"})
        await tool.release("failed")


async def wait_for_free_slots(tool: Any) -> None:
    """Wait until all slots are free: two can be leased."""
    names = [(await tool.create())[0] for _ in range(2)]
    await asyncio.gather(*(tool.execute(name, {"command": "true"}) for name in names))
    for name in names:
        await tool.release(name)


KILLED = """
import asyncio, signal, sys
from hyperruntime_verl import BashTool
async def run():
    tool = BashTool({"type": "native", "image": sys.argv[1], "runtime": sys.argv[2]})
    response, _, _ = await tool.execute("one", {"command": "hostname"})
    assert response.text
    print(tool._of_instances["one"]._slot.container, flush=True)
    signal.pause()
asyncio.run(run())
"""


def test_containers_end_with_a_worker_that_is_killed(
    base_image: str, runtime_name: str, engine_command: Any
) -> None:
    check_container_ends_with(KILLED, engine_command, base_image, runtime_name)
