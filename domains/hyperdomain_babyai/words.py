"""Describe the agent's view in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

ACTIONS: Mapping[str, int] = MappingProxyType(
    {"turn left": 0, "turn right": 1, "go forward": 2, "pick up": 3, "drop": 4, "toggle": 5}
)
"""The agent's actions, each with minigrid's number."""

_DOORS = ("open", "closed", "locked")
_THINGS = ("door", "key", "ball", "box")


def describe(view: Any) -> str:  # noqa: ANN401 - an array (width, height, 3) of uint8: kind, colour, state
    """Return sentences about a view; the agent is in the middle of the last row and looks up."""
    lines = [f"You see {text}." for text in (*_things(view), *_walls(view))]
    return "\n".join((*lines, _carried(view)) if lines else ("You see nothing near.", _carried(view)))


def _things(view: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield all usable things in the view, nearest first."""
    middle, last = view.shape[0] // 2, view.shape[1] - 1
    cells = [(last - y + abs(x - middle), last - y, x - middle) for x in range(view.shape[0]) for y in range(last + 1)]
    for _, forward, right in sorted(cells):
        if (forward or right) and _kind(view, forward, right) in _THINGS:
            yield f"{_named(view, forward, right)} {_place(forward, right)}"


def _walls(view: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield the nearest wall ahead, on the left and on the right."""
    for step_forward, step_right in ((1, 0), (0, -1), (0, 1)):
        for steps in range(1, view.shape[0]):
            forward, right = steps * step_forward, steps * step_right
            if abs(right) > view.shape[0] // 2:
                break
            if _kind(view, forward, right) == "wall":
                yield f"a wall {_place(forward, right)}"
                break


def _carried(view: Any) -> str:  # noqa: ANN401
    return f"You carry {_named(view, 0, 0)}." if _kind(view, 0, 0) in _THINGS else "You carry nothing."


def _kind(view: Any, forward: int, right: int) -> str:  # noqa: ANN401
    from minigrid.core.constants import IDX_TO_OBJECT

    return str(IDX_TO_OBJECT[int(_cell(view, forward, right)[0])])


def _named(view: Any, forward: int, right: int) -> str:  # noqa: ANN401
    from minigrid.core.constants import IDX_TO_COLOR

    kind, cell = _kind(view, forward, right), _cell(view, forward, right)
    words = f"{IDX_TO_COLOR[int(cell[1])]} {kind}"
    words = f"{_DOORS[int(cell[2])]} {words}" if kind == "door" else words
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _cell(view: Any, forward: int, right: int) -> Any:  # noqa: ANN401
    return view[view.shape[0] // 2 + right][view.shape[1] - 1 - forward]


def _place(forward: int, right: int) -> str:
    parts = [_steps(forward, "forward"), _steps(abs(right), "to the right" if right > 0 else "to the left")]
    return " and ".join(part for part in parts if part)


def _steps(number: int, where: str) -> str:
    return f"{number} step{'' if number == 1 else 's'} {where}" if number else ""
