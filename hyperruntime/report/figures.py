"""Draw figures with matplotlib, without a display; the same data gives the same bytes."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hyperruntime.errors import ExtraMissingError
from hyperruntime.host.python import import_elsewhere
from hyperruntime.loop.generation.series import Node, best_path, best_so_far, steps_up
from hyperruntime.loop.run_files.parent_rules import GenId

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = (9.6, 5.4)
_DPI = 100
_INK = "#25323d"
_FAINT = "#6b7a86"
_GRID = "#e7ebee"
_EDGE = "#b9c4cc"
_BEST = "#d9822b"
_FAILED = "#b4bcc2"
_STEP = "#f3d9bd"
_COLOURS = "YlGnBu"
_FEW = 40
_MOST_LABEL = 60  # characters
_MANY = 1500
_FORMATS = {"svg": {"Date": None}, "png": {"Software": None}}


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    try:
        return importlib.util.find_spec("matplotlib") is not None
    except ValueError:  # a loaded module without a spec
        return False


def draw_lineage(nodes: Sequence[Node], title: str) -> dict[str, bytes]:
    """Return a picture of a run's lineage as SVG and PNG, by format.

    The horizontal axis is the generation's number, the vertical axis its score. Lines connect
    parents to children, not all in a large run, and the path to the best one is highlighted.
    Generations without a score are in a bottom row.

    Args:
        nodes: the generations in order.
        title: title of the picture.

    Raises:
        ExtraMissingError: matplotlib is not installed.
    """
    figure, axes = _new_figure(title, nodes)
    low = _failed_row(axes, nodes)
    places = {
        node.genid: (index, low if node.score is None else node.score)
        for index, node in enumerate(nodes)
    }
    _stairs(axes, nodes, color=_STEP, zorder=1)
    path = best_path(nodes)
    _edges(axes, nodes, places, path)
    _discs(axes, nodes, places, path)
    return rendered(figure)


def draw_progress(nodes: Sequence[Node], title: str) -> dict[str, bytes]:
    """Return a picture of each generation's score and the best score so far, as SVG and PNG, by
    format.

    Args:
        nodes: the generations in order.
        title: title of the picture.

    Raises:
        ExtraMissingError: matplotlib is not installed.
    """
    figure, axes = _new_figure(title, nodes)
    scored = [(index, node.score) for index, node in enumerate(nodes) if node.score is not None]
    axes.scatter(
        [x for x, _ in scored], [y for _, y in scored], s=14, color=_EDGE, label="generation"
    )
    _stairs(axes, nodes, color=_BEST, label="best so far")
    if scored:
        axes.legend(frameon=False, loc="lower right")
    return rendered(figure)


def _new_figure(title: str, nodes: Sequence[Node]) -> tuple[Figure, Axes]:
    figure, axes = new_figure(title, _summary(nodes), "generation")
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    names = [str(node.genid) for node in nodes]
    axes.xaxis.set_major_formatter(
        lambda x, _: names[int(x)] if x == int(x) and 0 <= x < len(names) else ""
    )
    return figure, axes


def new_figure(title: str, subtitle: str, across: str) -> tuple[Figure, Axes]:
    """Return an empty figure of scores with its axes.

    Args:
        title: in bold letters.
        subtitle: below it.
        across: label of the horizontal axis.

    Raises:
        ExtraMissingError: matplotlib is not installed.
    """
    if not can_draw():
        raise ExtraMissingError("pictures", "matplotlib", "report")
    # it would use ./matplotlibrc, which can make it run TeX on files of this machine
    import_elsewhere("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(
        f"{plain(title)}\n",
        loc="left",
        fontsize=14,
        fontweight="bold",
        color=_INK,
        parse_math=False,
    )
    axes.text(
        0,
        1.02,
        plain(subtitle),
        transform=axes.transAxes,
        fontsize=10,
        color=_FAINT,
        parse_math=False,
    )
    axes.set_xlabel(across, color=_FAINT)
    axes.set_ylabel("score", color=_FAINT)
    axes.grid(axis="y", color=_GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def label(text: str) -> str:
    """Return a text for a legend, where ``$`` begins no formula and ``_`` hides no entry; a long
    one is cut.
    """
    short = text if len(text) <= _MOST_LABEL else f"{text[: _MOST_LABEL - 3]}..."
    return f" {plain(short)}".replace("$", r"\$")


def plain(text: str) -> str:
    """Return a text that can be drawn on one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _summary(nodes: Sequence[Node]) -> str:
    path = best_path(nodes)
    missing = sum(node.score is None for node in nodes)
    best = next((node for node in nodes if path and node.genid == path[-1]), None)
    parts = [] if best is None else [f"best {best.score:.4f} in generation {best.genid}"]
    return ", ".join(
        [*parts, f"{len(nodes)} generations", *([f"{missing} without a score"] if missing else [])]
    )


