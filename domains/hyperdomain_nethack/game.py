"""One game of NetHack: its screen as text, and its keys by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from hyperdomain_worlds import World

_DIRECTIONS: Mapping[str, str] = MappingProxyType(
    {
        "N": "north",
        "E": "east",
        "S": "south",
        "W": "west",
        "NE": "northeast",
        "SE": "southeast",
        "SW": "southwest",
        "NW": "northwest",
    }
)
# They end the game or leave it, or need a text that is longer than a key.
_LEFT_OUT = (
    "SAVE",
    "QUIT",
    "SHELL",
    "EXTCMD",
    "EXTLIST",
    "OPTIONS",
    "REDRAW",
    "VERSION",
    "HISTORY",
)
# The game asks in its first line, as in "What do you want to eat? [ab or ?*]", or shows a menu.
_QUESTION = re.compile(r"(?m)\A.*\?( [\[(].*)?\s*$|\((end|\d+ of \d+)\)\s*$")
_MORE = "--More--"
_MAX_MORE = 20
_RETURN = 13
_DEPTH = 12  # places in blstats
_EXPERIENCE_LEVEL = 18
_MOST_DEPTH = 50
_MOST_EXPERIENCE = 30


class Game(World):
    """A game; the dialogue of one task.

    Attributes:
        OPTIONS: the options of nle that every game has.
    """

    OPTIONS: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "character": "@",
            "observation_keys": ("tty_chars", "blstats", "message"),
            "disable_env_checker": True,
        }
    )

    def __init__(
        self,
        game: Any,  # noqa: ANN401 - nle has no types
        seed: int,
        max_turns: int,
        mission: str,
        measure: Callable[[Sequence[int]], float],
    ) -> None:
        """Begin a game.

        Args:
            game: an environment of nle.
            seed: the seed of the dungeon and of the dice.
            max_turns: the episode ends after this number of turns.
            mission: the goal, in words.
            measure: the progress of an unfinished game, from its statistics (``blstats``).
        """
        super().__init__(max_turns)
        self._measure = measure
        self._game = game
        self._world = game.unwrapped
        self._mission = mission
        # wrappers hide the method, and `reset` does not seed the game
        self._world.seed(core=seed, disp=seed, reseed=False)
        self._seen, _ = self._world.reset()
        self._places = {int(action): place for place, action in enumerate(self._world.actions)}
        self._keys = {chr(code): place for code, place in self._places.items() if 32 < code < 127}
        self._names = {
            name: place
            for place, action in enumerate(self._world.actions)
            if (name := _name(action)) is not None
        }
        self._read: list[str] = []

    def actions(self) -> Sequence[str]:
        """Return the names of the commands, and while the game asks also single keys."""
        asked = _QUESTION.search("\n".join(self._screen())) is not None
        return (*self._names, *(key for key in self._keys if asked and key not in self._names))

    def act(self, action: str) -> None:
        """Press the key of an action, and read on while the game says that there is more."""
        self._read = []
        self._step(self._names[action] if action in self._names else self._keys[action])
        more = self._places.get(_RETURN)
        for _ in range(_MAX_MORE):
            if self.over or more is None or _MORE not in "\n".join(self._screen()):
                return
            self._read.append("\n".join(self._screen()).partition(_MORE)[0].strip())
            self._step(more)

    def view(self) -> Mapping[str, Any]:
        """Return the goal, the 24 lines of the screen, and the messages that have scrolled away."""
        return {
            "mission": self._mission,
            "messages": self._read,
            "observation": "\n".join(self._screen()),
        }

    def close(self) -> None:
        """End the game."""
        self._game.close()

    def _step(self, place: int) -> None:
        seen, _, terminated, truncated, facts = self._world.step(place)
        self.over = bool(terminated or truncated)
        if facts["end_status"].name == "TASK_SUCCESSFUL" or facts.get("is_ascended"):
            self.progress = 1.0
        elif not self.over:  # the last screen of a game may be blank
            self._seen = seen
        self.progress = max(self.progress, self._measure(self._seen["blstats"]))

    def _screen(self) -> list[str]:
        return [bytes(row).decode("latin-1").rstrip() for row in self._seen["tty_chars"]]


def depth_or_experience(statistics: Sequence[int]) -> float:
    """Return how far a game of NetHack is, in [0, 1): the larger share of 50 levels of the dungeon
    and of 30 levels of experience.
    """
    return max(
        (int(statistics[_DEPTH]) - 1) / _MOST_DEPTH,
        (int(statistics[_EXPERIENCE_LEVEL]) - 1) / _MOST_EXPERIENCE,
    )


def nothing_yet(statistics: Sequence[int]) -> float:
    """Return 0: a level without parts is done or not."""
    return 0.0


def _name(action: Any) -> str | None:  # noqa: ANN401 - nle has no types
    """Return the name of an action; None for a key that only answers questions, or that is left
    out.
    """
    kind = type(action).__name__
    if kind == "TextCharacters" or action.name in _LEFT_OUT:
        return None
    if kind.startswith("CompassDirection"):
        return ("far " if kind.endswith("Longer") else "") + _DIRECTIONS[action.name]
    return str(action.name).lower()
