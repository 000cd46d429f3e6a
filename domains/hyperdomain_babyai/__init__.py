"""The domain ``babyai``: episodes in a small world of rooms, described in words; the agent names
one action per turn.

The world (the package ``minigrid``) runs on the host. The agent gets the mission and its view, but
not the world's state or seed. The domain needs the extra ``babyai``. ``babyai:LEVEL+LEVEL`` plays
other levels of minigrid than the five default ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from hyperdomain_babyai.episode import Episode
from hyperruntime.domain import Dialogue, DialogueDomain, DomainBase, Score, Split, Task
from hyperruntime.errors import ExtraMissingError, SpecError, unknown_name

__all__ = ["BabyAI"]

LEVELS = ("GoToLocal-v0", "PickupLoc-v0", "OpenDoor-v0", "PutNextLocal-v0", "GoToSeqS5R2-v0")
EPISODES = 2
_FIRST_SEEDS: Mapping[str, int] = {"train": 1000, "val": 2000, "test": 3000}
_PREFIX = "BabyAI-"


class BabyAI(DomainBase, DialogueDomain):
    """Follow a mission in a world that is described in words.

    Attributes:
        name: the name of the entry point.
        description: one line for ``hyperrun domains``.
        splits: the splits; each has the same levels with other worlds.
        agent: the agent template.
        task_timeout_s: the deadline of one episode, in seconds.
        parallel_tasks: True, because agents mostly wait for a model.
    """

    name: str = "babyai"
    description: str = "missions in a world of rooms, described in words (BabyAI on minigrid)"
    splits: tuple[Split, ...] = (
        Split(name="train", staged_samples=1),
        Split(name="val"),
        Split(name="test"),
    )
    agent: str = "llm"
    task_timeout_s: float = 1200.0
    parallel_tasks: bool = True

    def __init__(self, levels: str | None = None) -> None:
        """Choose the levels.

        Args:
            levels: names of minigrid's BabyAI levels, joined by ``+``; None means the five default
                ones.
        """
        self._levels = (
            LEVELS
            if levels is None
            else tuple(name.removeprefix(_PREFIX) for name in levels.split("+"))
        )

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the episodes of a split, in rounds of one episode per level.

        Args:
            split: the name of the split.
            limit: the largest number of episodes; None means all.

        Raises:
            KeyError: the split is unknown.
            ExtraMissingError: minigrid is not installed.
            SpecError: a level is unknown or duplicated.
        """
        if find_spec("minigrid") is None:
            raise ExtraMissingError("tasks of the domain babyai", "minigrid", "babyai")
        if self._levels is not LEVELS:
            _check_levels(self._levels)
        if split not in _FIRST_SEEDS:
            raise KeyError(split)
        return tuple(
            # agents see ids, so ids do not hold the seed
            Task(id=f"{level}.{split}-{number}", inputs={"level": level})
            for number in range(EPISODES)
            for level in self._levels
        )[:limit]

    def dialogue(self, task: Task) -> Dialogue:
        """Return a new episode."""
        level, _, which = task.id.rpartition(".")
        split, _, number = which.partition("-")
        return Episode(_PREFIX + level, _FIRST_SEEDS[split] + int(number))

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401 - the outcome of our own episode
        """Return the progress of an episode.

        Args:
            task: the episode's task.
            prediction: the outcome of the episode; None if it was not played.
        """
        if prediction is None:
            prediction = {"progress": 0.0, "problem": "not played", "failed_actions": 0}
        return Score(
            task_id=task.id,
            value=prediction["progress"],
            valid=prediction["problem"] is None,
            detail=prediction["problem"]
            or f"progress {prediction['progress']:g} in {prediction['turns']} turns",
            facts={"level": task.inputs["level"], "failed_actions": prediction["failed_actions"]},
        )

    def report(self, split: str, scores: Sequence[Score]) -> Mapping[str, Any]:
        """Return the average progress in percent with its standard error, in total and per
        level.
        """
        levels = sorted({score.facts["level"] for score in scores})
        average, error = _percent(scores)
        return {
            "domain": self.name,
            "split": split,
            "score": average / 100,
            "total": len(scores),
            "average_progress": average,
            "standard_error": error,
            "environments": {
                level: _of_level([score for score in scores if score.facts["level"] == level])
                for level in levels
            },
        }


def _of_level(scores: Sequence[Score]) -> dict[str, float | int]:
    average, error = _percent(scores)
    return {
        "progression_percentage": average,
        "standard_error": error,
        "episodes_played": len(scores),
        "failed_action_candidates": sum(score.facts["failed_actions"] for score in scores),
    }


def _percent(scores: Sequence[Score]) -> tuple[float, float]:
    """Return the mean and the standard error of the values, in percent."""
    if not scores:
        return 0.0, 0.0
    mean = math.fsum(score.value for score in scores) / len(scores)
    spread = math.fsum((score.value - mean) ** 2 for score in scores) / max(1, len(scores) - 1)
    return 100 * mean, 100 * math.sqrt(spread / len(scores))


def _check_levels(levels: Sequence[str]) -> None:
    import gymnasium
    import minigrid  # noqa: F401 - this import registers the levels in gymnasium

    known = sorted(
        name.removeprefix(_PREFIX) for name in gymnasium.registry if name.startswith(_PREFIX)
    )
    for level in levels:
        if level not in known or levels.count(level) > 1:
            raise SpecError(
                "babyai", level, f"a level, each once: {unknown_name('level', level, known)}"
            )
