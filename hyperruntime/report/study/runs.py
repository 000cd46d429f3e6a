"""The runs of a comparison: what each has spent and reached, and which belong together. Pure, but
for :func:`read_runs`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.gateway.log.budget import Spent
from hyperruntime.loop.generation.series import best_path, whole_run
from hyperruntime.loop.run_files.archive import RunView, best_generation, load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.loop.run_files.study import is_study, read_study
from hyperruntime.option_fields import option_fields

# Runs that differ in these only are repetitions.
_OF_ONE_RUN = ("run_id", "seed", "output_dir_parent", "parallel", "executor", "max_generation")
_MOST_POINTS = 100  # of a curve over runs
_EVALUATE = "evaluate"  # a step of a generation


@attrs.frozen(kw_only=True)
class Axis:
    """A measure of what a run has spent.

    Attributes:
        name: for files and columns.
        label: for axes.
        of: returns how much a generation has spent; None if that is unknown.
    """

    name: str
    label: str
    of: Callable[[GenerationRecord], float | None]


def _used(get: Callable[[Spent], float]) -> Callable[[GenerationRecord], float | None]:
    return lambda record: None if record.usage is None else get(record.usage)


AXES = (
    Axis(name="generations", label="generations", of=lambda record: int(record.parent is not None)),
    Axis(
        name="evaluations",
        label="evaluated generations",
        of=lambda record: int(_EVALUATE in record.durations or bool(record.scores)),
    ),
    Axis(
        name="tokens",
        label="tokens, read and written",
        of=_used(lambda used: used.input_tokens + used.output_tokens),
    ),
    Axis(name="money", label="money", of=_used(lambda used: used.money)),
    Axis(
        name="seconds",
        label="seconds of all generations",
        of=lambda record: sum(record.durations.values()),
    ),
)


@attrs.frozen(kw_only=True)
class Curve:
    """The best score so far against what was spent.

    Attributes:
        xs: what was spent when a generation had finished, never falling.
        ys: the best score so far; None before the first score.
    """

    xs: tuple[float, ...]
    ys: tuple[float | None, ...]

    def at(self, x: float) -> float | None:
        """Return the best score when ``x`` was spent; a run that has ended keeps its best score."""
        place = bisect.bisect_right(self.xs, x)
        return self.ys[place - 1] if place else None


@attrs.frozen(kw_only=True)
class ComparedRun:
    """A run of a comparison.

    Attributes:
        view: the run.
        study: directory of its study, or None.
    """

    view: RunView
    study: Path | None = None

    @property
    def name(self) -> str:
        """Name of its directory."""
        return Path(self.view.run_dir).resolve().name

    @property
    def best(self) -> GenerationRecord | None:
        """Its best generation; None without a score."""
        return best_generation(one for one in self.view.generations if not one.failure)

    @property
    def score(self) -> float | None:
        """Its best score."""
        return None if self.best is None else self.best.score

    def spent(self, axis: Axis) -> float | None:
        """Return what it has spent in all; None if that is unknown for all its generations."""
        found = [axis.of(record) for record in self.view.generations]
        known = [one for one in found if one is not None]
        return sum(known) if known or not found else None

    def curve(self, axis: Axis) -> Curve | None:
        """Return its best score so far in the order in which its generations finished; None if what
        it spent is unknown.
        """
        if self.spent(axis) is None:
            return None
        records = self.view.generations
        xs = accumulate(axis.of(record) or 0 for record in records)
        scores = [None if one.failure else one.score for one in records]
        return Curve(xs=tuple(xs), ys=tuple(accumulate(scores, _better)))

    def best_path(self) -> tuple[GenerationRecord, ...]:
        """Return the generations from the first to the best one."""
        known = {record.genid: record for record in self.view.generations}
        return tuple(known[genid] for genid in best_path(whole_run(self.view.generations)))


def _better(one: float | None, other: float | None) -> float | None:
    return max((score for score in (one, other) if score is not None), default=None)


@attrs.frozen(kw_only=True)
class Group:
    """Repetitions of one setting.

    Attributes:
        name: its study, or the options in which it differs from the other groups.
        runs: at least one.
    """

    name: str
    runs: tuple[ComparedRun, ...]

    @property
    def scores(self) -> tuple[float, ...]:
        """The best score of each run that has one."""
        return tuple(run.score for run in self.runs if run.score is not None)

    def curves(self, axis: Axis) -> tuple[Curve, ...]:
        """Return the curves of the runs that have one."""
        found = (run.curve(axis) for run in self.runs)
        return tuple(curve for curve in found if curve is not None)


@attrs.frozen(kw_only=True)
class Spread:
    """The median and the quartiles of several runs.

    Attributes:
        low: the 25 % quantile.
        median: the 50 % quantile.
        high: the 75 % quantile.
    """

    low: float
    median: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of at least one value, between neighbours in a straight
    line.

    Source: R. J. Hyndman and Y. Fan, Sample Quantiles in Statistical Packages (1996), type 7.
    """
    ordered = sorted(values)

    def quantile(share: float) -> float:
        at = (len(ordered) - 1) * share
        low = ordered[int(at)]
        return low + (ordered[min(int(at) + 1, len(ordered) - 1)] - low) * (at - int(at))

    return Spread(low=quantile(0.25), median=quantile(0.5), high=quantile(0.75))


