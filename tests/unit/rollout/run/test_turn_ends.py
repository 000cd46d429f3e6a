"""The score of a trajectory whose last turn ended for another reason than the model's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest

from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.run_files.record import Trajectory
from tests.unit.rollout.run.test_run import OneWordModel, World, rollouts


class EndingModel(OneWordModel):
    """A model whose turns have a reason for their end."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self._reason = reason

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
    ) -> Completion:
        return attrs.evolve(
            await super().complete(messages, tools, sampling), finish_reason=self._reason
        )


def trajectory(reason: str) -> Trajectory:
    found: list[Trajectory] = []
    rollouts(World(count=1), model=EndingModel(reason), keep=found.append, group_size=1, attempts=1)
    return found[0]


@pytest.mark.parametrize("reason", ["abort", "aborted", "error", "a_new_word"])
def test_a_turn_that_broke_off_is_an_infrastructure_failure_without_a_reward(reason: str) -> None:
    found = trajectory(reason)
    assert (found.status, found.reward, found.stop_reason) == ("infrastructure", None, "")
    assert found.error is not None
    assert (found.error["kind"], found.error["phase"]) == ("ModelError", "agent")
    assert reason in found.error["message"]


@pytest.mark.parametrize(
    ("reason", "ends"),
    [("content_filter", "content_filter"), ("length", "token_limit"), ("stop", "finished")],
)
def test_a_turn_that_the_model_or_a_limit_ended_is_scored(reason: str, ends: str) -> None:
    found = trajectory(reason)
    assert (found.status, found.reward, found.stop_reason) == ("scored", 1.0, ends)
