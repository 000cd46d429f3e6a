"""``hyperrun report``: an HTML report about a run, or pictures of it."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hyperruntime.cli.command import Command, example
from hyperruntime.cli.loop.generations import best_generation
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.cli.params import ANY_RUN_DIRECTORY, RUN_DIRECTORY, SIZE, is_rollout
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.loop.generation.series import whose_scores
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.report.pictures import Picture, write_pictures, write_plots
from hyperruntime.units import format_size

if TYPE_CHECKING:
    from hyperruntime.report.page.page import ShownRun
    from hyperruntime.secrets.known import Secrets

PAGE = "report.html"


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun report outputs/generate_1",
        "hyperrun report outputs/generate_1 outputs/generate_2 -o both.html",
        "hyperrun report outputs/rollout_1 --max-size 10m",
        "hyperrun report outputs/generate_1 --pictures ./pictures",
    ),
)
@click.argument("run_dir", type=ANY_RUN_DIRECTORY)
@click.argument("other", type=ANY_RUN_DIRECTORY, required=False)
@click.option(
    "-o", "--output", metavar="FILE", help="The file to write; default: report.html in RUN_DIR."
)
@click.option(
    "--max-size", type=SIZE, default="50m", show_default=True, help="Largest size of the file."
)
@click.option("--pictures", metavar="DIR", help="Draw pictures as SVG and PNG into DIR instead.")
@json_option
def report(
    run_dir: str,
    other: str | None,
    output: str | None,
    max_size: int,
    pictures: str | None,
    as_json: bool,
) -> None:
    """Write an HTML report about the run in RUN_DIR, or about two runs side by side.

    It shows the lineage, scores, changes, transcripts, use of models and failures; for rollouts,
    groups, conversations and tokens. It is one file that needs no network, and keys are removed.
    Details that do not fit into the size are left out, the lowest scores and the oldest first.
    """
    if pictures is not None:
        if other is not None or output is not None:
            raise WrongUsageError(
                "--pictures cannot be combined with --output or a second run; leave them out"
            )
        _pictures(run_dir, pictures, as_json=as_json)
        return
    from hyperruntime.report.page.page import write_page
    from hyperruntime.secrets.known import Secrets

    screen = Secrets()
    shown = [_shown_run(one, screen) for one in (run_dir, other) if one is not None]
    page = write_page(shown, Path(output) if output else Path(run_dir) / PAGE, max_bytes=max_size)
    for problem in page.notes:
        note(f"problem: {problem}")
    if as_json:
        print_json({"page": str(page.path), "size": page.size, "without_details": page.left_out})
        return
    missing = f", {page.left_out} entries without details" if page.left_out else ""
    click.echo(f"{page.path}: {format_size(page.size)}{missing}")


def _shown_run(run_dir: str, screen: Secrets) -> ShownRun:
    from hyperruntime.report.page.generations import LoopRun
    from hyperruntime.report.page.trajectories import RolloutRun

    path = Path(run_dir)
    return RolloutRun(path, screen) if is_rollout(path) else LoopRun(load_run(run_dir), screen)


def _pictures(run_dir: str, folder: str, *, as_json: bool) -> None:
    view = load_run(RUN_DIRECTORY.convert(run_dir, None, None))
    target = Path(folder)
    drawn = write_pictures(view, best_generation(view.generations), target)
    made = (
        *drawn,
        *write_plots(view.generations, target, whose_scores(view.options.optimize_option)),
    )
    if as_json:
        print_json(made)
    else:
        print_pictures(made)


def plots_at_end(
    run_dir: str,
    generations: Sequence[GenerationRecord],
    options: GenerateOptions,
    most_s: float | None = None,
) -> None:
    """Write the plots of a run that has ended; if that fails, only print the reason.

    Args:
        run_dir: the run directory.
        generations: the finished generations; nothing is drawn without any.
        options: the run's options.
        most_s: seconds after which the plots are left out, because the process has to end; None
            means no limit.
    """
    if not generations:
        return
    said = ["no plots: they would take too long, because the machine is busy"]

    def draw() -> None:
        try:
            pictures = write_plots(
                generations, Path(run_dir), whose_scores(options.optimize_option)
            )
            said.append(f"{len(pictures)} plots are in {run_dir}")
        except HyperRuntimeError as error:
            said.append(f"no plots: {error}")

    if most_s is None:
        draw()
    else:
        drawing = threading.Thread(target=draw, name="hyperrun-plots", daemon=True)
        drawing.start()
        drawing.join(most_s)
    note(said[-1])
    note(f"look at it with: hyperrun report {shlex.quote(run_dir)}")


def print_pictures(pictures: Sequence[Picture]) -> None:
    """Print the paths of pictures, one line each."""
    width = max((len(picture.subject) for picture in pictures), default=0)
    for picture in pictures:
        also = "" if picture.png is None else f" and {picture.png.suffix}"
        click.echo(f"{picture.subject:{width}}  {picture.svg}{also}")
