"""Write a run's pictures: its lineage, and what its best generation answered. Imports the loop and drawing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from hyperruntime import registry
from hyperruntime.domain import Domain, Task
from hyperruntime.loop.archive import RunView
from hyperruntime.loop.evaluation import selected_split
from hyperruntime.loop.record import GenerationRecord
from hyperruntime.loop.storage import make_directory, write_atomic
from hyperruntime.report.drawing import to_svg
from hyperruntime.report.facts import read_predictions
from hyperruntime.report.lineage import draw_lineage
from hyperruntime.report.png import to_png

FOLDER = "report"


@attrs.frozen(kw_only=True)
class Picture:
    """A picture that was written.

    Attributes:
        subject: what it shows.
        svg: where it is as SVG.
        png: where it is as PNG, or None where the domain draws none.
    """

    subject: str
    svg: Path
    png: Path | None


def write_pictures(view: RunView, best: GenerationRecord | None, folder: Path | None = None) -> tuple[Picture, ...]:
    """Write the lineage, and the best generation's answers where their domains can draw them.

    Args:
        view: the run.
        best: whose answers are drawn; None for nobody's.
        folder: where to; None is ``report`` in the run directory.

    Raises:
        StorageError: a file cannot be written.
    """
    target = make_directory(folder or Path(view.run_dir) / FOLDER)
    pictures = [_write_lineage(view, target)]
    if best is not None:
        pictures += _write_answers(view, best, target)
    return tuple(pictures)


def _write_lineage(view: RunView, target: Path) -> Picture:
    drawing = draw_lineage(view.generations, f"lineage of {Path(view.run_dir).name}")
    return _write(target, "lineage", "lineage", to_svg(drawing), to_png(drawing))


def _write_answers(view: RunView, best: GenerationRecord, target: Path) -> Iterator[Picture]:
    for reference in view.options.domains:
        domain: Domain = registry.load_domain(reference)
        name, split = domain.name, selected_split(domain)
        answers = read_predictions(view.run_dir, best.genid, name, split)
        for task in domain.tasks(split):
            svg = domain.picture(task, answers[task.id]) if task.id in answers else None
            if svg is not None:
                png = _png(domain, task, answers[task.id])
                subject = f"best answer to {name} {task.id}, of generation {best.genid}"
                yield _write(target, f"best_{name}_{task.id}", subject, svg, png)


def _png(domain: Any, task: Task, answer: Any) -> bytes | None:  # noqa: ANN401 - domains may draw it, none has to
    draw = getattr(domain, "picture_png", None)
    return None if draw is None else draw(task, answer)


def _write(target: Path, name: str, subject: str, svg: str, png: bytes | None) -> Picture:
    paths = target / f"{name}.svg", target / f"{name}.png"
    write_atomic(paths[0], svg.encode())
    if png is not None:
        write_atomic(paths[1], png)
    return Picture(subject=subject, svg=paths[0], png=None if png is None else paths[1])
