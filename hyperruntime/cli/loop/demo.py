"""``hyperrun demo``: a run of the generate loop that works offline and without an API key."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import click

from hyperruntime import registry
from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.loop.generate import CLUSTER, run_generations
from hyperruntime.cli.loop.generations import print_generations, run_to_json
from hyperruntime.cli.loop.progress import exit_code
from hyperruntime.cli.loop.report import print_pictures
from hyperruntime.cli.messages import note, own_program
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.loop.evaluation.evaluator import selected_split
from hyperruntime.loop.run_files.archive import best_generation, load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.report.figures import can_draw
from hyperruntime.report.pictures import read_task_facts, write_pictures
from hyperruntime.spec import Limits
from hyperruntime.units import format_duration

DOMAIN = "circle_packing"
# with one at a time, a seed gives the same table on every engine
GENERATIONS = 20
SEED = 1
PARALLEL = 1
_FIGURE = "sum_of_radii"


@click.command(
    cls=Command,
    epilog=example("hyperrun demo", "hyperrun demo --generations 30 --seed 3 --output ./runs"),
)
@click.option(
    "--generations",
    type=click.IntRange(min=0),
    default=GENERATIONS,
    show_default=True,
    help="Number of generations.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=SEED,
    show_default=True,
    help="Seed of all random choices.",
)
@click.option(
    "--output",
    metavar="DIR",
    default="outputs",
    show_default=True,
    help="Parent of the run directory.",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=PARALLEL,
    show_default=True,
    help="Generations at once.",
)
@CLUSTER
@json_option
@click.pass_obj
def demo(
    state: State,
    generations: int,
    seed: int,
    output: str,
    parallel: int,
    cluster: Path | None,
    as_json: bool,
) -> int:
    """Evolve a program that packs circles into a square, without a model, a network or a registry.

    Each generation is a copy of the program. It edits its own source in a fresh container and is
    scored on the host. At the end, the demo prints a table and draws the best packing and the
    lineage.
    """
    started = time.monotonic()
    options = GenerateOptions(
        domains=(DOMAIN,),
        max_generation=generations,
        seed=seed,
        output_dir_parent=output,
        parallel=parallel,
    ).settled()
    note(f"demo: {generations} generations of a program that packs circles into the unit square")
    if cluster is None:
        options = attrs.evolve(options, limits=possible_limits(state, options.limits))
    summary, number = run_generations(state, options, cluster, as_json=as_json)
    view = attrs.evolve(load_run(summary.run_dir), run_dir=shown_path(summary.run_dir))
    best = best_generation(view.generations)
    pictures = write_pictures(view, best) if view.generations and can_draw() else ()
    if as_json:
        facts = {
            "seed": seed,
            "interrupted": summary.interrupted,
            "duration_s": time.monotonic() - started,
        }
        print_json({**run_to_json(view.run_dir, view.generations, **facts), "pictures": pictures})
        return exit_code(summary, number)
    print_generations(view.generations, extra=figures(view.run_dir, view.generations))
    _print_best(view.generations, time.monotonic() - started)
    print_pictures(pictures)
    _print_next(view.run_dir, generations, interrupted=summary.interrupted)
    return exit_code(summary, number)


def possible_limits(state: State, limits: Limits) -> Limits:
    """Return the limits, without that on processes where the engine has none: the demo is ours."""
    with state.open_runtime() as runtime:
        if runtime.info.limits.get("pids", "no") != "no":
            return limits
        note(f"demo: {runtime.name} limits no processes here, so the demo runs with --pids none")
    return attrs.evolve(limits, pids=None)


def figures(run_dir: str, records: Sequence[GenerationRecord]) -> Mapping[str, Mapping[str, str]]:
    """Return the sums of radii as table columns, one for each task of the selected split.

    Args:
        run_dir: the run directory.
        records: the generations of the run.

    Returns:
        Column heading -> generation id -> text; generations without a sum are missing.
    """
    split = selected_split(registry.load_domain(DOMAIN))
    columns: dict[str, dict[str, str]] = {}
    for record in records:
        for task, facts in read_task_facts(run_dir, record.genid, DOMAIN, split).items():
            if isinstance(value := facts.get(_FIGURE), float):
                columns.setdefault(f"sum {task}", {})[str(record.genid)] = f"{value:.4f}"
    return columns


def shown_path(path: str) -> str:
    """Return a path relative to the current directory if it is below it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def _print_best(records: Sequence[GenerationRecord], duration_s: float) -> None:
    best = best_generation(records)
    first = next(
        (record for record in records if record.parent is None and record.score is not None), None
    )
    if best is None:
        click.echo(f"\nno generation has a score, after {format_duration(duration_s)}")
    elif first is None or first is best:
        click.echo(
            f"\nbest score {best.score:.4f} (generation {best.genid}), in "
            f"{format_duration(duration_s)}"
        )
    else:
        scores = f"from {first.score:.4f} to {best.score:.4f} (generation {best.genid})"
        click.echo(f"\nthe score went {scores} in {format_duration(duration_s)}")


def _print_next(run_dir: str, generations: int, *, interrupted: bool) -> None:
    further = "" if interrupted else f" --max-generation {generations + 10}"
    program = own_program()
    click.echo(f"\nresume:  {program} resume {shlex.quote(str(run_dir))}{further}")
    click.echo(f"read:    {program} status {shlex.quote(str(run_dir))}")
    if patch := min(Path(run_dir).glob("gen_*/agent_output/model_patch.diff"), default=None):
        click.echo(f"a patch: less {shlex.quote(str(patch))}")
