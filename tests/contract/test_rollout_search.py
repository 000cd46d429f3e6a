"""Searches over forks: the paths are trajectories, and no state of one path reaches another."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime.rollout.run.episode import Job
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import Parts, complete_parts, open_here, run_rollouts
from hyperruntime.rollout.run.search import Searches
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.rollout.run_files.run_dir import read_groups, read_trajectories
from tests.contract.test_rollout_groups import Workshop, kept
from tests.doubles.scripted_rollouts import Scripted, ScriptedModel

pytestmark = pytest.mark.engine
WORD = "abba"


def spelling(**given: Any) -> Scripted:
    """Write a word, letter by letter, into a file; a wrong letter cannot be taken back."""
    return Scripted(
        worth=lambda log: float(len(log)) if WORD.startswith(log.decode()) else -1.0,
        reward=lambda log: float(log == WORD.encode()),
        **given,
    )


def spell(turn: int, seed: int) -> str | None:
    """Add a letter that the seed chooses, and leave a process; None after a whole word."""
    add = f"sleep 99 >/dev/null 2>&1 & printf {'ab'[seed % 2]} >>log; cat log"
    return add if turn < len(WORD) else None


def options_of(image: str, **given: Any) -> RolloutOptions:
    return RolloutOptions(
        environment="scripted",
        group_size=2,
        attempts=1,
        seed=3,
        container=hr.ContainerSpec(image=image),
        **{"search": "beam", "search_width": 2, "search_children": 3, "parallel": 4, **given},
    )


def search(
    runtime: hr.Runtime, image: str, run_dir: Path, environment: Any = None, **given: Any
) -> list[Trajectory]:
    options = options_of(image, **given)
    parts = Parts(environment=environment or spelling(), model=ScriptedModel(spell))
    asyncio.run(run_rollouts(runtime, options, run_dir=run_dir, parts=parts))
    return read_trajectories(run_dir)


@pytest.fixture
def searching(runtime: hr.Runtime) -> hr.Runtime:
    if not runtime.info.snapshots:
        pytest.skip(f"{runtime.name} has no snapshots")
    return runtime


def test_a_search_is_refused_where_it_cannot_be(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    wanted = SpecError if runtime.info.snapshots else UnsupportedOptionError
    with pytest.raises(wanted, match="search"):
        search(runtime, base_image, tmp_path / "run", Workshop())


@pytest.mark.parametrize("kind", ["beam", "best"])
def test_the_best_paths_are_the_group_and_a_seed_repeats_them(
    searching: hr.Runtime, base_image: str, tmp_path: Path, kind: str
) -> None:
    environment = spelling()
    found = search(searching, base_image, tmp_path / "run", environment, search=kind)
    assert environment.set_ups == 1
    assert [one.error for one in found] == [None, None]
    assert [(one.stop_reason, one.turns) for one in found] == [("finished", 5)] * 2
    assert found[0].reward == 1.0
    assert read_groups(tmp_path / "run")[0].complete
    for one in found:
        said = [message["content"] for message in one.messages if message["role"] == "tool"]
        words = [json.loads(text)["output"].strip() for text in said]
        assert [len(word) for word in words] == [1, 2, 3, 4]  # no letter of another path
        assert (one.tool_calls, one.usage["completion_tokens"]) == (4, 10)
        ids = {message["tool_call_id"] for message in one.messages if message["role"] == "tool"}
        assert len(ids) == 4
        (segment,) = one.segments
        assert (len(segment.ids), sum(segment.mask)) == (42, 10)
    again = search(searching, base_image, tmp_path / "again", search=kind)
    assert [one.messages for one in again] == [one.messages for one in found]


def test_a_search_ends_with_its_nodes_and_its_paths_are_scored(
    searching: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    found = search(searching, base_image, tmp_path / "run", search_nodes=5)
    assert [(one.stop_reason, one.reward) for one in found] == [("node_limit", 0.0)] * 2
    assert [one.verdict["facts"]["search"]["nodes"] for one in found] == [5, 5]


def test_a_search_is_made_once_for_slow_trajectories_and_nothing_of_it_stays(
    searching: hr.Runtime, base_image: str
) -> None:
    environment = spelling(names=("a", "b", "c"), broken="b")
    options = options_of(base_image, parallel=1, search_nodes=2)
    before = kept(searching)

    async def run() -> list[str]:
        async with AsyncExitStack() as stack:
            parts = Parts(environment=environment, model=ScriptedModel(spell))
            made = await complete_parts(stack, options, parts)
            context = await stack.enter_async_context(open_here(searching, options, made))
            searches = await stack.enter_async_context(Searches(context))
            a, b, c = made.environment.items()
            jobs = [(a, 0), (b, 0), (b, 0), (c, 0), (c, 1), (a, 1)]
            found = [await searches.run(Job(item=item, index=index)) for item, index in jobs]
            assert environment.set_ups == 4  # that of b failed, and was made again
            for item in (a, b):
                await searches.end(item)
            return [one.status for one in found]

    assert asyncio.run(run()) == ["scored", *["infrastructure"] * 2, *["scored"] * 3]
    assert kept(searching) <= before
