"""Terminal tasks on a real engine: their images are built, and only solutions are rewarded (T4)."""

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
from tests.params import first_quick

BUILTIN = ("counter-service", "log-report", "lost-commit", "mend-backup")


@pytest.fixture(scope="module")
def builtin(runtime: hr.Runtime, base_image: str) -> Terminal:
    """The tasks in the package; skip the test on an engine that refuses their images."""
    environment = Terminal()
    if runtime.name == "bubblewrap":
        item = next(iter(environment.items()))
        with pytest.raises(UnsupportedOptionError, match="only image"):
            environment.spec(item, ContainerSpec(image="host"), runtime.images)
        pytest.skip("bubblewrap has only the host's programs; this test has checked that it refuses a task's image")
    return environment


@pytest.mark.parametrize("task", first_quick(*BUILTIN))
def test_the_known_solution_has_reward_1(runtime: hr.Runtime, builtin: Terminal, task: str) -> None:
    """T4: the image is built from its whole recipe, and the tests see the agent's work."""

    async def solve(lease: Lease) -> None:
        item = next(item for item in builtin.items() if item.id == task)
        (await builtin.solve(item, lease)).check()

    verdict = asyncio.run(attempt(runtime, builtin, task, solve))
    assert (verdict.reward, verdict.phase) == (1.0, "tests"), verdict
    assert verdict.facts["verify"] == "fresh"


@pytest.mark.slow
@pytest.mark.parametrize("task", first_quick(*BUILTIN))
def test_doing_nothing_has_reward_0(runtime: hr.Runtime, builtin: Terminal, task: str) -> None:
    """T4: an agent that does nothing has no reward; the known solution shows that the tests work here."""
    verdict = asyncio.run(attempt(runtime, Terminal(), task, idle))
    assert (verdict.reward, verdict.facts["control"]) == (0.0, "the known solution has the reward 1"), verdict


def test_an_image_is_built_once(runtime: hr.Runtime, builtin: Terminal, tmp_path: Path) -> None:
    """The name of the image depends on its sources; unchanged sources are not built again."""
    item = next(iter(builtin.items()))
    specs = [builtin.spec(item, ContainerSpec(image="x"), runtime.images) for _ in range(2)]
    assert specs[0] == specs[1]
    assert specs[0].image.startswith("localhost/hyperruntime-task/counter-service:")
