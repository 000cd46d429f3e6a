"""``hyperrun generate`` and ``hyperrun resume``: run the generate loop and show its progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from hyperruntime import registry
from hyperruntime.agents import agent_folder, template_path
from hyperruntime.cli.command import SpreadingCommand, State, example
from hyperruntime.cli.config_file import agent_domains, config_option, config_table, use_limits
from hyperruntime.cli.consent import trust_option, with_consent
from hyperruntime.cli.field_options import (
    add_options,
    all_options,
    changeable,
    changeable_options,
    field_values,
    given,
)
from hyperruntime.cli.live_page import live_page, logger_option, watch_option
from hyperruntime.cli.loop.machines import machines
from hyperruntime.cli.loop.progress import Tracker, finish, showing_what_there_is
from hyperruntime.cli.loop.studies import options_of_study, resume_study, start_study
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.cli.params import LIMITS, RUN_DIRECTORY, RUN_OR_STUDY
from hyperruntime.cli.progress import shown_progress
from hyperruntime.cli.signals import drained_by_signals, last_signal
from hyperruntime.cli.tables import json_option
from hyperruntime.errors import RunError, StorageError, unknown_name
from hyperruntime.loop.run.import_hyperagents import import_run
from hyperruntime.loop.run.plan import (
    ResumePlan,
    RunPlan,
    absolute_references,
    agent_here,
    plan_resume,
    plan_run,
)
from hyperruntime.loop.run.run import RunSummary, resume_run, start_run
from hyperruntime.loop.run.study import study_directory
from hyperruntime.loop.run_files.archive import RunView, load_run
from hyperruntime.loop.run_files.layout import PREFIX, Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.study import is_study
from hyperruntime.option_fields import OptionField, changed, option_fields
from hyperruntime.runs.lock import wait_for_lease
from hyperruntime.runs.options import check_unchanged
from hyperruntime.storage.atomic import make_directory

_Plan = TypeVar("_Plan", bound=RunPlan)


_CONFIG = config_option(
    config_table,
    "TOML with these options in [generate] and the gateway's in [gateway]; the command line wins.",
)
_RUNTIME = click.option(
    "--runtime", metavar="NAME", help="Container runtime, as in `hyperrun --runtime NAME`."
)
_RESUME = click.option("--resume-from", type=RUN_DIRECTORY, metavar="RUN_DIR",
    help="Resume this run; only the options of `hyperrun resume` may change.")  # fmt: skip
_RESUME_OR_START = click.option("--resume-or-start", is_flag=True,
    help="Resume the run of this --run-id if it exists, else start it; implies --wait. For batch jobs.")  # fmt: skip
_WAIT = click.option("--wait", is_flag=True,
    help="Wait, at most 2 minutes, while a process on another machine that may be dead owns the run.")  # fmt: skip
_LIMITS = click.option("--limits", type=LIMITS, is_eager=True, expose_value=False, callback=use_limits,
    metavar="memory=SIZE,cpus=N,pids=N,disk=SIZE,shm=SIZE", help="Set several of the next five options.")  # fmt: skip

# The options of HyperAgents; a prefix of one of them works as there, although hyperrun has further
# options.
ORIGINAL = (
    "--run-id", "--domains", "--max-generation", "--eval-samples", "--eval-workers", "--parent-selection",
    "--resume-from", "--output-dir-parent", "--meta-patch-files", "--reset-task-agent", "--reset-meta-agent",
    "--copy-root-dir", "--run-baseline", "--optimize-option", "--agent-archive-path", "--eval-test",
    "--skip-staged-eval", "--edit-select-parent",
)  # fmt: skip

CLUSTER = click.option("--cluster", type=click.Path(path_type=Path), metavar="FILE",
    help="Make the generations on nodes of a batch system, as the table [cluster] of this TOML file says.")  # fmt: skip

REPEAT = click.option("--repeat", type=click.IntRange(min=1), metavar="N",
    help="Make a study of N runs, with the seed of the first and the next ones; --parallel is for all.")  # fmt: skip

option_decorators = all_options(
    GenerateOptions,
    {
        "domains": (_CONFIG, _RUNTIME),
        "parallel": (REPEAT,),
        "executor": (CLUSTER, _RESUME, _RESUME_OR_START, _WAIT, trust_option),
        "memory": (_LIMITS,),
    },
)
resume_decorators = add_options((CLUSTER, _WAIT, trust_option, changeable_options(GenerateOptions)))


@click.command(
    cls=SpreadingCommand,
    preferred=ORIGINAL,
    epilog=example(
        "hyperrun generate --domains circle_packing --max-generation 20 --parallel 2",
        "hyperrun generate --domains circle_packing --agent ./my-agent --timeout-meta 10m --json",
        "hyperrun generate --config run.toml --limits memory=2g,cpus=1.5 --seed 3",
        "hyperrun generate --resume-from outputs/generate_1 --max-generation 50",
        "hyperrun generate --domains circle_packing --run-id job1 --resume-or-start",
        "hyperrun generate --domains circle_packing --repeat 5 --parallel 5",
    ),
)
@option_decorators
@watch_option
@logger_option
@json_option
@click.pass_context
def generate(ctx: click.Context, /, as_json: bool, **values: Any) -> int:  # noqa: ANN401 - the options by name
    """Run the generate loop: each generation is a patched copy of an agent, run and evaluated in
    fresh containers.

    Exits with 0 if a new generation has a score, else with 1; also with 1 if the ensembles of all
    new generations failed. An interrupt keeps all finished generations; continue with
    `hyperrun resume`. Options may be written with underscores, and shortened to an unambiguous
    prefix.

    With --repeat, one study of several runs is made. A run that fails does not end the others; the
    command exits with 0 if it would for each of them, else with 1.
    """
    state = ctx.ensure_object(State)
    run_dir = values.pop("resume_from")
    wait = values.pop("wait")
    may_start = values.pop("resume_or_start")
    cluster = values.pop("cluster")
    trust = values.pop("trust")
    repeat = values.pop("repeat")
    state.runtime = values.pop("runtime") or state.runtime
    if repeat is not None and run_dir is not None:
        raise WrongUsageError("--repeat cannot be combined with --resume-from; leave it out")
    if may_start and run_dir is None:
        wait = True
        if repeat is None:
            run_dir = _existing_run(values)
        elif (root := _existing_study(values)) is not None:
            changes = changed_options(ctx, values, options_of_study(root, repeat), str(root))
            return resume_study(
                state, root, changes, cluster, wait=wait, trust=trust, as_json=as_json
            )
    elif wait and run_dir is None:
        raise WrongUsageError("--wait requires --resume-from or --resume-or-start")
    elif trust and run_dir is None:
        raise WrongUsageError("--trust requires --resume-from or --resume-or-start")
    if run_dir is not None:
        import_run(run_dir)
        view = load_run(run_dir)
        changes = changed_options(ctx, values, view.options, run_dir)
        said = given_paths(ctx, values)
        plan = partial(plan_resume, run_dir, changes=changes, given=said, wait=wait)
        return go_on(state, view, as_json, plan, trust=trust, cluster=cluster)
    options = make_options(_with_agent(values))
    if repeat is not None:
        return start_study(state, options, repeat, cluster, as_json=as_json)
    summary, number = run_generations(state, options, cluster, as_json=as_json)
    return finish(summary, number, options, as_json)


@click.command(
    cls=SpreadingCommand,
    epilog=example(
        "hyperrun resume outputs/generate_1",
        "hyperrun resume outputs/generate_1 --max-generation 50",
    ),
)
@click.argument("run_dir", type=RUN_OR_STUDY)
@resume_decorators
@watch_option
@logger_option
@json_option
@click.pass_obj
def resume(
    state: State,
    /,
    run_dir: str,
    as_json: bool,
    wait: bool,
    trust: bool,
    cluster: Path | None,
    **changes: Any,  # noqa: ANN401 - options by name
) -> int:
    """Resume the run or the study in RUN_DIR after an interrupt or a crash, or extend a finished
    one. Options of a study apply to each of its runs, but --parallel to all together.

    This also works for a run that HyperAgents wrote: its files are kept and ours are added.
    """
    known = changes_by_field(changes)
    if is_study(root := Path(run_dir)):
        return resume_study(state, root, known, cluster, trust=trust, wait=wait, as_json=as_json)
    import_run(run_dir)
    plan = partial(plan_resume, run_dir, changes=known, wait=wait)
    return go_on(state, load_run(run_dir), as_json, plan, trust=trust, cluster=cluster)


def _with_agent(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all options with the agent of the working directory and the agent's own
    domains, unless the user names others.
    """
    agent = agent_here() if values.get("agent") is None else values["agent"]
    domains = values["domains"]
    if not domains and agent:
        is_path = os.sep in agent or os.path.exists(agent)
        domains = (agent_domains(agent_folder(agent) if is_path else template_path(agent)),)
    return {**values, "agent": agent, "domains": domains}


