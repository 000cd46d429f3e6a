"""``hyperrun status``: show a run's generations and scores, during the run or after it."""

from __future__ import annotations

import shlex

import click

from hyperruntime.cli.command import Command, example
from hyperruntime.cli.loop.generations import best_generation, failure_counts, print_generations, run_to_json
from hyperruntime.cli.messages import note
from hyperruntime.cli.params import RUN_DIRECTORY
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.gateway.log.budget import total_spent
from hyperruntime.loop.run_files.archive import RunView, load_run


@click.command(
    cls=Command,
    epilog=example("hyperrun status outputs/generate_1", "hyperrun status outputs/generate_1 --json"),
)
@click.argument("run_dir", type=RUN_DIRECTORY)
@json_option
def status(run_dir: str, as_json: bool) -> None:
    """Show the generations of the run in RUN_DIR, which may still run; damaged lines are reported and skipped."""
    view = load_run(run_dir)
    if as_json:
        facts = {"state": view.state, "seed": view.seed, "problems": list(view.problems)}
        print_json(run_to_json(view.run_dir, view.generations, **facts))
        return
    _print(view)


def _print(view: RunView) -> None:
    best = best_generation(view.generations)
    top = "no score yet" if best is None else f"best {best.score:.4f} (generation {best.genid})"
    total = view.options.max_generation + 1
    made = f"{len(view.generations)} of {total} generations"
    counts = ", ".join(f"{count} {name}" for name, count in failure_counts(view.generations).items())
    failed = f"; failed: {counts}" if counts else ""
    click.echo(f"{view.run_dir}: {view.state}, {made}, {top}, seed {view.seed}{failed}")
    if view.generations:
        print_generations(view.generations)
    if used := [record.usage for record in view.generations if record.usage is not None]:
        spent = total_spent(used)
        tokens = f"{spent.input_tokens} tokens read, {spent.output_tokens} written"
        click.echo(f"models: {spent.requests} requests, {tokens}, money {spent.money:.4g}")
    for problem in view.problems:
        note(f"problem: {problem}")
    if view.state == "interrupted":
        note(f"continue with: hyperrun resume {shlex.quote(view.run_dir)}")
