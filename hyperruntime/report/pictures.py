"""Write a run's pictures: its lineage, its progress, and the answers of its best generation, read
from its files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import RunError
from hyperruntime.json_values import json_object
from hyperruntime.logs import get_logger
from hyperruntime.loop.evaluation.evaluator import selected_split
from hyperruntime.loop.generation.series import every_series, progress_info, whole_run
from hyperruntime.loop.run.plan import domains_to_show
from hyperruntime.loop.run_files.archive import RunView
from hyperruntime.loop.run_files.layout import (
    PREDICTIONS,
    REPORT,
    Layout,
    evaluation_name,
    read_json,
)
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.report.figures import draw_lineage, draw_progress
from hyperruntime.storage.atomic import make_directory, storage_errors, write_atomic
from hyperruntime.storage.run_files import make_run_directory, read_run_file

log = get_logger(__name__)

FOLDER = "report"


@attrs.frozen(kw_only=True)
class Picture:
    """A written picture.

    Attributes:
        subject: description of the picture.
        svg: path of the SVG file.
        png: path of the PNG file; None if the domain draws no PNG.
    """

    subject: str
    svg: Path
    png: Path | None


def write_pictures(
    view: RunView, best: GenerationRecord | None, folder: Path | None = None
) -> tuple[Picture, ...]:
    """Write the lineage, and the best generation's answers if their domains can draw them; return
    the pictures.

    Args:
        view: the run.
        best: the generation whose answers are drawn; None for no answers.
        folder: target directory; None for ``report`` in the run directory.

    Raises:
        ExtraMissingError: matplotlib is not installed.
        StorageError: a file cannot be written.
    """
    target = make_directory(folder) if folder else _own_folder(Path(view.run_dir))
    drawn = draw_lineage(whole_run(view.generations), f"lineage of {Path(view.run_dir).name}")
    pictures = [write_picture(target, "lineage", "lineage", drawn)]
    if best is not None:
        pictures += _write_answers(view, best, target)
    return tuple(pictures)


def _own_folder(run_dir: Path) -> Path:
    path = run_dir / FOLDER
    with storage_errors(path):
        return make_run_directory(path, below=run_dir)


def write_plots(
    generations: Sequence[GenerationRecord], folder: Path, whose: str = "agent"
) -> tuple[Picture, ...]:
    """Write plots of the progress and the archive, and the progress as text, for each series;
    return the pictures.

    Args:
        generations: the generations of a run; no other data is read.
        folder: target directory; other tools expect the plots in the run directory.
        whose: source of the scores, see :func:`~hyperruntime.loop.generation.series.whose_scores`.

    Raises:
        ExtraMissingError: matplotlib is not installed.
        StorageError: a file cannot be written.
    """
    target = make_directory(folder)
    pictures = []
    for series in every_series(generations, whose):
        progress = draw_progress(series.nodes, series.title)
        graph = draw_lineage(series.nodes, series.title)
        pictures.append(
            write_picture(
                target, f"progress_plot_{series.name}", f"progress, {series.title}", progress
            )
        )
        pictures.append(
            write_picture(target, f"archive_graph_{series.name}", f"archive, {series.title}", graph)
        )
        write_atomic(target / f"progress_info_{series.name}.txt", progress_info(series).encode())
    return tuple(pictures)


def _write_answers(view: RunView, best: GenerationRecord, target: Path) -> Iterator[Picture]:
    try:
        domains = domains_to_show(view)
    except RunError as error:
        log.warning("no pictures of answers", reason=str(error))
        return
    for domain in domains:
        name = domain.name
        split = selected_split(domain)
        answers = read_predictions(view.run_dir, best.genid, name, split)
        for task in domain.tasks(split):
            svg = domain.picture(task, answers[task.id]) if task.id in answers else None
            if svg is not None:
                png = domain.picture_png(task, answers[task.id])
                drawn = {"svg": svg.encode(), **({} if png is None else {"png": png})}
                subject = f"best answer to {name} {task.id}, of generation {best.genid}"
                yield write_picture(target, f"best_{name}_{task.id}", subject, drawn)


def write_picture(target: Path, name: str, subject: str, drawn: Mapping[str, bytes]) -> Picture:
    """Write a picture in its formats, and return it."""
    paths = {kind: target / f"{name}.{kind}" for kind in drawn}
    for kind, path in paths.items():
        write_atomic(path, drawn[kind])
    return Picture(subject=subject, svg=paths["svg"], png=paths.get("png"))


def read_predictions(run_dir: str | Path, genid: GenId, domain: str, split: str) -> dict[str, Any]:
    """Return a generation's predictions by task id; empty if the file cannot be read, invalid lines
    are skipped.

    Args:
        run_dir: the run directory.
        genid: the generation.
        domain: name of the domain.
        split: name of the split.
    """
    path = _evaluation(run_dir, genid, domain, split) / PREDICTIONS
    answers: dict[str, Any] = {}
    try:
        lines = read_run_file(path, below=Path(run_dir)).splitlines()
    except OSError:
        return answers
    for line in lines:
        value = json_object(line) or {}
        if "task_id" in value and "prediction" in value:
            answers[str(value["task_id"])] = value["prediction"]
    return answers


def read_task_facts(
    run_dir: str | Path, genid: GenId, domain: str, split: str
) -> dict[str, Mapping[str, Any]]:
    """Return the facts that the domain reported of each task, by task id; empty if the file is
    missing or invalid.

    Args:
        run_dir: the run directory.
        genid: the generation.
        domain: name of the domain.
        split: name of the split.
    """
    path = _evaluation(run_dir, genid, domain, split) / REPORT
    tasks = read_json(path, Path(run_dir)).get("tasks")
    return (
        {name: facts for name, facts in tasks.items() if isinstance(facts, dict)}
        if isinstance(tasks, dict)
        else {}
    )


def _evaluation(run_dir: str | Path, genid: GenId, domain: str, split: str) -> Path:
    return Layout(Path(run_dir)).generation(genid) / evaluation_name(domain, split)
