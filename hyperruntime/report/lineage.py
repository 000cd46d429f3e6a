"""A run's lineage as a picture: who came from whom, and how good each one is. Pure; imports drawing.

From left to right in the order of generations, upward by score; children hang on their parents by a line, and the
way to the best one is set off. What failed stands grey in a row of its own below.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import attrs

from hyperruntime.report.axis import ScoreAxis
from hyperruntime.report.drawing import Disc, Drawing, Label, Line, Point, Shape

WIDTH, HEIGHT = 960, 540
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 36, 96, 48
_FAILED_ROW = 40
_MANY, _TOO_MANY = 40, 1500
_INK, _FAINT, _GRID, _EDGE = "#25323d", "#6b7a86", "#e7ebee", "#b9c4cc"
_BEST, _FAILED, _STEP = "#d9822b", "#b4bcc2", "#f3d9bd"
_CURVE_POINTS = 22
_STEEP = 60


class Generation(Protocol):
    """What is drawn of a generation; :class:`~hyperruntime.loop.record.GenerationRecord` has it."""

    @property
    def genid(self) -> str | int:
        """Its id."""
        ...

    @property
    def parent(self) -> str | int | None:
        """Its parent's id, or None."""
        ...

    @property
    def score(self) -> float | None:
        """Its score, or None."""
        ...

    @property
    def failure(self) -> str | None:
        """What failed, or None."""
        ...


@attrs.frozen(kw_only=True)
class _Node:
    """A generation and its place on the sheet."""

    x: float
    y: float
    generation: Generation
    level: float | None  # its score between the lowest and the highest, in [0, 1]


def draw_lineage(generations: Sequence[Generation], title: str = "lineage") -> Drawing:
    """Return the picture of a run.

    Args:
        generations: finished ones, as they were archived; their number decides how much is drawn of each.
        title: heads the picture.
    """
    ordered = sorted(generations, key=_order)
    axis = ScoreAxis.fit(
        [g.score for g in ordered if g.score is not None], top=_TOP, bottom=HEIGHT - _BOTTOM - _FAILED_ROW
    )
    nodes = {str(g.genid): _place(g, index, len(ordered), axis) for index, g in enumerate(ordered)}
    best = best_path(generations)
    shapes = (
        *_heading(ordered, title),
        *_grid(axis, ordered),
        *_best_so_far(nodes),
        *_edges(nodes, best),
        *_discs(nodes, best),
    )
    return Drawing(width=WIDTH, height=HEIGHT, shapes=tuple(shapes), title=title)


def best_path(generations: Sequence[Generation]) -> tuple[str, ...]:
    """Return the ids from the first generation to the best one; the earlier one on a tie."""
    known = {str(g.genid): g for g in generations}
    scored = [g for g in generations if g.score is not None]
    at = max(scored, key=lambda g: g.score or 0.0, default=None)
    path: list[str] = []
    while at is not None and str(at.genid) not in path:
        path.append(str(at.genid))
        at = None if at.parent is None else known.get(str(at.parent))
    return tuple(reversed(path))


def _order(generation: Generation) -> int:
    return -1 if isinstance(generation.genid, str) else generation.genid


def _place(generation: Generation, index: int, count: int, axis: ScoreAxis) -> _Node:
    score = None if generation.failure else generation.score
    y = HEIGHT - _BOTTOM - 14 if score is None else axis.y(score)
    level = None if score is None else axis.level(score)
    return _Node(x=_column(index, count), y=y, generation=generation, level=level)


def _column(index: int, count: int) -> float:
    inset = min(24.0, (WIDTH - _LEFT - _RIGHT) / (2 * max(count, 1)))
    return _LEFT + inset + index * (WIDTH - _LEFT - _RIGHT - 2 * inset) / max(count - 1, 1)


def _heading(generations: Sequence[Generation], title: str) -> Iterator[Shape]:
    scored = [g for g in generations if g.score is not None]
    best = max(scored, key=lambda g: g.score or 0.0, default=None)
    failed = sum(1 for g in generations if g.failure)
    parts = [f"{len(generations)} generations"]
    if best is not None:
        parts.insert(0, f"best {best.score:.4f} in generation {best.genid}")
    if failed:
        parts.append(f"{failed} failed")
    yield Label(x=_LEFT, y=30, text=title, size=18, bold=True)
    yield Label(x=_LEFT, y=52, text=", ".join(parts), size=13, colour=_FAINT)


