"""``hyperrun report``: draw a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from hyperruntime.cli.command import Command, example
from hyperruntime.cli.loop.generations import best_generation
from hyperruntime.cli.messages import note
from hyperruntime.cli.params import RUN_DIRECTORY
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.loop.generation.series import whose_scores
from hyperruntime.loop.run.run import RunSummary
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.report.pictures import Picture, write_pictures, write_plots


@click.command(
    cls=Command,
    epilog=example("hyperrun report outputs/generate_1", "hyperrun report outputs/generate_1 --output ./pictures"),
)
@click.argument("run_dir", type=RUN_DIRECTORY)
@click.option("--output", metavar="DIR", help="Write to DIR; default: the run directory and its report/.")
@json_option
def report(run_dir: str, output: str | None, as_json: bool) -> None:
    """Draw the run in RUN_DIR as SVG and PNG.

    Draws the lineage, the best answers, and for each domain and split the progress and the archive.
    """
    view, folder = load_run(run_dir), Path(output) if output else None
    drawn = write_pictures(view, best_generation(view.generations), folder)
    whose = whose_scores(view.options.optimize_option)
    pictures = (*drawn, *write_plots(view.generations, folder or Path(run_dir), whose))
    if as_json:
        print_json(pictures)
    else:
        print_pictures(pictures)


def plots_at_end(summary: RunSummary, options: GenerateOptions) -> None:
    """Write the plots of a finished run; if that fails, only print the reason.

    Args:
        summary: the run's result; nothing is drawn for an interrupted run.
        options: the run's options.
    """
    if summary.interrupted or not summary.generations:
        return
    try:
        pictures = write_plots(summary.generations, Path(summary.run_dir), whose_scores(options.optimize_option))
    except HyperRuntimeError as error:
        note(f"no plots: {error}")
    else:
        more = f"hyperrun report {shlex.quote(summary.run_dir)}"
        note(f"{len(pictures)} plots are in {summary.run_dir}; `{more}` draws more")


def print_pictures(pictures: Sequence[Picture]) -> None:
    """Print the paths of pictures, one line each."""
    width = max((len(picture.subject) for picture in pictures), default=0)
    for picture in pictures:
        also = "" if picture.png is None else f" and {picture.png.suffix}"
        click.echo(f"{picture.subject:{width}}  {picture.svg}{also}")
