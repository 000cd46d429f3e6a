"""A study as a table of its runs, or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperruntime.cli.loop.generations import failure_counts, run_to_json
from hyperruntime.cli.tables import Column
from hyperruntime.errors import ArchiveError
from hyperruntime.loop.run_files.archive import RunView, best_generation, load_run
from hyperruntime.loop.run_files.study import Study
from hyperruntime.runs.lock import owner_state


def study_views(study: Study) -> tuple[RunView | ArchiveError, ...]:
    """Return the runs of a study as their files describe them; an error for a damaged one."""
    return tuple(map(_view, study.runs))


def _view(path: Path) -> RunView | ArchiveError:
    try:
        return load_run(path)
    except ArchiveError as error:
        return error


def study_line(study: Study, views: Sequence[RunView | ArchiveError]) -> str:
    """Return one line about a study."""
    known = [view for view in views if isinstance(view, RunView)]
    finished = sum(view.state == "finished" for view in known)
    best = [found.score for view in known if (found := best_generation(view.generations))]
    top = f"best {max(one or 0.0 for one in best):.4f}" if best else "no score yet"
    return f"{study.root}: {study_state(study, views)}, {finished} of {len(views)} runs, {top}"


def study_state(study: Study, views: Sequence[RunView | ArchiveError]) -> str:
    """Return ``running``, ``finished`` or ``interrupted``."""
    states = {view.state if isinstance(view, RunView) else "damaged" for view in views}
    if "running" in states or owner_state(study.root) == "alive":
        return "running"
    return "finished" if states == {"finished"} else "interrupted"


def study_columns(views: Sequence[RunView | ArchiveError]) -> list[Column]:
    """Return a table with a row for each run of a study."""
    known = [view if isinstance(view, RunView) else None for view in views]
    best = [best_generation(view.generations) if view else None for view in known]
    made = [len(view.generations) if view else None for view in known]
    failed = [sum(failure_counts(view.generations).values()) if view else None for view in known]
    seeds = [view.seed if view else None for view in known]
    wanted = [view.wanted if view else None for view in known]
    return [
        Column(name="run", texts=[str(number) for number in range(1, len(views) + 1)]),
        _numbers("seed", seeds),
        Column(name="state", texts=[_state(view) for view in known]),
        _numbers("generations", made),
        _numbers("wanted", wanted),
        _numbers("failed", failed),
        _numbers("best", [one.score if one else None for one in best], "{:.4f}"),
        Column(name="generation", texts=[str(one.genid) if one else "" for one in best]),
    ]


def _state(view: RunView | None) -> str:
    if view is None:
        return "damaged"
    return "not begun" if view.state == "interrupted" and not view.generations else view.state


def _numbers(name: str, values: Sequence[float | None], form: str = "{}") -> Column:
    texts = ["" if one is None else form.format(one) for one in values]
    return Column(name=name, texts=texts, values=values)


def study_to_json(
    study: Study,
    views: Sequence[RunView | ArchiveError],
    *,
    errors: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a study as JSON values.

    Args:
        study: the study.
        views: its runs.
        errors: why runs failed, by the names of their directories.
    """
    return {
        "study_dir": str(study.root),
        "state": study_state(study, views),
        "parallel": study.parallel,
        "runs": [
            {**_run_to_json(path, view), "error": (errors or {}).get(path.name)}
            for path, view in zip(study.runs, views, strict=True)
        ],
    }


def _run_to_json(path: Path, view: RunView | ArchiveError) -> dict[str, Any]:
    if isinstance(view, ArchiveError):
        return {"run_dir": str(path), "state": "damaged", "problems": [str(view)]}
    facts = {"seed": view.seed, "state": view.state, "ended": view.ended or None}
    return run_to_json(str(path), view.generations, **facts)
