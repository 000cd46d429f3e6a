"""``hyperrun rollout export`` and ``submit``: write a run as training data, or send its groups to a
trainer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.field_options import add_options, all_options, click_option
from hyperruntime.cli.messages import note
from hyperruntime.cli.params import OPTION_PAIR, Pairs
from hyperruntime.cli.signals import run_until_signal
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.option_fields import option_fields
from hyperruntime.rollout.training_data.export import DROP, ExportOptions, export_groups, export_run
from hyperruntime.trainers import Trainer
from hyperruntime.trainers.loading import load_trainer

_LEFT_OUT = {
    "not_scored": "trajectories without a reward",
    "incomplete": "groups with a trajectory without a reward",
    "equal": "groups whose rewards are all equal",
    "too_long": "groups with a sequence that is too long",
    "no_tokens": "groups with a trajectory without a token record",
}
_OUTPUT = click.option(
    "--output", required=True, metavar="PATH", help="New file, or new directory for huggingface."
)
# The options of an export that a submission has: all but those of the form.
_SUBMITTED = {
    "incomplete": "Keep or drop partly scored groups.",
    "equal": "Keep or drop groups of equal rewards.",
    "segments": "Send all segments of a trajectory, or the last.",
}


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun rollout export outputs/rollout_1 --to huggingface --output data/rollout_1",
        "hyperrun rollout export outputs/rollout_1 --to atropos --output groups.jsonl "
        "--segments last",
    ),
)
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False))
@all_options(ExportOptions, {"incomplete": (_OUTPUT,)})
@json_option
def export(run_dir: str, output: str, as_json: bool, **options: Any) -> int:  # noqa: ANN401 - the options by name
    """Write the scored trajectories of the run in RUN_DIR as training data.

    atropos: one ScoredDataGroup of atroposlib per line, with tokens, masks and the
    log-probabilities of sampling. huggingface: a directory that datasets.load_dataset() reads
    offline. jsonl: one unchanged trajectory per line.

    A trajectory that failed for a reason other than the agent has no reward and is never written.
    Exits with 1 if nothing was written, else with 0.
    """
    summary = export_run(run_dir, output, ExportOptions(**options))
    if as_json:
        print_json(summary)
    else:
        click.echo(summary.path)
        note(
            f"{summary.groups} groups, {summary.trajectories} trajectories, {summary.sequences} "
            "token sequences"
        )
        for field, words in _LEFT_OUT.items():
            if count := getattr(summary, field):
                note(f"left out: {count} {words}")
    return 0 if summary.trajectories else 1


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun rollout submit outputs/rollout_1 --trainer-option url=http://127.0.0.1:8000 \\",
        "    --trainer-option group_size=8",
    ),
)
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--trainer", default="atropos", show_default=True, help="Trainer: a name or module:Class."
)
@click.option(
    "--trainer-option",
    type=OPTION_PAIR,
    multiple=True,
    help="Option of the trainer; may be repeated.",
)
@add_options(
    click_option(attrs.evolve(field, default=field.default or DROP), _SUBMITTED[field.name])
    for field in option_fields(ExportOptions)
    if field.name in _SUBMITTED
)
@json_option
@click.pass_obj
def submit(
    state: State,
    /,
    run_dir: str,
    trainer: str,
    trainer_option: Pairs,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> int:
    """Send the scored groups of the run in RUN_DIR to a trainer, for example one behind
    atroposlib's API server.

    Exits with 0 if there are groups and the trainer accepted all of them, else with 1.
    """
    made = load_trainer(trainer, dict(trainer_option))
    taken, declined = run_until_signal(
        _submit(made, run_dir, ExportOptions(to="atropos", **options)), state
    )
    if as_json:
        print_json({"accepted": taken, "declined": declined})
    else:
        click.echo(f"{taken} of {taken + len(declined)} groups accepted")
    return 0 if taken and not declined else 1


async def _submit(
    trainer: Trainer, run_dir: str, options: ExportOptions
) -> tuple[int, dict[str, str]]:
    """Return the number of accepted groups, and the reasons for the declined ones, by item id."""
    taken = 0
    declined = {}
    groups = await asyncio.to_thread(lambda: list(export_groups(run_dir, options)))
    await trainer.start()
    try:
        for group in groups:
            receipt = await trainer.submit(group)
            if receipt.accepted:
                taken += 1
            else:
                declined[group.item_id] = receipt.detail
                note(f"{group.item_id}: declined: {receipt.detail}")
    finally:
        await trainer.close()
    return taken, declined
