"""The tables of a comparison of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median

import attrs

from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.report.study.returned import Lines, lines_of, total_lines
from hyperruntime.report.study.runs import (
    AXES,
    Axis,
    ComparedRun,
    Curve,
    Group,
    curve_of,
    group_runs,
    read_runs,
    spread,
)
from hyperruntime.report.study.significance import Test, can_test, compare_groups, compare_with
from hyperruntime.report.study.tables import Cell, Table


@attrs.frozen(kw_only=True)
class Baseline:
    """The baseline of a comparison: a number, or runs.

    Attributes:
        name: for people.
        score: its best score.
        groups: its runs, for its curve; empty for a number.
    """

    name: str
    score: float
    groups: tuple[Group, ...] = ()


@attrs.frozen(kw_only=True)
class Point:
    """The cost and the score of a run when a generation was its best so far.

    Attributes:
        run: the run.
        genid: the generation.
        cost: what was spent.
        score: the score.
    """

    run: ComparedRun
    genid: GenId
    cost: float
    score: float


@attrs.define(kw_only=True, slots=False)
class Comparison:
    """Several runs of the loop, compared.

    Attributes:
        groups: the runs, by setting.
        baseline: what they are compared with, or None.
    """

    groups: tuple[Group, ...]
    baseline: Baseline | None = None

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        """All runs, group by group."""
        return tuple(run for group in self.groups for run in group.runs)

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of which every run knows what it spent, and not all runs spent nothing."""
        totals = [(axis, [run.spent(axis) for run in self.runs]) for axis in AXES]
        return tuple(axis for axis, spent in totals if None not in spent and any(spent))

    @property
    def cost(self) -> Axis:
        """The axis of the costs: money if prices are known, else tokens, else time."""
        known = {axis.name: axis for axis in self.axes}
        return known.get("money") or known.get("tokens") or AXES[-1]

    @cached_property
    def lines(self) -> tuple[dict[GenId, Lines], ...]:
        """The lines of the diffs of each run, in the order of :attr:`runs`."""
        return tuple(lines_of(run.view) for run in self.runs)

    @property
    def line_sums(self) -> tuple[Lines, ...]:
        """The lines of all diffs of each run, in the order of :attr:`runs`."""
        return tuple(total_lines(list(its.values())) for its in self.lines)

    @cached_property
    def tests(self) -> tuple[tuple[str, str, Test], ...]:
        """The tests of each pair of groups with two runs or more, and of each such group against
        the baseline; empty without scipy.
        """
        if not can_test():
            return ()
        several = [group for group in self.groups if len(group.scores) > 1]
        found = [
            (one.name, other.name, compare_groups(one.scores, other.scores))
            for one, other in combinations(several, 2)
        ]
        if (baseline := self.baseline) is not None:
            found += [
                (group.name, baseline.name, compare_with(group.scores, baseline.score))
                for group in several
            ]
        return tuple(found)

    @property
    def wants_tests(self) -> bool:
        """Whether there is something to test, for which scipy is missing."""
        several = sum(len(group.scores) > 1 for group in self.groups)
        needed = 1 if self.baseline is not None else 2
        return several >= needed and not can_test()

    def pareto(self) -> tuple[Point, ...]:
        """Return the points of all runs that no other point beats in both cost and score, the
        cheapest first.
        """
        front: list[Point] = []
        for point in sorted(self.points(), key=lambda one: (one.cost, -one.score)):
            if not front or point.score > front[-1].score:
                front.append(point)
        return tuple(front)

    def points(self) -> Iterator[Point]:
        """Yield what each run had spent when a generation was better than all before it."""
        for run in self.runs:
            curve = run.curve(self.cost)
            assert curve is not None, "an axis of all runs"
            yield from _steps(run, curve)

    def tables(self) -> tuple[Table, ...]:
        """Return the tables."""
        progress = [self._progress(axis) for axis in self.axes]
        return (
            self.summary(),
            self._runs(),
            *([self.tested()] if self.tests else []),
            *progress,
            self._pareto(),
            self.best_paths(),
            self._metrics(),
        )

    def summary(self) -> Table:
        """Return a row for each group: its best scores, and what its runs spent."""
        rows: list[tuple[Cell, ...]] = []
        sums = iter(self.line_sums)
        for group in self.groups:
            scores = group.scores
            found = spread(scores) if scores else None
            rows.append(
                (
                    group.name,
                    len(group.runs),
                    len(scores),
                    *((found.median, found.low, found.high) if found else (None, None, None)),
                    min(scores, default=None),
                    max(scores, default=None),
                    *(_middle([run.spent(axis) for run in group.runs]) for axis in self.axes),
                    _middle([next(sums).share for _ in group.runs]),
                )
            )
        if self.baseline is not None:
            empty = (None,) * (5 + len(self.axes))
            rows.append((self.baseline.name, None, None, self.baseline.score, *empty))
        return Table(
            name="summary",
            caption="The best score of each run: median, 25 % and 75 % quantile over the runs, "
            "least and greatest; and the median of what a run spent.",
            columns=(
                "group",
                "runs",
                "with a score",
                "median",
                "25 %",
                "75 %",
                "min",
                "max",
                *(axis.name for axis in self.axes),
                "returned lines",
            ),
            rows=tuple(rows),
        )

    def tested(self) -> Table:
        """Return a row for each test."""
        return Table(
            name="tests",
            caption=f"Two-sided tests of the best scores of runs; {len(self.tests)} tests, p values "
            "are not corrected for their number.",
            columns=("group", "against", "test", "statistic", "p", "wins"),
            rows=tuple(
                (one, other, test.method, test.statistic, test.p, test.wins)
                for one, other, test in self.tests
            ),
        )

    def best_paths(self) -> Table:
        """Return a row for each generation on the way to the best one of each run, with the gain of
        its diff.
        """
        rows: list[tuple[Cell, ...]] = []
        for run, known in zip(self.runs, self.lines, strict=True):
            path = run.best_path()
            gains = [_gain(one.score, two.score) for one, two in pairwise(path)]
            for record, gain in zip(path, [None, *gains], strict=False):
                lines = known.get(record.genid, Lines())
                rows.append(
                    (
                        run.name,
                        str(record.genid),
                        None if record.parent is None else str(record.parent),
                        record.score,
                        gain,
                        lines.added,
                        lines.removed,
                        lines.returned,
                    )
                )
        return Table(
            name="best_path",
            caption="From the first to the best generation of each run: the gain over the parent, "
            "and the lines of the diff.",
            columns=(
                "run",
                "generation",
                "parent",
                "score",
                "gain",
                "added",
                "removed",
                "returned",
            ),
            rows=tuple(rows),
        )

    def _runs(self) -> Table:
        rows: list[tuple[Cell, ...]] = []
        sums = iter(self.line_sums)
        for group in self.groups:
            for run in group.runs:
                lines = next(sums)
                rows.append(
                    (
                        group.name,
                        run.name,
                        run.view.seed,
                        run.view.state,
                        len(run.view.generations),
                        sum(one.failure is not None for one in run.view.generations),
                        run.score,
                        None if run.best is None else str(run.best.genid),
                        *(run.spent(axis) for axis in self.axes),
                        lines.added,
                        lines.returned,
                        lines.share,
                    )
                )
        return Table(
            name="runs",
            caption="Each run, its best generation, and what it spent. Returned lines were removed "
            "by an earlier diff of the lineage and are added again unchanged.",
            columns=(
                "group",
                "run",
                "seed",
                "state",
                "made",
                "failed",
                "best",
                "best generation",
                *(axis.name for axis in self.axes),
                "added lines",
                "returned lines",
                "share returned",
            ),
            rows=tuple(rows),
        )

    def _progress(self, axis: Axis) -> Table:
        return Table(
            name=f"progress_{axis.name}",
            caption=f"The best score so far by {axis.label}: median and quartiles over the runs.",
            columns=("group", axis.name, "median", "25 %", "75 %"),
            rows=tuple(
                (group.name, x, at.median, at.low, at.high)
                for group in self.groups
                for x, at in curve_of(group, axis)
            ),
        )

    def _pareto(self) -> Table:
        return Table(
            name="pareto",
            caption=f"Scores that no run reached for less; the cost is {self.cost.label}.",
            columns=("run", "generation", self.cost.name, "score"),
            rows=tuple(
                (point.run.name, str(point.genid), point.cost, point.score)
                for point in self.pareto()
            ),
        )

    def _metrics(self) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for run in self.runs:
            best = run.best
            if best is None:
                continue
            where = [run.name, str(best.genid)]
            for domain, splits in best.scores.items():
                for split, score in splits.items():
                    rows.append((*where, domain, split, "score", score))
                    metrics = best.metrics.get(domain, {}).get(split, {})
                    rows += [(*where, domain, split, name, one) for name, one in metrics.items()]
        return Table(
            name="metrics",
            caption="The scores and metrics of the best generation of each run.",
            columns=("run", "generation", "domain", "split", "metric", "value"),
            rows=tuple(rows),
        )


def compare(paths: Sequence[Path], baseline: str | None = None) -> Comparison:
    """Return the comparison of runs and studies.

    Args:
        paths: their directories.
        baseline: a number, or the directory of a run or a study; None for no baseline.

    Raises:
        ArchiveError: a run cannot be read.
    """
    return Comparison(
        groups=group_runs(read_runs(paths)),
        baseline=None if baseline is None else _baseline(baseline),
    )


def _baseline(text: str) -> Baseline | None:
    try:
        return Baseline(name=f"baseline {text}", score=float(text))
    except ValueError:
        groups = group_runs(read_runs([Path(text)]))
    scores = [score for group in groups for score in group.scores]
    name = f"baseline {Path(text).resolve().name}"
    return Baseline(name=name, score=median(scores), groups=groups) if scores else None


def _steps(run: ComparedRun, curve: Curve) -> Iterator[Point]:
    before: float | None = None
    for record, x, y in zip(run.view.generations, curve.xs, curve.ys, strict=True):
        if y is not None and y != before:
            yield Point(run=run, genid=record.genid, cost=x, score=y)
        before = y


def _gain(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
