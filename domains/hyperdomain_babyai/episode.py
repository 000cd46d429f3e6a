"""One episode: the world on the host, and its messages to the agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyperdomain_babyai.words import ACTIONS, describe

MAX_TURNS = 64
_MAX_KEPT_CHARACTERS = 40


class Episode:
    """A world and its mission; the dialogue of one task."""

    def __init__(self, level: str, seed: int) -> None:
        """Make the world.

        Args:
            level: minigrid's name of the level.
            seed: the seed of the world.
        """
        import gymnasium
        import minigrid.envs.babyai.core.roomgrid_level as levels

        levels.__dict__["print"] = _say_nothing  # it prints each world that it rejects to our standard output
        self._world = gymnasium.make(level)
        self._seen, _ = self._world.reset(seed=seed)
        self._turns, self._failed, self._progress = 0, 0, 0.0
        self._actions: list[str] = []
        self._over = False

    def begin(self) -> Mapping[str, Any]:
        """Return the mission and the first view."""
        return self._told("")

    def reply(self, prediction: Any) -> Mapping[str, Any] | None:  # noqa: ANN401 - any JSON value
        """Do the agent's action if it is valid; return the next view, or None at the end of the episode.

        Each reply counts as a turn; an invalid action changes nothing in the world.
        """
        self._turns += 1
        said = " ".join(prediction.split()).casefold() if type(prediction) is str else ""
        self._actions.append(said[:_MAX_KEPT_CHARACTERS])
        if said in ACTIONS:
            self._act(ACTIONS[said])
        else:
            self._failed += 1
        if self._over or self._turns >= MAX_TURNS:
            return None
        return self._told("" if said in ACTIONS else "That is none of the actions; nothing happened.")

    def outcome(self, problem: str | None) -> Mapping[str, Any]:
        """Return the progress, the number of turns, the actions and the problem.

        Args:
            problem: why the episode ended early, or None.
        """
        return {
            "progress": self._progress,
            "turns": self._turns,
            "failed_actions": self._failed,
            "actions": self._actions,
            "problem": problem,
        }

    def close(self) -> None:
        """Close the world."""
        self._world.close()

    def _act(self, action: int) -> None:
        self._seen, reward, terminated, truncated, _ = self._world.step(action)
        self._progress = max(self._progress, 1.0 if float(reward) > 0 else _done(self._mission()))
        self._over = bool(terminated or truncated)

    def _mission(self) -> Any:  # noqa: ANN401 - minigrid has no types
        world: Any = self._world.unwrapped
        return world.instrs

    def _told(self, note: str) -> Mapping[str, Any]:
        return {
            "mission": str(self._seen["mission"]),
            "observation": describe(self._seen["image"]),
            "actions": list(ACTIONS),
            "turn": self._turns + 1,
            "max_turns": MAX_TURNS,
            "note": note,
        }


def _say_nothing(*_: object) -> None:
    """Print nothing."""


def _done(instruction: Any) -> float:  # noqa: ANN401 - minigrid has no types
    """Return the completed part of an unfinished mission: halves count if the mission has two, otherwise 0."""
    if not hasattr(instruction, "a_done"):
        return 0.0
    halves = ((instruction.a_done, instruction.instr_a), (instruction.b_done, instruction.instr_b))
    return sum(0.5 if done == "success" else 0.5 * _done(part) for done, part in halves)
