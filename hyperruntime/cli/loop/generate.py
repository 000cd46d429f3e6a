"""``hyperrun generate`` and ``hyperrun resume``: run the generate loop and show its progress."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime.cli.command import Command, SpreadingCommand, State, example
from hyperruntime.cli.config_file import agent_domains
from hyperruntime.cli.loop.generations import ensembles_failed, print_generations, run_to_json
from hyperruntime.cli.loop.options import changed_options, make_options, option_decorators, resume_decorators
from hyperruntime.cli.loop.progress import Tracker, plain_progress
from hyperruntime.cli.loop.report import plots_at_end
from hyperruntime.cli.messages import Lines, WrongUsageError, note
from hyperruntime.cli.params import RUN_DIRECTORY
from hyperruntime.cli.signals import EXIT_BY_SIGNAL, last_signal
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.errors import RunError, StorageError
from hyperruntime.images.recipes import BASE, image_reference
from hyperruntime.loop.run.import_hyperagents import import_run
from hyperruntime.loop.run.plan import plan_run, run_image
from hyperruntime.loop.run.run import RunSummary, resume_run, start_run
from hyperruntime.loop.run_files.archive import RunView, load_run
from hyperruntime.loop.run_files.contract import detect_contract
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.events import OnEvent
from hyperruntime.runtime import Runtime
from hyperruntime.storage.atomic import make_directory


@click.command(
    cls=SpreadingCommand,
    epilog=example(
        "hyperrun generate --domains circle_packing --max-generation 20 --parallel 2",
        "hyperrun generate --domains circle_packing --agent ./my-agent --timeout-meta 10m --json",
        "hyperrun generate --config run.toml --limits memory=2g,cpus=1.5 --seed 3",
        "hyperrun generate --resume-from outputs/generate_1 --max-generation 50",
    ),
)
@option_decorators
@json_option
@click.pass_context
def generate(ctx: click.Context, /, as_json: bool, **values: Any) -> int:  # noqa: ANN401 - the options by name
    """Run the generate loop: each generation is a patched copy of an agent, run and evaluated in fresh containers.

    Exits with 0 if a generation has a score, else with 1; also with 1 if the ensembles of all new generations failed.
    An interrupt keeps all finished generations; continue with `hyperrun resume`. Options may be written with
    underscores.
    """
    state, run_dir = ctx.ensure_object(State), values.pop("resume_from")
    state.runtime = values.pop("runtime") or state.runtime
    if run_dir is not None:
        import_run(run_dir)
        view = load_run(run_dir)
        return go_on(state, view, as_json, changed_options(ctx, values, view.options, run_dir))
    if values.get("agent") is None and detect_contract(".") == "hyperagents":
        values["agent"] = "."  # HyperAgents is run in its own checkout
    if not values["domains"] and values.get("agent"):
        values["domains"] = (agent_domains(Path(values["agent"])),)
    options = make_options(values)
    summary, number = run_generations(state, options)
    return _finish(summary, number, options, as_json)


@click.command(
    cls=Command,
    epilog=example("hyperrun resume outputs/generate_1", "hyperrun resume outputs/generate_1 --max-generation 50"),
)
@click.argument("run_dir", type=RUN_DIRECTORY)
@resume_decorators
@json_option
@click.pass_obj
def resume(state: State, /, run_dir: str, as_json: bool, **changes: Any) -> int:  # noqa: ANN401 - options by name
    """Resume the run in RUN_DIR after an interrupt or a crash, or extend a finished run.

    This also works for a run that HyperAgents wrote: its files are kept and ours are added.
    """
    import_run(run_dir)
    return go_on(state, load_run(run_dir), as_json, changes)


def go_on(state: State, view: RunView, as_json: bool, changes: Mapping[str, Any]) -> int:
    """Resume a run, possibly with changed options, and show its progress; return the exit code.

    Args:
        state: the global options.
        view: the run as stored.
        as_json: whether to print the summary as JSON.
        changes: new values of changeable options; None keeps a stored value.
    """
    run_dir, asked = view.run_dir, changes.get("max_generation")
    last = view.options.max_generation if asked is None else int(asked)
    tracker = Tracker(last + 1, view.generations)
    note(f"resuming {run_dir}: {len(view.generations)} of {last + 1} generations are finished")
    with state.open_runtime(run_id=str(view.options.run_id)) as runtime:
        image = changes.get("image") or view.options.image
        ensure_image(runtime, run_image(attrs.evolve(view.options, image=image)))
        with last_signal(state) as number, _shown_progress(tracker) as on_event:
            summary = resume_run(runtime, run_dir, changes=changes, on_event=on_event)
    return _finish(summary, number(), view.options, as_json)


def run_generations(state: State, options: GenerateOptions) -> tuple[RunSummary, int]:
    """Start a run and show its progress; return its summary, and the number of the signal that ended it or 0.

    All options are checked, and the parent of the run directory is made, before an engine is used.

    Args:
        state: the global options.
        options: the options of the run.

    Raises:
        HyperRuntimeError: a domain or the agent is unknown.
        WrongUsageError: the run directory exists or cannot be made.
    """
    try:
        plan = plan_run(options)
        parent = make_directory(plan.layout.root.parent)
    except (RunError, StorageError) as error:
        raise WrongUsageError(str(error)) from error
    if not os.access(parent, os.W_OK | os.X_OK):
        raise WrongUsageError(f"{str(parent)!r} cannot be written; give another --output-dir-parent")
    with state.open_runtime(run_id=str(plan.options.run_id)) as runtime:
        ensure_image(runtime, plan.image)
        note(f"run {plan.layout.root}, seed {plan.options.seed}, {runtime.name} {runtime.info.version}")
        with last_signal(state) as number, _shown_progress(Tracker(options.max_generation + 1)) as on_event:
            summary = start_run(runtime, plan, on_event=on_event)
    return summary, number()


def ensure_image(runtime: Runtime, name: str) -> None:
    """Make the run's image if it is missing, and show the engine's output.

    Args:
        runtime: the runtime that needs the image.
        name: recipe name or image reference.
    """
    reference = image_reference(name)
    if not runtime.images.exists(reference):
        if name == BASE:
            note(f"image {reference} is missing; making it, which takes about a minute")
        runtime.images.ensure(name, on_output=Lines())


def _finish(summary: RunSummary, number: int, options: GenerateOptions, as_json: bool) -> int:
    """Print the result of a run, and the next step on standard error; draw its plots; return the exit code."""
    if as_json:
        facts = {"seed": options.seed, "interrupted": summary.interrupted, "used_up": summary.used_up or None}
        print_json(run_to_json(summary.run_dir, summary.generations, **facts))
    else:
        if summary.generations:
            print_generations(summary.generations)
        click.echo(summary.run_dir)
    if summary.interrupted:
        note(f"interrupted; continue with: hyperrun resume {shlex.quote(summary.run_dir)}")
    elif summary.used_up:
        note(
            f"{summary.used_up}; resume with a larger one: hyperrun resume {shlex.quote(summary.run_dir)} --budget-..."
        )
    if reason := ensembles_failed(summary.generations):
        note(f"the ensembles of all new generations failed, the last one: {reason}; see its generate.log")
    plots_at_end(summary, options)
    return exit_code(summary, number)


def exit_code(summary: RunSummary, number: int) -> int:
    """Return the exit code of a run.

    Args:
        summary: the run's result.
        number: the signal that ended the run, or 0; used only for an interrupted run, where 0 means SIGINT.
    """
    if summary.interrupted:
        return EXIT_BY_SIGNAL + (number or signal.SIGINT)
    return 1 if summary.best is None or ensembles_failed(summary.generations) else 0


@contextmanager
def _shown_progress(tracker: Tracker) -> Iterator[OnEvent]:
    """Show the progress, live if standard error is a terminal, else as lines; yield the function that takes events."""
    if not sys.stderr.isatty():
        yield plain_progress(tracker)
        return
    from hyperruntime.cli.loop.live import LiveDisplay

    display = LiveDisplay(tracker)
    with display.live:
        yield display.on_event
