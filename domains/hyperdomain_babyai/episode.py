"""One episode: the world on the host, and its messages to the agent, which describe the view in
words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hyperdomain_worlds import World

MAX_TURNS = 64
ACTIONS: Mapping[str, int] = MappingProxyType(
    {"turn left": 0, "turn right": 1, "go forward": 2, "pick up": 3, "drop": 4, "toggle": 5}
)
"""The agent's actions, each with minigrid's number."""

_DOORS = ("open", "closed", "locked")
_THINGS = ("door", "key", "ball", "box")


class Episode(World):
    """A world and its mission; the dialogue of one task."""

    def __init__(self, world: Any, seed: int) -> None:  # noqa: ANN401 - minigrid has no types
        """Begin an episode.

        Args:
            world: an environment of minigrid.
            seed: the seed of the world.
        """
        import minigrid.envs.babyai.core.roomgrid_level as levels

        super().__init__(MAX_TURNS)
        # it prints each world that it rejects to our standard output
        levels.__dict__["print"] = lambda *_: None
        self._world = world
        self._seen, _ = self._world.reset(seed=seed)

    def actions(self) -> Sequence[str]:
        """Return the names of minigrid's actions."""
        return tuple(ACTIONS)

    def act(self, action: str) -> None:
        """Do an action."""
        self._seen, reward, terminated, truncated, _ = self._world.step(ACTIONS[action])
        instructions = self._world.unwrapped.instrs
        self.progress = max(self.progress, 1.0 if float(reward) > 0 else _done(instructions))
        self.over = bool(terminated or truncated)

    def view(self) -> Mapping[str, Any]:
        """Return the mission and the view."""
        return {
            "mission": str(self._seen["mission"]),
            "observation": describe(self._seen["image"]),
        }

    def close(self) -> None:
        """Close the world."""
        self._world.close()


def _done(instruction: Any) -> float:  # noqa: ANN401 - minigrid has no types
    """Return the completed part of an unfinished mission: halves count if the mission has two,
    otherwise 0.
    """
    if not hasattr(instruction, "a_done"):
        return 0.0
    halves = ((instruction.a_done, instruction.instr_a), (instruction.b_done, instruction.instr_b))
    return sum(0.5 if done == "success" else 0.5 * _done(part) for done, part in halves)


def describe(view: Any) -> str:  # noqa: ANN401 - an array (width, height, 3) of uint8: kind, colour, state
    """Return sentences about a view; the agent is in the middle of the last row and looks up."""
    lines = [f"You see {text}." for text in (*_things(view), *_walls(view))]
    return "\n".join(
        (*lines, _carried(view)) if lines else ("You see nothing near.", _carried(view))
    )


def _things(view: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield all usable things in the view, nearest first."""
    middle = view.shape[0] // 2
    last = view.shape[1] - 1
    cells = [
        (last - y + abs(x - middle), last - y, x - middle)
        for x in range(view.shape[0])
        for y in range(last + 1)
    ]
    for _, forward, right in sorted(cells):
        if (forward or right) and _kind(view, forward, right) in _THINGS:
            yield f"{_named(view, forward, right)} {_place(forward, right)}"


def _walls(view: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield the nearest wall ahead, on the left and on the right."""
    for step_forward, step_right in ((1, 0), (0, -1), (0, 1)):
        for steps in range(1, view.shape[0]):
            forward = steps * step_forward
            right = steps * step_right
            if abs(right) > view.shape[0] // 2:
                break
            if _kind(view, forward, right) == "wall":
                yield f"a wall {_place(forward, right)}"
                break


def _carried(view: Any) -> str:  # noqa: ANN401
    return (
        f"You carry {_named(view, 0, 0)}." if _kind(view, 0, 0) in _THINGS else "You carry nothing."
    )


def _kind(view: Any, forward: int, right: int) -> str:  # noqa: ANN401
    from minigrid.core.constants import IDX_TO_OBJECT

    return str(IDX_TO_OBJECT[int(_cell(view, forward, right)[0])])


def _named(view: Any, forward: int, right: int) -> str:  # noqa: ANN401
    from minigrid.core.constants import IDX_TO_COLOR

    kind = _kind(view, forward, right)
    cell = _cell(view, forward, right)
    words = f"{IDX_TO_COLOR[int(cell[1])]} {kind}"
    words = f"{_DOORS[int(cell[2])]} {words}" if kind == "door" else words
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _cell(view: Any, forward: int, right: int) -> Any:  # noqa: ANN401
    return view[view.shape[0] // 2 + right][view.shape[1] - 1 - forward]


def _place(forward: int, right: int) -> str:
    parts = [
        _steps(forward, "forward"),
        _steps(abs(right), "to the right" if right > 0 else "to the left"),
    ]
    return " and ".join(part for part in parts if part)


def _steps(number: int, where: str) -> str:
    return f"{number} step{'' if number == 1 else 's'} {where}" if number else ""