def _failed_row(axes: Axes, nodes: Sequence[Node]) -> float:
    """Return the height of the row of generations without a score, and label the row if there are
    any.
    """
    scores = [node.score for node in nodes if node.score is not None] or [0.0, 1.0]
    low = min(scores) - 0.12 * max(max(scores) - min(scores), 0.01)
    if any(node.score is None for node in nodes):
        axes.axhline(low, color=_GRID, linewidth=0.8)
        axes.annotate(
            "no score",
            (1, low),
            xycoords=("axes fraction", "data"),
            fontsize=8,
            color=_FAINT,
            ha="right",
        )
    return low


def _stairs(axes: Axes, nodes: Sequence[Node], **style: Any) -> None:  # noqa: ANN401 - as matplotlib takes it
    """Draw the best score so far."""
    best = [(index, value) for index, value in enumerate(best_so_far(nodes)) if value is not None]
    axes.step([x for x, _ in best], [y for _, y in best], where="post", linewidth=2, **style)


def _edges(
    axes: Axes, nodes: Sequence[Node], places: dict[GenId, tuple[int, float]], path: Sequence[GenId]
) -> None:
    """Draw the best path, and a line from each parent to its child: above 40 only to scored ones,
    above 1500 none.
    """
    from matplotlib.collections import LineCollection

    drawn = [
        node
        for node in nodes
        if node.parent in places and (node.score is not None or len(nodes) <= _FEW)
    ]
    if len(nodes) <= _MANY:
        lines = [
            (places[node.parent], places[node.genid]) for node in drawn if node.parent is not None
        ]
        axes.add_collection(LineCollection(lines, colors=_EDGE, linewidths=1, zorder=2))
    chosen = [(places[parent], places[child]) for parent, child in pairwise(path)]
    axes.add_collection(LineCollection(chosen, colors=_BEST, linewidths=2.5, zorder=3))


def _discs(
    axes: Axes, nodes: Sequence[Node], places: dict[GenId, tuple[int, float]], path: Sequence[GenId]
) -> None:
    few = len(nodes) <= _FEW
    size = 320.0 if few else max(6.0, min(120.0, 9000 / len(nodes)))
    chosen = set(path)
    width = 1.0 if few else 0.0
    xs, ys = _points(places, [node for node in nodes if node.score is None])
    axes.scatter(xs, ys, s=size, color=_FAILED, edgecolors="white", linewidths=width, zorder=4)
    scored = [node for node in nodes if node.score is not None]
    xs, ys = _points(places, scored)
    shades = [node.score or 0.0 for node in scored]
    axes.scatter(
        xs, ys, s=size, c=shades, cmap=_COLOURS, edgecolors="white", linewidths=width, zorder=4
    )
    xs, ys = _points(places, [node for node in nodes if node.genid in chosen])
    axes.scatter(xs, ys, s=size * 1.15, facecolors="none", edgecolors=_BEST,
                 linewidths=2.0 if few else 1.0, zorder=5)  # fmt: skip
    dark = (min(shades, default=0.0) + 2 * max(shades, default=0.0)) / 3
    for node in nodes if few else ():
        text = "0" if isinstance(node.genid, str) else str(node.genid)
        ink = _INK
        if node.score is not None and node.score > dark:
            ink = "white"
        axes.annotate(
            text, places[node.genid], ha="center", va="center", fontsize=8, color=ink, zorder=6
        )
    for node in steps_up(nodes) if few else ():
        axes.annotate(f"{node.score:.3f}", places[node.genid], xytext=(0, 12), textcoords="offset points",
                      ha="center", fontsize=8, fontweight="bold", color=_INK, zorder=6)  # fmt: skip


def _points(
    places: dict[GenId, tuple[int, float]], nodes: Sequence[Node]
) -> tuple[list[float], list[float]]:
    points = [places[node.genid] for node in nodes]
    return [float(x) for x, _ in points], [y for _, y in points]


def rendered(figure: Figure) -> dict[str, bytes]:
    """Return a figure as SVG and PNG, by format; the same figure gives the same bytes."""
    from matplotlib import rc_context

    pictures = {}
    with (
        rc_context({"svg.hashsalt": "hyperruntime", "svg.fonttype": "none"}),
        warnings.catch_warnings(),
    ):
        # it draws a box
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the places are found once, not for each format
        for kind, facts in _FORMATS.items():
            buffer = BytesIO()
            figure.savefig(buffer, format=kind, metadata=facts)
            pictures[kind] = buffer.getvalue()
    return pictures
