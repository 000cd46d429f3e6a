"""``hyperrun rollout export``: write a run as training data."""

from __future__ import annotations

import attrs
import click

from hyperruntime.cli.command import Command, example
from hyperruntime.cli.messages import note
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.rollout.training_data.export import DROP, FORMATS, KEEP, ExportOptions, Summary, export_run
from hyperruntime.rollout.training_data.samples import ALL, LAST

_LEFT_OUT = {
    "incomplete": "groups with a trajectory without a reward",
    "equal": "groups whose rewards are all equal",
    "too_long": "groups with a sequence that is too long",
    "no_tokens": "groups with a trajectory without a token record",
}


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun rollout export outputs/rollout_1 --to huggingface --output data/rollout_1",
        "hyperrun rollout export outputs/rollout_1 --to atropos --output groups.jsonl --segments last",
    ),
)
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False))
@click.option("--to", type=click.Choice(FORMATS), default="jsonl", show_default=True, help="Output format.")
@click.option("--output", required=True, metavar="PATH", help="New file, or new directory for huggingface.")
@click.option(
    "--incomplete", type=click.Choice((KEEP, DROP)), help="Partly scored groups [default: keep; atropos: drop]."
)
@click.option(
    "--equal", type=click.Choice((KEEP, DROP)), help="Groups of equal rewards [default: keep; atropos: drop]."
)
@click.option(
    "--segments", type=click.Choice((ALL, LAST)), default=ALL, show_default=True, help="atropos: token sequences."
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="atropos: drop groups with a longer sequence.")
@json_option
def export(
    run_dir: str,
    to: str,
    output: str,
    incomplete: str | None,
    equal: str | None,
    segments: str,
    max_tokens: int | None,
    as_json: bool,
) -> int:
    """Write the scored trajectories of the run in RUN_DIR as training data.

    atropos: one ScoredDataGroup of atroposlib per line, with tokens, masks and the log-probabilities of sampling.
    huggingface: a directory that datasets.load_dataset() reads offline. jsonl: one unchanged trajectory per line.

    A trajectory that failed for a reason other than the agent has no reward and is never written. Exits with 1 if
    nothing was written, else with 0.
    """
    options = ExportOptions(to=to, incomplete=incomplete, equal=equal, segments=segments, max_tokens=max_tokens)
    summary = export_run(run_dir, output, options)
    if as_json:
        print_json(attrs.asdict(summary))
    else:
        click.echo(summary.path)
        _say(summary)
    return 0 if summary.trajectories else 1


def _say(summary: Summary) -> None:
    note(f"{summary.groups} groups, {summary.trajectories} trajectories, {summary.sequences} token sequences")
    if summary.not_scored:
        note(f"left out: {summary.not_scored} trajectories without a reward")
    for field, words in _LEFT_OUT.items():
        if getattr(summary, field):
            note(f"left out: {getattr(summary, field)} {words}")
