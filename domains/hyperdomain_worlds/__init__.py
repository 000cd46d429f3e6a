"""Base classes of domains whose tasks are episodes in worlds: an agent names one action per turn.

The world runs on the host. The agent gets its view, but not the world's state or seed.
``hyperdomain_babyai`` and ``hyperdomain_nethack`` have the worlds.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from hyperruntime.domain import Dialogue, DialogueDomain, DomainBase, Score, Split, Task
from hyperruntime.errors import ExtraMissingError, SpecError, unknown_name

__all__ = ["World", "WorldDomain"]

_FIRST_SEEDS: Mapping[str, int] = {"train": 1000, "val": 2000, "test": 3000}
_MAX_KEPT_CHARACTERS = 40


class WorldDomain(DomainBase, DialogueDomain):
    """Episodes on levels; a subclass has the attributes ``name`` and ``description``, too.

    Attributes:
        splits: the splits; each has the same levels with other worlds.
        agent: the agent template.
        task_timeout_s: the deadline of one episode, in seconds.
        parallel_tasks: True, because agents mostly wait for a model.
        default_levels: the levels that are played if the user names none.
        episodes: the number of episodes of each level and split.
        module: the Python module of the worlds, which the extra of the domain's name installs.
        prefix: the part of a level's name that the user may leave out.
    """

    splits: tuple[Split, ...] = (
        Split(name="train", staged_samples=1),
        Split(name="val"),
        Split(name="test"),
    )
    agent: str = "llm"
    task_timeout_s: float = 1200.0
    parallel_tasks: bool = True
    default_levels: tuple[str, ...]
    episodes: int = 2
    module: str
    prefix: str

    def __init__(self, levels: str | None = None) -> None:
        """Choose the levels.

        Args:
            levels: names of levels, joined by ``+``; None means the default ones.
        """
        self._levels = (
            self.default_levels
            if levels is None
            else tuple(name.removeprefix(self.prefix) for name in levels.split("+"))
        )

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the episodes of a split, in rounds of one episode per level.

        Args:
            split: the name of the split.
            limit: the largest number of episodes; None means all.

        Raises:
            KeyError: the split is unknown.
            ExtraMissingError: the worlds are not installed.
            SpecError: a level is unknown or duplicated.
        """
        if find_spec(self.module) is None:
            raise ExtraMissingError(f"tasks of the domain {self.name}", self.module, self.name)
        if self._levels is not self.default_levels:
            self._check_levels()
        if split not in _FIRST_SEEDS:
            raise KeyError(split)
        return tuple(
            # agents see ids, so ids do not hold the seed
            Task(id=f"{level}.{split}-{number}", inputs={"level": level})
            for number in range(self.episodes)
            for level in self._levels
        )[:limit]

    def dialogue(self, task: Task) -> Dialogue:
        """Return a new episode."""
        level, _, which = task.id.rpartition(".")
        split, _, number = which.partition("-")
        return self.open_world(level, _FIRST_SEEDS[split] + int(number))

    @abstractmethod
    def known_levels(self) -> Sequence[str]:
        """Return the names of all levels, without the prefix."""

    @abstractmethod
    def open_world(self, level: str, seed: int) -> World:
        """Return a new world of a level, always the same one for a seed."""

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

    def _check_levels(self) -> None:
        known = sorted(self.known_levels())
        for level in self._levels:
            if level not in known or self._levels.count(level) > 1:
                raise SpecError(
                    self.name, level, f"a level, each once: {unknown_name('level', level, known)}"
                )


class World(Dialogue):
    """One episode; the dialogue of one task.

    Attributes:
        progress: how much of the level is done, in [0, 1].
        over: whether the world has ended.
    """

    def __init__(self, max_turns: int) -> None:
        """Begin to count turns.

        Args:
            max_turns: the episode ends after this number of turns.
        """
        self.progress = 0.0
        self.over = False
        self._max_turns = max_turns
        self._turns = 0
        self._failed = 0
        self._said: list[str] = []

    @abstractmethod
    def actions(self) -> Sequence[str]:
        """Return the actions of this turn; a text that differs in case or space is the same."""

    @abstractmethod
    def act(self, action: str) -> None:
        """Do one of the actions, and set ``progress`` and ``over``."""

    @abstractmethod
    def view(self) -> Mapping[str, Any]:
        """Return the inputs of a turn that describe the world."""

    def begin(self) -> Mapping[str, Any]:
        """Return the inputs of the first turn."""
        return self._told("")

    def reply(self, prediction: Any) -> Mapping[str, Any] | None:  # noqa: ANN401 - any JSON value
        """Do the agent's action if it is valid; return the next turn, or None at the end of the
        episode.

        Each reply counts as a turn; an invalid action changes nothing in the world.
        """
        self._turns += 1
        said = " ".join(prediction.split()) if type(prediction) is str else ""
        action = self._named(said)
        self._said.append((action or said)[:_MAX_KEPT_CHARACTERS])
        if action is None:
            self._failed += 1
        else:
            self.act(action)
        if self.over or self._turns >= self._max_turns:
            return None
        return self._told("" if action else "That is none of the actions; nothing happened.")

    def outcome(self, problem: str | None) -> Mapping[str, Any]:
        """Return the progress, the number of turns, the actions and the problem.

        Args:
            problem: why the episode ended early, or None.
        """
        return {
            "progress": self.progress,
            "turns": self._turns,
            "failed_actions": self._failed,
            "actions": self._said,
            "problem": problem,
        }

    def _named(self, said: str) -> str | None:
        """Return the action that an answer names, or None."""
        actions = self.actions()
        if said in actions:
            return said
        alike = [action for action in actions if action.casefold() == said.casefold()]
        return alike[0] if len(alike) == 1 else None

    def _told(self, note: str) -> Mapping[str, Any]:
        return {
            **self.view(),
            "actions": list(self.actions()),
            "turn": self._turns + 1,
            "max_turns": self._max_turns,
            "note": note,
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
