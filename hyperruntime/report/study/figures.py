"""The figures of a comparison of runs, with matplotlib (extra ``report``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyperruntime.report.figures import label, new_figure, rendered
from hyperruntime.report.pictures import Picture, write_picture
from hyperruntime.report.study.content import Comparison
from hyperruntime.report.study.runs import Axis, Spread, curve_of
from hyperruntime.storage.atomic import make_directory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can tell apart, and dashes for more groups.
_INKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_DASHES = ("-", "--", "-.", ":")
_BASELINE = "#6b7a86"
_SPREAD = "median and quartiles over the runs"


def write_figures(comparison: Comparison, folder: Path) -> Iterator[Picture]:
    """Write the figures of a comparison, and yield each: the best score so far by what was spent,
    the Pareto front, and the way to the best generation of each run.

    Args:
        comparison: the runs.
        folder: target directory.

    Raises:
        ExtraMissingError: matplotlib is not installed.
        StorageError: a file cannot be written.
    """
    target = make_directory(folder)
    for axis in comparison.axes:
        drawn = _progress(comparison, axis)
        yield write_picture(target, f"progress_{axis.name}", f"progress by {axis.label}", drawn)
    yield write_picture(target, "pareto", "score and cost", _pareto(comparison))
    yield write_picture(target, "best_path", "ways to the best generation", _best_paths(comparison))


def _style(place: int) -> tuple[str, str]:
    return _INKS[place % len(_INKS)], _DASHES[place // len(_INKS) % len(_DASHES)]


def _progress(comparison: Comparison, axis: Axis) -> dict[str, bytes]:
    figure, axes = new_figure("best score so far", _SPREAD, axis.label)
    ends = [0.0]
    for place, group in enumerate(comparison.groups):
        ink, dash = _style(place)
        points = curve_of(group, axis)
        xs = [x for x, _ in points]
        ends += xs
        axes.fill_between(
            xs,
            [at.low for _, at in points],
            [at.high for _, at in points],
            step="post",
            color=ink,
            alpha=0.18,
            linewidth=0,
        )
        name = label(f"{group.name}, {len(group.runs)} runs")
        middle = [at.median for _, at in points]
        axes.step(xs, middle, where="post", color=ink, linestyle=dash, linewidth=2, label=name)
    _baseline(comparison, axis, axes, max(ends))
    axes.legend(frameon=False, loc="lower right")
    return rendered(figure)


def _baseline(comparison: Comparison, axis: Axis, axes: Axes, end: float) -> None:
    """Draw the baseline: its median so far, or a number as a line over the whole width."""
    baseline = comparison.baseline
    if baseline is None:
        return
    style: dict[str, Any] = {"color": _BASELINE, "linestyle": "--", "linewidth": 1.5}
    curves: list[tuple[tuple[float, Spread], ...]] = [
        points for group in baseline.groups if (points := curve_of(group, axis))
    ]
    name = label(baseline.name)
    if not curves:
        axes.axhline(baseline.score, label=name, **style)
    for points in curves:
        places = [*points, (max(end, points[-1][0]), points[-1][1])]
        xs = [x for x, _ in places]
        axes.step(xs, [at.median for _, at in places], where="post", label=name, **style)


def _pareto(comparison: Comparison) -> dict[str, bytes]:
    front = comparison.pareto()
    said = f"{len(front)} scores that no run reached for less"
    figure, axes = new_figure("score and cost", said, comparison.cost.label)
    points = tuple(comparison.points())
    for place, group in enumerate(comparison.groups):
        own = [point for point in points if any(point.run is run for run in group.runs)]
        xs = [point.cost for point in own]
        ink, _ = _style(place)
        axes.scatter(xs, [point.score for point in own], s=24, color=ink, label=label(group.name))
    axes.step(
        [point.cost for point in front],
        [point.score for point in front],
        where="post",
        color="#25323d",
        linewidth=1.2,
        label="front",
    )
    axes.legend(frameon=False, loc="lower right")
    return rendered(figure)


def _best_paths(comparison: Comparison) -> dict[str, bytes]:
    said = "each step is a diff, and its height is what it gained"
    figure, axes = new_figure("ways to the best generation", said, "diffs since the first")
    for place, group in enumerate(comparison.groups):
        ink, dash = _style(place)
        for number, run in enumerate(group.runs):
            path = [
                (step, record.score)
                for step, record in enumerate(run.best_path())
                if record.score is not None
            ]
            axes.plot(
                [step for step, _ in path],
                [score for _, score in path],
                color=ink,
                linestyle=dash,
                marker="o",
                markersize=4,
                alpha=0.8,
                label=label(group.name) if number == 0 else None,
            )
    axes.legend(frameon=False, loc="lower right")
    return rendered(figure)