def curve_of(group: Group, axis: Axis) -> tuple[tuple[float, Spread], ...]:
    """Return the median and the quartiles of the best score so far over the runs of a group.

    It begins where each run that ever has a score has one.

    Args:
        group: the runs.
        axis: what was spent.
    """
    curves = [curve for curve in group.curves(axis) if curve.ys and curve.ys[-1] is not None]
    if len(curves) < len(group.scores) or not curves:
        return ()
    places = sorted({x for curve in curves for x in curve.xs})
    if len(places) > _MOST_POINTS:
        last = len(places) - 1
        places = [places[round(n * last / (_MOST_POINTS - 1))] for n in range(_MOST_POINTS)]
    points = []
    for x in places:
        known = [y for curve in curves if (y := curve.at(x)) is not None]
        if len(known) == len(curves):
            points.append((x, spread(known)))
    return tuple(points)


def read_runs(paths: Iterable[Path]) -> tuple[ComparedRun, ...]:
    """Return runs of the loop; a study is all its runs that have begun, and none is there twice.

    Raises:
        ArchiveError: a study or a run cannot be read.
    """
    found: dict[Path, ComparedRun] = {}
    for path in paths:
        study = path.resolve() if is_study(path) else None
        for run_dir in read_study(path).runs if study else (path,):
            view = load_run(run_dir)
            if view.generations or study is None:
                found.setdefault(run_dir.resolve(), ComparedRun(view=view, study=study))
    return tuple(found.values())


def group_runs(runs: Sequence[ComparedRun]) -> tuple[Group, ...]:
    """Return the groups of runs that are repetitions: those of one study, and other runs whose
    options are equal but for the seed, the name and the like.

    A group of no study is named by the options in which such groups differ.
    """
    settings = {id(run): _setting(run.view.options) for run in runs}
    found: dict[tuple[object, ...], list[ComparedRun]] = {}
    for run in runs:
        key: tuple[object, ...] = (run.study,)
        if run.study is None:
            key = (None, *settings[id(run)].values())
        found.setdefault(key, []).append(run)
    alone = [settings[id(its[0])] for key, its in found.items() if key[0] is None]
    groups = []
    for its in found.values():
        study = its[0].study
        name = study.name if study else _difference(settings[id(its[0])], alone)
        groups.append(Group(name=name, runs=tuple(its)))
    return _with_unique_names(groups)


def _setting(options: GenerateOptions) -> dict[str, str]:
    fields = [one for one in option_fields(GenerateOptions) if one.path[0] not in _OF_ONE_RUN]
    return {field.name: _shown(field.of(options)) for field in fields}


def _shown(value: Any) -> str:  # noqa: ANN401 - of any option
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _difference(setting: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> str:
    """Return the options in which a setting differs from others, as a name."""
    names = [name for name in setting if len({one[name] for one in others}) > 1]
    return ", ".join(f"{name.replace('_', '-')} {setting[name]}" for name in names) or "runs"


def _with_unique_names(groups: Sequence[Group]) -> tuple[Group, ...]:
    seen: dict[str, int] = {}
    unique = []
    for group in groups:
        seen[group.name] = seen.get(group.name, 0) + 1
        number = seen[group.name]
        name = group.name if number == 1 else f"{group.name} ({number})"
        unique.append(attrs.evolve(group, name=name))
    return tuple(unique)
