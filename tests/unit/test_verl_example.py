"""The example for verl, with stand-ins for verl's classes and for the engine."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from hyperruntime.errors import PoolError
from hyperruntime.pool.pool import SlotPool
from tests.doubles.slots import PromisedRuntime

EXAMPLE = Path(__file__).parents[2] / "examples/verl/hyperruntime_verl.py"


class BaseTool:
    """Stands for verl's class of tools."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        self.config, self.tool_schema = config, tool_schema


class AgentLoopBase:
    """Stands for verl's class of agent loops."""


class Conversation:
    """Stands for the data of a trajectory, which verl's loop gives to each call."""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of the example; all else of verl is a mock."""
    loops = MagicMock(AgentLoopBase=AgentLoopBase, register=lambda _: lambda made: made)
    stand_ins = {
        "omegaconf": MagicMock(),
        "verl.experimental.agent_loop.agent_loop": loops,
        "verl.experimental.agent_loop.tool_parser": MagicMock(),
        "verl.tools.base_tool": MagicMock(BaseTool=BaseTool),
        "verl.tools.schemas": MagicMock(ToolResponse=types.SimpleNamespace),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    spec = importlib.util.spec_from_file_location("hyperruntime_verl", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def runtime(example: Any, monkeypatch: pytest.MonkeyPatch) -> PromisedRuntime:
    made = PromisedRuntime()
    monkeypatch.setattr(example, "shared_runtime", lambda _: made)
    return made


def tool_of(example: Any, **config: Any) -> Any:
    return example.BashTool({"type": "native", "image": "promised:1", **config})


async def text_of(tool: Any, name: str, **options: Any) -> str:
    response, reward, metrics = await tool.execute(name, {"command": "true"}, **options)
    assert (reward, metrics) == (0.0, {})
    return str(response.text)


def test_rows_name_the_items_of_an_environment(example: Any) -> None:
    rows = example.dataset_rows("toy")
    assert [row["extra_info"]["item"] for row in rows] == ["red", "green", "blue"]
    assert {row["agent_name"] for row in rows} == {example.NAME}


def test_a_slot_is_that_of_the_trajectory_else_that_of_the_instance(
    example: Any, runtime: PromisedRuntime
) -> None:
    async def work() -> None:
        tool = tool_of(example, slots_per_container=3, max_containers=1)
        conversation: Any = Conversation()
        names = [(await tool.create())[0] for _ in range(2)]
        calls = [text_of(tool, name, agent_data=conversation) for name in names * 2]
        assert ['"exit_code": 0' in text for text in await asyncio.gather(*calls)] == [True] * 4
        pool = await tool._pools.pool()
        assert pool.status().leased == 1
        await text_of(tool, names[0])
        assert pool.status().leased == 2
        await tool.release(names[0])
        await tool.release("never made")
        assert pool.status().leased == 1
        del conversation, calls
        gc.collect()
        async with asyncio.timeout(60):
            while pool.status().leased:
                await asyncio.sleep(0.01)
        await tool._pools.stop()

    asyncio.run(work())


def test_a_slot_that_could_not_be_had_or_was_lost_is_asked_for_again(
    example: Any, runtime: PromisedRuntime
) -> None:
    async def work() -> None:
        tool = tool_of(example, slots_per_container=1, max_containers=1)
        with pytest.MonkeyPatch.context() as patch:
            refused = AsyncMock(side_effect=PoolError("no slot became free"))
            patch.setattr(SlotPool, "acquire", refused)
            assert "no slot became free" in await text_of(tool, "first")
        assert '"exit_code": 0' in await text_of(tool, "first")
        runtime.containers[0].end()
        said = [await text_of(tool, "first") for _ in range(2)]
        assert ["error" in text for text in said] == [True, False]
        await tool.release("first")
        await tool._pools.stop()

    asyncio.run(work())
