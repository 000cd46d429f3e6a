"""The domains ``nle`` (NetHack) and ``minihack`` (small levels of NetHack), shown on a terminal.

The game (the packages ``nle`` and ``minihack``) runs on the host. The domains need the extras of
their names. ``minihack:LEVEL+LEVEL`` plays other levels than the default ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyperdomain_nethack.game import Game, depth_or_experience, nothing_yet
from hyperdomain_worlds import World, WorldDomain

__all__ = ["NLE", "MiniHack"]


class NLE(WorldDomain):
    """Play NetHack: go down, gain experience, and stay alive.

    Attributes:
        name: the name of the entry point.
        description: one line for ``hyperrun domains``.
    """

    name: str = "nle"
    description: str = "NetHack on its terminal: depth and experience"
    default_levels: tuple[str, ...] = ("NetHack",)
    task_timeout_s: float = 7200.0
    episodes: int = 5
    module: str = "nle"
    prefix: str = ""
    max_turns: int = 1000

    def known_levels(self) -> Sequence[str]:
        """Return the only level, the whole game."""
        return self.default_levels

    def open_world(self, level: str, seed: int) -> World:
        """Return a new game."""
        import gymnasium
        import nle  # noqa: F401 - this import registers the games in gymnasium
        from nle import nethack

        # what NetHackChallenge-v0 is, which refuses a seed
        game: Any = gymnasium.make(
            "NetHackScore-v0",
            actions=nethack.ACTIONS,
            allow_all_modes=True,
            allow_all_yn_questions=True,
            fix_moon_phase=True,
            max_episode_steps=100 * self.max_turns,
            **Game.OPTIONS,
        )
        mission = "Descend, gain experience and stay alive."
        return Game(game, seed, self.max_turns, mission, depth_or_experience)


class MiniHack(WorldDomain):
    """Solve small levels of NetHack.

    Attributes:
        name: the name of the entry point.
        description: one line for ``hyperrun domains``.
    """

    name: str = "minihack"
    description: str = "small levels of NetHack on its terminal (MiniHack)"
    # Those of HyperAgents whose maps the package has: Boxoban's are a download.
    default_levels: tuple[str, ...] = (
        "MazeWalk-9x9-v0",
        "MazeWalk-15x15-v0",
        "Corridor-R3-v0",
        "CorridorBattle-Dark-v0",
        "Quest-Easy-v0",
        "Quest-Medium-v0",
    )
    episodes: int = 5
    module: str = "minihack"
    prefix: str = "MiniHack-"
    max_turns: int = 100

    def known_levels(self) -> Sequence[str]:
        """Return the levels that gymnasium knows."""
        import gymnasium
        import minihack  # noqa: F401 - this import registers the levels in gymnasium

        return [
            name.removeprefix(self.prefix)
            for name in gymnasium.registry
            if name.startswith(self.prefix)
        ]

    def open_world(self, level: str, seed: int) -> World:
        """Return a new game.

        Raises:
            SpecError: the maps of the level are not installed.
        """
        import gymnasium
        import minihack  # noqa: F401 - this import registers the levels in gymnasium

        game: Any = gymnasium.make(
            self.prefix + level, autopickup=False, max_episode_steps=2 * self.max_turns,
            **Game.OPTIONS,
        )  # fmt: skip
        mission = "Reach the stairs down, or do what the level is about."
        return Game(game, seed, self.max_turns, mission, nothing_yet)