def _existing_run(values: Mapping[str, Any]) -> str | None:
    """Return the run that has the run id of these options; None if it must be started.

    A start that was killed on another machine may have left a directory with a lease but no run;
    wait for the lease.
    """
    layout = Layout(run_of_id(values))
    if not _is_run(layout) and layout.root.is_dir():
        wait_for_lease(layout.root)  # the owner may also live and store the run now
    return str(layout.root) if _is_run(layout) else None


def _existing_study(values: Mapping[str, Any]) -> Path | None:
    """Return the study that has the run id of these options; None if it must be started."""
    root = study_directory(values["output_dir_parent"], run_of_id(values).name.removeprefix(PREFIX))
    if not is_study(root) and root.is_dir():
        wait_for_lease(root)
    return root if is_study(root) else None


def _is_run(layout: Layout) -> bool:
    return layout.run.is_file() or layout.archive.is_file()


def go_on(
    state: State,
    view: RunView,
    as_json: bool,
    make_plan: Callable[..., ResumePlan],
    *,
    trust: bool = False,
    cluster: Path | None = None,
) -> int:
    """Resume a run, possibly with changed options, and show its progress; return the exit code.

    Args:
        state: the global options.
        view: the run as stored.
        as_json: whether to print the summary as JSON.
        make_plan: returns the plan of the resume for a value of ``trust``.
        trust: as for :func:`~hyperruntime.loop.run.plan.plan_resume`; without it, the user is asked
            on a terminal.
        cluster: file with the table of a cluster; None: the generations are made here.
    """
    run_dir = view.run_dir
    plan = with_consent(lambda trust: make_plan(trust=trust), trust=trust)
    wanted = attrs.evolve(view, options=plan.options).wanted
    tracker = Tracker(wanted, view.generations)
    with (
        showing_what_there_is(lambda: Path(run_dir), as_json),
        machines(state, plan, cluster) as made_on,
        last_signal(state) as number,
        drained_by_signals(state, here=cluster is None) as drain,
        shown_progress(tracker) as on_event,
        live_page(state) as start_page,
    ):

        def on_start(path: Path) -> None:
            note(
                f"resuming {run_dir}: {len(view.generations)} of {wanted} generations are finished"
            )
            start_page(path)

        summary = resume_run(
            made_on.runtime, made_on.with_executor(plan), on_event, on_start=on_start, drain=drain
        )
    return finish(summary, number(), view.options, as_json)


