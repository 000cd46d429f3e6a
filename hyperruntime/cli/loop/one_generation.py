"""``hyperrun evaluate`` and ``hyperrun export``: evaluate one generation outside of its run, or
take it out.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.consent import trust_option, with_consent
from hyperruntime.cli.loop.generate import ensure_image
from hyperruntime.cli.messages import note
from hyperruntime.cli.params import GENERATION, RUN_DIRECTORY
from hyperruntime.cli.signals import EXIT_BY_SIGNAL, last_signal
from hyperruntime.cli.tables import json_option, print_json, print_table
from hyperruntime.loop.run.evaluate_one import Evaluation, evaluate_generation, image_to_evaluate
from hyperruntime.loop.run.export import export_generation
from hyperruntime.loop.run_files.archive import read_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.loop.workbench.failures import RunInterruptedError


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun evaluate outputs/generate_1 best --split test",
        "hyperrun evaluate outputs/generate_1 7 --split val --samples 20 --repeat 3 --json",
    ),
)
@click.argument("run_dir", type=RUN_DIRECTORY)
@click.argument("generation", type=GENERATION)
@click.option(
    "--split", metavar="NAME", default="test", show_default=True, help="Split to evaluate on."
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="Maximum number of tasks of each domain; default: all.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of repetitions.",
)
@trust_option
@json_option
@click.pass_obj
def evaluate(
    state: State,
    /,
    run_dir: str,
    generation: GenId,
    as_json: bool,
    trust: bool,
    **chosen: Any,  # noqa: ANN401 - the options by name
) -> int:
    """Evaluate GENERATION (a number, initial, or best) of the run in RUN_DIR, outside of the run.

    Predictions and reports are written to evaluations/ in RUN_DIR, where agents do not see them.
    Nothing else of the run changes; it may still be running. Existing results are not computed
    again.
    """
    options = read_run(Layout(Path(run_dir)))[0]
    image = with_consent(lambda trust: image_to_evaluate(run_dir, trust=trust), trust=trust)
    with state.open_runtime(run_id=str(options.run_id)) as runtime:
        ensure_image(runtime, image)
        with last_signal(state) as number:
            try:
                made = evaluate_generation(
                    runtime, run_dir, generation, trust=True, on_event=_tell, **chosen
                )
            except RunInterruptedError as error:
                note(str(error))
                made = ()
    if not made:
        return EXIT_BY_SIGNAL + (number() or signal.SIGINT)
    if as_json:
        print_json(made)
    else:
        _print(made)
    return 0


def _tell(event: StepEvent) -> None:
    if event.state == "start" and event.step in ("load check", "evaluate"):
        note(f"generation {event.generation}: {event.step}")


def _print(made: Sequence[Evaluation]) -> None:
    """Print one row per repetition, then the mean if there are several."""
    more = tuple(made[0].scores) if len(made[0].scores) > 1 else ()
    rows = [
        (
            f"{one.genid}",
            one.split,
            f"{one.repeat}",
            f"{sum(one.tasks.values())}",
            f"{one.score:.4f}",
            *(f"{one.scores[name]:.4f}" for name in more),
            one.path,
        )
        for one in made
    ]
    print_table(
        ("generation", "split", "repeat", "tasks", "score", *more, "where"),
        rows,
        right=("tasks", "score", *more),
    )
    if len(made) > 1:
        note(f"mean {sum(one.score for one in made) / len(made):.4f}")


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun export outputs/generate_1 best ./agent",
        "hyperrun export outputs/generate_1 7 ./agent-7",
    ),
)
@click.argument("run_dir", type=RUN_DIRECTORY)
@click.argument("generation", type=GENERATION)
@click.argument("target", metavar="DIR")
@json_option
def export(run_dir: str, generation: GenId, target: str, as_json: bool) -> None:
    """Write GENERATION (a number, initial, or best) of the run in RUN_DIR to DIR, a runnable git
    repository.

    It has one commit per generation of the lineage; the messages contain the scores. DIR must be
    missing or empty.
    """
    made = export_generation(run_dir, generation, target)
    if as_json:
        print_json({"path": made.path, "commit": made.commit, "lineage": list(made.lineage)})
        return
    click.echo(made.path)
    note(f"{len(made.lineage)} generations: {' '.join(map(str, made.lineage))}")
