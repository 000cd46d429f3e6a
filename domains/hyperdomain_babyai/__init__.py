"""The domain ``babyai``: missions in a small world of rooms, described in words.

The world (the package ``minigrid``) runs on the host. The domain needs the extra ``babyai``.
``babyai:LEVEL+LEVEL`` plays other levels of minigrid than the five default ones, and
``babyai:original`` the five tasks of HyperAgents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyperdomain_babyai.episode import Episode
from hyperdomain_worlds import World, WorldDomain

__all__ = ["BabyAI"]

ORIGINAL = "original"
# The tasks of HyperAgents, which takes them from BALROG; see `original`.
ORIGINAL_LEVELS = (
    "Local-goto",
    "Local-pickup",
    "Local-open",
    "Local-putnext",
    "Local-pick_up_seq_go_to",
)
ORIGINAL_EPISODES = 10


class BabyAI(WorldDomain):
    """Follow a mission in a world that is described in words.

    Attributes:
        name: the name of the entry point.
        description: one line for ``hyperrun domains``.
    """

    name: str = "babyai"
    description: str = "missions in a world of rooms, described in words (BabyAI on minigrid)"
    default_levels: tuple[str, ...] = (
        "GoToLocal-v0",
        "PickupLoc-v0",
        "OpenDoor-v0",
        "PutNextLocal-v0",
        "GoToSeqS5R2-v0",
    )
    module: str = "minigrid"
    prefix: str = "BabyAI-"

    def __init__(self, levels: str | None = None) -> None:
        """Choose the levels.

        Args:
            levels: names of minigrid's BabyAI levels, joined by ``+``; None means the five default
                ones, and ``original`` the tasks of HyperAgents.
        """
        if levels == ORIGINAL:
            self.episodes = ORIGINAL_EPISODES
        super().__init__("+".join(ORIGINAL_LEVELS) if levels == ORIGINAL else levels)

    def known_levels(self) -> Sequence[str]:
        """Return the levels that gymnasium knows, and those of HyperAgents."""
        import gymnasium
        import minigrid  # noqa: F401 - this import registers the levels in gymnasium

        names = [
            name.removeprefix(self.prefix)
            for name in gymnasium.registry
            if name.startswith(self.prefix)
        ]
        return (*names, *ORIGINAL_LEVELS)

    def open_world(self, level: str, seed: int) -> World:
        """Return a new episode."""
        return Episode(_environment(self.prefix, level), seed)


def _environment(prefix: str, level: str) -> Any:  # noqa: ANN401 - minigrid has no types
    if level in ORIGINAL_LEVELS:
        from hyperdomain_babyai.original import Local

        return Local(level.partition("-")[2])
    import gymnasium
    import minigrid  # noqa: F401 - this import registers the levels in gymnasium

    return gymnasium.make(prefix + level)