def _grid(axis: ScoreAxis, generations: Sequence[Generation]) -> Iterator[Shape]:
    for value in axis.ticks():
        y = axis.y(value)
        yield Line(points=((_LEFT, y), (WIDTH - _RIGHT, y)), colour=_GRID)
        yield Label(x=_LEFT - 10, y=y + 4, text=axis.text(value), colour=_FAINT, anchor="end")
    yield Label(x=_LEFT - 10, y=_TOP - 16, text="score", colour=_FAINT, anchor="end")
    if any(g.failure or g.score is None for g in generations):
        yield Label(x=_LEFT - 10, y=HEIGHT - _BOTTOM - 10, text="failed", colour=_FAINT, anchor="end")
    stride = _stride(len(generations))
    for index, generation in enumerate(generations):
        if index % stride == 0:
            x = _column(index, len(generations))
            yield Label(x=x, y=HEIGHT - 22, text=str(generation.genid), colour=_FAINT, anchor="middle", size=11)
    yield Label(x=WIDTH - _RIGHT, y=HEIGHT - 6, text="generation", colour=_FAINT, anchor="end", size=11)


def _stride(count: int) -> int:
    """Return how many generations one label of the lower axis stands for."""
    least = count / 18
    return next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10**9) if step >= least)


def _best_so_far(nodes: dict[str, _Node]) -> Iterator[Shape]:
    """Yield the stairs of the best score so far, faintly."""
    points: list[Point] = []
    for node in nodes.values():
        if node.level is None:
            continue
        if not points:
            points.append((node.x, node.y))
        elif node.y < points[-1][1]:
            points += [(node.x, points[-1][1]), (node.x, node.y)]
    if points:
        points.append((WIDTH - _RIGHT, points[-1][1]))
        yield Line(points=tuple(points), colour=_STEP, width=2)


def _edges(nodes: dict[str, _Node], best: Sequence[str]) -> Iterator[Shape]:
    """Yield a line from each parent to its child; of many generations fewer, down to the way to the best one."""
    on_path = set(pairwise(best))
    later: list[Shape] = []
    for name, node in nodes.items():
        parent = nodes.get(str(node.generation.parent))
        if parent is None:
            continue
        chosen = (str(node.generation.parent), name) in on_path
        if chosen:
            later.append(Line(points=_curve(parent, node), colour=_BEST, width=3))
        elif len(nodes) <= (_TOO_MANY if node.level is not None else _MANY):
            yield Line(points=_curve(parent, node), colour=_EDGE if node.level is not None else _GRID, width=1.2)
    yield from later


def _curve(parent: _Node, child: _Node) -> tuple[Point, ...]:
    """Return a line that leaves and arrives level: a cubic curve whose handles are half the way long."""
    middle = (parent.x + child.x) / 2
    corners = ((parent.x, parent.y), (middle, parent.y), (middle, child.y), (child.x, child.y))
    points = []
    for index in range(_CURVE_POINTS + 1):
        t = index / _CURVE_POINTS
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
        points.append(tuple(sum(w * c[axis] for w, c in zip(weights, corners, strict=True)) for axis in (0, 1)))
    return tuple((x, y) for x, y in points)


def _discs(nodes: dict[str, _Node], best: Sequence[str]) -> Iterator[Shape]:
    few = len(nodes) <= _MANY
    radius = 12.0 if few else max(1.6, min(7.0, 300.0 / len(nodes)))
    chosen = set(best)
    for name, node in sorted(nodes.items(), key=lambda item: item[0] in chosen):
        size = radius * (1.0 if name not in chosen else 1.15 if few else 1.6)
        rim = _BEST if name in chosen else "#ffffff"
        width = (3.0 if name in chosen else 1.5) if few else (1.5 if name in chosen else 0.0)
        yield Disc(x=node.x, y=node.y, radius=size, fill=_fill(node), rim=rim, rim_width=width)
        if few:
            text = "0" if isinstance(node.generation.genid, str) else name
            yield Label(x=node.x, y=node.y + 4, text=text, size=11, colour=_text_on(node), anchor="middle", bold=True)
    if few:
        yield from _scores(nodes, best, radius)


def _scores(nodes: dict[str, _Node], best: Sequence[str], radius: float) -> Iterator[Shape]:
    """Yield the scores along the way to the best one; below a node from which the way goes up steeply."""
    for name, following in zip(best, (*best[1:], None), strict=False):
        node = nodes[name]
        steep = following is not None and node.y - nodes[following].y > _STEEP
        y = node.y + radius + 18 if steep else node.y - radius - 8
        text = f"{node.generation.score:.3f}"
        yield Label(x=node.x, y=y, text=text, size=11, colour=_INK, anchor="middle", bold=True)


def _fill(node: _Node) -> str:
    """Return a colour from light to deep by score; grey for what failed."""
    if node.level is None:
        return _FAILED
    red, green, blue = colorsys.hls_to_rgb(0.49 + 0.08 * node.level, 0.74 - 0.42 * node.level, 0.45)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _text_on(node: _Node) -> str:
    return "#ffffff" if node.level is not None and node.level > 0.35 else _INK
