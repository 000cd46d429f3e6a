"""The programs of docs/writing-an-environment.md run unchanged."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.rollout.loading import load_environment
from tests.swecase import outcome

pytestmark = pytest.mark.engine
TEXT = Path(__file__).parents[2] / "docs" / "writing-an-environment.md"


def blocks() -> list[str]:
    """Return the Python programs of the page."""
    return re.findall(r"```python\n(.*?)```", TEXT.read_text(), re.DOTALL)


def rewards(runtime: hr.Runtime, image: str, reference: str, commands: list[str]) -> list[float]:
    """Return the reward of each command's agent, on the first item of an environment."""
    environment = load_environment(reference, {"words": "pebble"})
    item = next(iter(environment.items()))
    spec = environment.spec(item, hr.ContainerSpec(image=image), runtime.images)

    async def run() -> list[float]:
        found = []
        judging = PoolConfig(spec=spec, name="judges", slots_per_container=1)
        async with (
            SlotPool(runtime, PoolConfig(spec=spec)) as agents,
            SlotPool(runtime, judging) as judges,
        ):
            for command in commands:
                async with agents.lease(item.id) as lease:
                    meta = await environment.setup(item, lease)
                    assert environment.messages(item, meta)[-1]["role"] == "user"
                    await lease.exec(["bash", "-c", command])
                    fresh = lambda spec=None: judges.lease()  # noqa: E731
                    verdict = await environment.verify(item, outcome(), lease, fresh, meta)
                    found.append(verdict.reward)
        return found

    return asyncio.run(run())


def test_thirty_lines_make_an_environment(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """The first program of the page."""
    assert len([line for line in blocks()[0].splitlines() if line.strip()]) <= 30
    (tmp_path / "backwards.py").write_text(blocks()[0])
    commands = ["rev word.txt > answer.txt", "cp word.txt answer.txt", "true"]
    assert rewards(runtime, base_image, f"{tmp_path}/backwards.py:Backwards", commands) == [
        1.0,
        0.0,
        0.0,
    ]


def test_a_program_is_judged_in_a_container_that_its_author_never_used(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """The second program of the page, which needs the first."""
    (tmp_path / "programs.py").write_text("\n\n".join(blocks()))
    commands = [
        "echo 'print(input()[::-1])' > backwards.py",
        "echo 'print(open(\"word.txt\").read()[::-1])' > backwards.py",
        "echo 'print(\"elbbep\"[::-1])' > backwards.py",
    ]
    assert rewards(runtime, base_image, f"{tmp_path}/programs.py:Programs", commands) == [
        1.0,
        0.0,
        0.0,
    ]