def run_generations(
    state: State, options: GenerateOptions, cluster: Path | None = None, *, as_json: bool
) -> tuple[RunSummary, int]:
    """Start a run and show its progress; return its summary, and the number of the signal that
    ended it or 0.

    All options are checked, and the parent of the run directory is made, before an engine is used.

    Args:
        state: the global options.
        options: the options of the run.
        cluster: as for :func:`go_on`.
        as_json: whether to print what there is as JSON if an error ends the run.

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
        raise WrongUsageError(
            f"{str(parent)!r} cannot be written; give another --output-dir-parent"
        )
    started: list[Path] = []
    with (
        showing_what_there_is(lambda: started[0] if started else None, as_json),
        machines(state, plan, cluster) as made_on,
    ):
        said = f"seed {plan.options.seed}, {made_on.name}"
        tracker = Tracker(options.max_generation + 1)
        with (
            last_signal(state) as number,
            drained_by_signals(state, here=cluster is None) as drain,
            shown_progress(tracker) as on_event,
            live_page(state) as start_page,
        ):

            def on_start(path: Path) -> None:
                started.append(path)
                note(f"run {path}, {said}")
                start_page(path)

            summary = start_run(
                made_on.runtime,
                made_on.with_executor(plan),
                on_event,
                on_start=on_start,
                drain=drain,
            )
    return summary, number()


def make_options(values: Mapping[str, Any]) -> GenerateOptions:
    """Return the run options for the command line's values, with a run id and a seed.

    Raises:
        SpecError: a value is not allowed.
        WrongUsageError: no domain is given, or the executor is unknown.
    """
    found = field_values(GenerateOptions, values)
    domains = found["domains",]
    if not domains:
        raise WrongUsageError(
            "name what to evaluate on with --domains; `hyperrun domains` lists what there is"
        )
    check_executor(values["executor"])
    return changed(GenerateOptions(domains=domains), found).settled()


def check_executor(name: str) -> None:
    """Raise if no installed executor has this name.

    Raises:
        WrongUsageError: the executor is unknown.
    """
    known = registry.plugins(registry.EXECUTORS)
    if name not in known:
        raise WrongUsageError(unknown_name("executor", name, known))


def changes_by_field(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of ``hyperrun resume`` by the field of :class:`GenerateOptions`.

    Raises:
        WrongUsageError: the executor is unknown.
    """
    if values["executor"] is not None:
        check_executor(values["executor"])
    return {field.path[0]: values[name] for name, field in changeable(GenerateOptions).items()}


