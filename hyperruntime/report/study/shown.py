"""The content of the page of a comparison of runs, as JSON values and texts."""

from __future__ import annotations

from typing import Any

import attrs

from hyperruntime.report.page.model_use import number
from hyperruntime.report.study.content import Comparison
from hyperruntime.report.study.runs import Axis, Group, curve_of
from hyperruntime.report.study.tables import Table, one_line, shown


@attrs.frozen(kw_only=True)
class ShownComparison:
    """A comparison on the page.

    Attributes:
        chart: the curves, for the page's script.
        tables: captions, headings and rows of texts.
    """

    chart: dict[str, Any]
    tables: tuple[dict[str, Any], ...]


def shown_comparison(comparison: Comparison) -> ShownComparison:
    """Return what the page shows of a comparison."""
    baseline = comparison.baseline
    chart = {
        "groups": [f"{one_line(one.name)} ({len(one.runs)})" for one in comparison.groups],
        "axes": [
            {
                "label": axis.label,
                "curves": [_curve(group, axis) for group in comparison.groups],
            }
            for axis in comparison.axes
        ],
        "baseline": None
        if baseline is None
        else {"name": one_line(baseline.name), "score": number(baseline.score)},
    }
    tables = [comparison.summary(), *([comparison.tested()] if comparison.tests else [])]
    return ShownComparison(chart=chart, tables=tuple(map(_texts, tables)))


def _curve(group: Group, axis: Axis) -> list[list[float | int | None]]:
    """Return four columns: what was spent, and the quartiles."""
    points = curve_of(group, axis)
    return [
        [number(x) for x, _ in points],
        [number(at.low) for _, at in points],
        [number(at.median) for _, at in points],
        [number(at.high) for _, at in points],
    ]


def _texts(table: Table) -> dict[str, Any]:
    return {
        "caption": table.caption,
        "columns": [
            (name, not any(isinstance(row[at], str) for row in table.rows))
            for at, name in enumerate(table.columns)
        ],
        "rows": [[(shown(cell), not isinstance(cell, str)) for cell in row] for row in table.rows],
    }
