"""Single episodes: each with its own model, in a slot, and begun anew when infrastructure fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.adapters.episodes import Episodes
from hyperruntime.errors import ModelError, RunError, SpecError
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.agent.tool_calls import Message, normalized_message

pytestmark = pytest.mark.engine


class OneCommand:
    """A model that runs one command."""

    name = "one command"

    def __init__(self, command: str, *, fails: bool = False) -> None:
        self._call = (
            f'<tool_call>{{"name": "bash", "arguments": {{"command": "{command}"}}}}</tool_call>'
        )
        self.turns, self._fails = 0, fails

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling
    ) -> Completion:
        """Return the command, then the end."""
        if self._fails:
            raise ModelError("no answer")
        self.turns += 1
        said = normalized_message(
            {"role": "assistant", "content": self._call if self.turns == 1 else "done"}, self.turns
        )
        return Completion(message=said, finish_reason="stop", usage={})

    async def close(self) -> None:
        """Do nothing."""


async def run(runtime: hr.Runtime, image: str) -> None:
    container = hr.ContainerSpec(image=image)
    episodes = Episodes(
        runtime, hr.RolloutOptions(environment="toy", container=container, parallel=2, attempts=2)
    )
    models: list[Any] = [OneCommand("", fails=True), OneCommand("printf red > answer.txt")]
    wrong = OneCommand("printf blue > answer.txt")
    try:
        (model, right), (_, other) = await asyncio.gather(
            episodes.run("red", lambda: models.pop(0)), episodes.run("red", lambda: wrong)
        )
        assert (model.turns, right.reward, right.turns, other.reward) == (2, 1.0, 2, 0.0)
        with pytest.raises(RunError, match=r"2 times.*no answer"):
            await episodes.run("red", lambda: OneCommand("", fails=True))
        with pytest.raises(SpecError, match="purple"):
            await episodes.run("purple", lambda: wrong)
    finally:
        await episodes.close()


def test_each_episode_has_its_model_and_its_slot(runtime: hr.Runtime, base_image: str) -> None:
    asyncio.run(run(runtime, base_image))