def run_of_id(values: Mapping[str, Any]) -> Path:
    """Return the directory that a run with these options has.

    Raises:
        WrongUsageError: the run id is missing.
    """
    if values["run_id"] is None:
        raise WrongUsageError(
            "--resume-or-start requires --run-id, by which the run is found again"
        )
    return Path(values["output_dir_parent"], f"{PREFIX}{values['run_id']}")


def changed_options(
    ctx: click.Context, values: Mapping[str, Any], stored: GenerateOptions, run_dir: str
) -> dict[str, Any]:
    """Return the given options that may change, by field; other given options must equal those of
    the run.

    Args:
        ctx: knows which options were given.
        values: the values of all options, by name.
        stored: the options of the run.
        run_dir: the run directory.

    Raises:
        OptionChangedError: a given option differs from the run's and cannot change.
        SpecError: a value is not allowed.
    """
    said = given_paths(ctx, values)
    kept = {} if ("domains",) in said else {"domains": [stored.domains]}
    asked = make_options({**values, **kept})
    here = attrs.evolve(stored, output_dir_parent=os.path.dirname(os.path.abspath(run_dir)))
    check_unchanged(here, asked, Path(run_dir), said=said, plain=_comparable)
    known = changeable(GenerateOptions).values()
    return {field.path[0]: field.of(asked) for field in known if field.path in said}


def given_paths(ctx: click.Context, values: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """Return the paths of the fields of options that the user gave, on the command line or in a
    file.

    Args:
        ctx: knows which options were given.
        values: the values of all options, by name.
    """
    said = given(ctx, values, in_file=True)
    return {field.path for field in option_fields(GenerateOptions) if field.name in said}


def _comparable(field: OptionField, options: GenerateOptions) -> Any:  # noqa: ANN401 - of any field
    value = field.of(options)
    if field.name == "domains":
        return absolute_references(value)
    return os.path.abspath(value) if field.option.kind == "path" and value is not None else value
