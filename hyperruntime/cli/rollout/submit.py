"""``hyperrun rollout submit``: send the groups of a run to a trainer."""

from __future__ import annotations

import asyncio

import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.messages import note
from hyperruntime.cli.params import OPTION_PAIR
from hyperruntime.cli.signals import run_until_signal
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.rollout.training_data.export import DROP, KEEP, ExportOptions, export_groups
from hyperruntime.rollout.training_data.samples import ALL, LAST
from hyperruntime.trainers import Trainer
from hyperruntime.trainers.loading import load_trainer


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun rollout submit outputs/rollout_1 --trainer-option url=http://127.0.0.1:8000 \\",
        "    --trainer-option group_size=8",
    ),
)
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False))
@click.option("--trainer", default="atropos", show_default=True, help="Trainer: a name or module:Class.")
@click.option("--trainer-option", type=OPTION_PAIR, multiple=True, help="Option of the trainer; may be repeated.")
@click.option(
    "--incomplete", type=click.Choice((KEEP, DROP)), default=DROP, show_default=True, help="Partly scored groups."
)
@click.option(
    "--equal", type=click.Choice((KEEP, DROP)), default=DROP, show_default=True, help="Groups of equal rewards."
)
@click.option(
    "--segments", type=click.Choice((ALL, LAST)), default=ALL, show_default=True, help="Token sequences to send."
)
@json_option
@click.pass_context
def submit(
    ctx: click.Context,
    run_dir: str,
    trainer: str,
    trainer_option: tuple[tuple[str, str], ...],
    incomplete: str,
    equal: str,
    segments: str,
    as_json: bool,
) -> int:
    """Send the scored groups of the run in RUN_DIR to a trainer, for example one behind atroposlib's API server.

    Exits with 0 if there are groups and the trainer accepted all of them, else with 1.
    """
    options = ExportOptions(to="atropos", incomplete=incomplete, equal=equal, segments=segments)
    made = load_trainer(trainer, dict(trainer_option))
    taken, declined = run_until_signal(_submit(made, run_dir, options), ctx.ensure_object(State))
    if as_json:
        print_json({"accepted": taken, "declined": declined})
    else:
        click.echo(f"{taken} of {taken + len(declined)} groups accepted")
    return 0 if taken and not declined else 1


async def _submit(trainer: Trainer, run_dir: str, options: ExportOptions) -> tuple[int, dict[str, str]]:
    """Return the number of accepted groups, and the reasons for the declined ones, by item id."""
    taken, declined = 0, {}
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
