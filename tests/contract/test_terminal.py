"""Tasks at a terminal on a real engine: images really built, solutions rewarded, nothing else (T4)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperenvironment_terminal import Terminal
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.pool.lease import Lease
from hyperruntime.spec import ContainerSpec
from tests.contract.terminals import attempt, idle

BUILTIN = ("counter-service", "log-report", "lost-commit", "mend-backup")


@pytest.fixture(scope="module")
def builtin(runtime: hr.Runtime, base_image: str) -> Terminal:
    """The tasks that ship with the package, on an engine that has their base image."""
    environment = Terminal()
    if runtime.name == "bubblewrap":
        item = next(iter(environment.items()))
        with pytest.raises(UnsupportedOptionError, match="only image"):
            environment.spec(item, ContainerSpec(image="host"), runtime.images)
        pytest.skip("bubblewrap has only the host's programs: a task's image is refused, as was just seen")
    return environment


@pytest.mark.parametrize("task", BUILTIN)
def test_the_known_solution_is_worth_one(runtime: hr.Runtime, builtin: Terminal, task: str) -> None:
    """T4: the image is built with all that its recipe says, and the tests see what was done."""

    async def solve(lease: Lease) -> None:
        item = next(item for item in builtin.items() if item.id == task)
        (await builtin.solve(item, lease)).check()

    verdict = asyncio.run(attempt(runtime, builtin, task, solve))
    assert (verdict.reward, verdict.phase) == (1.0, "tests"), verdict
    assert verdict.facts["verify"] == "fresh"


@pytest.mark.parametrize("task", BUILTIN)
def test_doing_nothing_is_worth_nothing(runtime: hr.Runtime, builtin: Terminal, task: str) -> None:
    """T4: neither in a fresh container nor in the agent's own."""
    assert asyncio.run(attempt(runtime, builtin, task, idle)).reward == 0.0


def test_an_image_is_built_once(runtime: hr.Runtime, builtin: Terminal, tmp_path: Path) -> None:
    """Its name says what it is made from; what is not changed is not made again."""
    item = next(iter(builtin.items()))
    specs = [builtin.spec(item, ContainerSpec(image="x"), runtime.images) for _ in range(2)]
    assert specs[0] == specs[1]
    assert specs[0].image.startswith("localhost/hyperruntime-task/counter-service:")
