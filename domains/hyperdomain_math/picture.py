"""Shapes of SVG in the unit square, as every problem's picture uses them."""

from __future__ import annotations

from collections.abc import Sequence

from hyperdomain_circle_packing.picture import INK, MARGIN, SIZE, disc

_SIDE = SIZE - 2 * MARGIN
_DOT = 2.4


def dots(places: Sequence[tuple[float, float]], fill: str = "#2f6f8f") -> list[str]:
    """Return a dot at each place of the unit square."""
    return [disc(x, y, _DOT, fill) for x, y in places]


def path(places: Sequence[tuple[float, float]], width: float = 1.2) -> str:
    """Return a line through places of the unit square."""
    there = " ".join(f"{MARGIN + x * _SIDE:.3f},{MARGIN + (1 - y) * _SIDE:.3f}" for x, y in places)
    return f'<polyline points="{there}" fill="none" stroke="{INK}" stroke-width="{width:g}"/>'


def fitted(places: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """Return places moved and scaled into the unit square, with their first two coordinates."""
    lows = [min(place[axis] for place in places) for axis in (0, 1)]
    size = max(1, *(max(place[axis] for place in places) - lows[axis] for axis in (0, 1)))
    return [((place[0] - lows[0]) / size, (place[1] - lows[1]) / size) for place in places]


def ticks(marks: Sequence[int]) -> list[str]:
    """Return a ruler with marks, from the smallest to the largest number."""
    low = min(marks)
    length = max(1, max(marks) - low)
    places = [(mark - low) / length for mark in marks]
    return [path([(0, 0.5), (1, 0.5)]), *(path([(x, 0.46), (x, 0.54)], 1.0) for x in places)]


def grid(cells: Sequence[tuple[int, int]], columns: int, rows: int) -> list[str]:
    """Return a dot for each cell ``(column, row)`` of a table, the first row at the top."""
    return dots([((x + 0.5) / columns, 1 - (y + 0.5) / rows) for x, y in cells])
