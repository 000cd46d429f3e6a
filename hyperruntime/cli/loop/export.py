"""``hyperrun export``: write a generation as a git repository."""

from __future__ import annotations

import click

from hyperruntime.cli.command import Command, example
from hyperruntime.cli.messages import note
from hyperruntime.cli.params import GENERATION, RUN_DIRECTORY
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.loop.run.export import export_generation
from hyperruntime.loop.run_files.parent_rules import GenId


@click.command(
    cls=Command,
    epilog=example("hyperrun export outputs/generate_1 best ./agent", "hyperrun export outputs/generate_1 7 ./agent-7"),
)
@click.argument("run_dir", type=RUN_DIRECTORY)
@click.argument("generation", type=GENERATION)
@click.argument("target", metavar="DIR")
@json_option
def export(run_dir: str, generation: GenId, target: str, as_json: bool) -> None:
    """Write GENERATION (a number, initial, or best) of the run in RUN_DIR to DIR, a runnable git repository.

    It has one commit per generation of the lineage; the messages contain the scores. DIR must be missing or empty.
    """
    made = export_generation(run_dir, generation, target)
    if as_json:
        print_json({"path": made.path, "commit": made.commit, "lineage": list(made.lineage)})
        return
    click.echo(made.path)
    note(f"{len(made.lineage)} generations: {' '.join(map(str, made.lineage))}")
