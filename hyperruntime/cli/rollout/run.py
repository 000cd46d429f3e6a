"""``hyperrun rollout run``: run agents on items, score them, and write trajectories.

Its options are the fields of ``RolloutOptions``, and options of the command itself.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime.cli.command import SpreadingCommand, State, example
from hyperruntime.cli.config_file import config_option, generate_table
from hyperruntime.cli.consent import trust_option, with_consent
from hyperruntime.cli.field_options import all_options, field_values, given_changes
from hyperruntime.cli.live_page import live_page, watch_option
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.cli.progress import Line, Running, shown_progress
from hyperruntime.cli.rollout.models import make_model
from hyperruntime.cli.signals import drained_by_signals, run_until_signal
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.cli.trajectories import rollout_line
from hyperruntime.cluster.config import ClusterConfig, read_config
from hyperruntime.datasets.left_out import shown
from hyperruntime.errors import HyperRuntimeError, RunLockedError
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.option_fields import changed
from hyperruntime.rollout.run.options import RolloutOptions, new_run_id
from hyperruntime.rollout.run.progress import RolloutEvent
from hyperruntime.rollout.run.runner import run_rollouts
from hyperruntime.rollout.run.store import RunStore, resumable_options, stored_options
from hyperruntime.rollout.run.summary import RolloutSummary
from hyperruntime.rollout.run_files.record import SCORED
from hyperruntime.runs.lock import is_unowned_remnant, wait_for_lease
from hyperruntime.runs.options import RUN_ID, RUN_ID_FORM
from hyperruntime.runs.run_file import RUN
from hyperruntime.storage.atomic import make_new_directory
from hyperruntime.storage.run_files import refuse_links
from hyperruntime.units import format_duration

_CONFIG = config_option(
    partial(generate_table, name="rollout"),
    "TOML with these options in [rollout]; the command line wins.",
)
_DIRECTORY = (
    click.option(
        "--run-id",
        metavar="TEXT",
        help="Name the run directory rollout_<run-id>; default: the time.",
    ),
    click.option(
        "--output-dir-parent",
        metavar="DIR",
        default="./outputs",
        show_default=True,
        help="Directory of the run directories.",
    ),
    click.option("--output-dir", metavar="DIR", help="The run directory itself."),
    click.option(
        "--resume-from",
        metavar="RUN_DIR",
        help="Resume this run; only --parallel, --attempts, "
        "--give-up-after, --retry-failed, --cluster, the pool and the model's server may change.",
    ),
    click.option(
        "--resume-or-start",
        is_flag=True,
        help="Resume the run of this --run-id or --output-dir if it exists, else start it.",
    ),
    trust_option,
    click.option(
        "--cluster",
        metavar="FILE",
        help="Make trajectories on the nodes of the [cluster] table of this TOML "
        "file; the options of the pool are for each node.",
    ),
)
CLUSTER = "cluster"  # in the run directory: job scripts and logs of nodes
RunOn = Callable[..., Coroutine[Any, Any, RolloutSummary]]
_OPTIONS = all_options(RolloutOptions, {"environment": (_CONFIG,), "retry_failed": _DIRECTORY})
_LINES_EVERY_S = 1.0


@click.command(
    cls=SpreadingCommand,
    epilog=example(
        "hyperrun rollout run --environment swe --option items=items.jsonl --group-size 8 "
        "--parallel 16 \\",
        "    --model qwen --base-url http://127.0.0.1:8000/v1",
        "hyperrun rollout run --config rollout.toml --seed 3",
        "hyperrun rollout run --config rollout.toml --parallel 64 --cluster cluster.toml",
        "hyperrun rollout run --resume-from outputs/rollout_1 --retry-failed",
        "hyperrun rollout run --config rollout.toml --run-id job1 --resume-or-start",
    ),
)
@_OPTIONS
@watch_option
@json_option
@click.pass_context
def run(ctx: click.Context, /, as_json: bool, **values: Any) -> int:  # noqa: ANN401 - the options by name
    """Run agents on items in leased slots, score them, and write trajectories and groups.

    Each item is attempted --group-size times. Exits with 0 if a trajectory was scored, else with 1.
    An interrupt keeps all scored trajectories; continue with --resume-from. With --cluster, they
    are made on nodes of a batch system.
    """
    state = ctx.ensure_object(State)
    cluster, again, trust = (values.pop(name) for name in ("cluster", "resume_or_start", "trust"))
    if trust and not values["resume_from"]:
        raise WrongUsageError("--trust requires --resume-from")
    config = read_config(Path(cluster), state.runtime) if cluster else None
    place: AbstractContextManager[Path]
    if values["resume_from"]:
        run_dir = Path(values["resume_from"])
        refuse_links(run_dir)
        changes = _changes(ctx, values, stored_options(run_dir))
        place = nullcontext(run_dir)
        options = with_consent(
            lambda trust: resumable_options(run_dir, changes, trust=trust), trust=trust
        )
    else:
        options = make_options(values).settled()
        place = run_directory(values, again=again)
    with (
        place as run_dir,
        _showing_what_there_is(run_dir),
        _machines(state, options, config, run_dir) as (where, run_on),
        drained_by_signals(state, here=config is None) as drain,
        shown_progress(Tracker()) as on_event,
        live_page(state) as start_page,
    ):

        def on_start() -> None:
            note(f"run {run_dir}, seed {options.seed}, {where}")
            start_page(run_dir)

        work = run_on(options, run_dir=run_dir, on_event=on_event, on_start=on_start, drain=drain)
        summary = run_until_signal(work, state)  # slots are released first
        if summary.interrupted:
            state.signal = state.first_signal
            raise KeyboardInterrupt
    _print(summary, as_json)
    return 0 if summary.scored else 1


@contextmanager
def _showing_what_there_is(run_dir: Path) -> Iterator[None]:
    """If an error ends the block, first show the run so far, and how to resume it."""
    try:
        yield
    except RunLockedError:  # another process makes it
        raise
    except BaseException as error:
        if (run_dir / RUN).is_file():
            with suppress(HyperRuntimeError, OSError):  # the first error is reported
                note(rollout_line(run_dir, list(RunStore(run_dir).recorded()), is_running=False))
            interrupted = "interrupted; " if isinstance(error, KeyboardInterrupt) else ""
            note(
                f"{interrupted}continue with: hyperrun rollout run --resume-from "
                f"{shlex.quote(str(run_dir))}"
            )
        raise


@contextmanager
def _machines(
    state: State, options: RolloutOptions, config: ClusterConfig | None, run_dir: Path
) -> Iterator[tuple[str, RunOn]]:
    """Yield where trajectories are made, in words, and the function that makes them: here, or on a
    cluster's nodes.
    """
    if config is None:
        with state.open_runtime(run_id=run_dir.name) as runtime:
            yield f"{runtime.name} {runtime.info.version}", partial(run_rollouts, runtime)
    else:
        from hyperruntime.cluster.cluster import Cluster
        from hyperruntime.cluster.rollouts.node_episodes import run_rollouts_on

        key = None if options.model is None else options.model.key_env
        if key is not None:  # it stays here, as all keys do
            config = attrs.evolve(config, withhold=(*config.withhold, key))
        cluster = Cluster(config, run_dir / CLUSTER)
        yield (
            f"at most {config.max_nodes} nodes by {config.parsl or config.provider}",
            partial(run_rollouts_on, cluster),
        )


@contextmanager
def run_directory(values: dict[str, Any], *, again: bool = False) -> Iterator[Path]:
    """Yield the directory of a new run; without a chosen name it is made, and removed if no run is
    stored in it.

    Args:
        values: options by name.
        again: also yield the directory of an existing run; first wait while an owner that may be
            dead holds its lease.

    Raises:
        WrongUsageError: the directory has a run already, the run id is invalid, or ``again`` lacks
            a run id and a directory.
    """
    chosen = values["output_dir"]
    run_id = values["run_id"] or new_run_id()
    if not RUN_ID.fullmatch(run_id):
        raise WrongUsageError(f"--run-id {run_id!r} is not allowed: use {RUN_ID_FORM}")
    path = (
        Path(chosen) if chosen else Path(values["output_dir_parent"]) / f"rollout_{run_id}"
    ).absolute()
    if again and not chosen and not values["run_id"]:
        raise WrongUsageError(
            "--resume-or-start requires --run-id or --output-dir, by which the run is found again"
        )
    if chosen or values["run_id"]:
        if again:
            wait_for_lease(path)
        elif (path / RUN).exists():
            step = f"resume it with `hyperrun rollout run --resume-from {shlex.quote(str(path))}`"
            raise WrongUsageError(
                f"run directory {str(path)!r} exists already; {step}, or give another --run-id"
            )
        yield path
        return
    made = make_new_directory(path)
    try:
        yield made
    finally:
        if is_unowned_remnant(made):
            remove_tree(made)


def _changes(
    ctx: click.Context, values: dict[str, Any], stored: RolloutOptions
) -> dict[tuple[str, ...], Any]:
    """Return the given changes of the stored options of a run, by the paths of their fields.

    Raises:
        WrongUsageError: an option is given that cannot change.
    """
    ending = "a run is resumed; leave it out, or start another run"
    changes = given_changes(ctx, RolloutOptions, values.keys() - {"resume_from"}, ending)
    if stored.model is None:
        changes = {path: value for path, value in changes.items() if path[0] != "model"}
    return {("retry_failed",): False, **changes}


def _print(summary: RolloutSummary, as_json: bool) -> None:
    """Print the result of a run."""
    if as_json:
        print_json(summary.to_json())
        return
    counts = ", ".join(f"{name} {count}" for name, count in sorted(summary.errors.items()))
    mean = "none" if summary.mean_reward is None else f"{summary.mean_reward:.4f}"
    note(
        f"{summary.scored} of {summary.wanted} trajectories scored, mean reward {mean}; "
        f"{summary.groups} full groups"
        + (f"; {summary.infrastructure} failed ({counts})" if summary.infrastructure else "")
    )
    note(
        f"{format_duration(summary.duration_s)}, {summary.per_minute:.1f} trajectories per minute, "
        f"{summary.own_share:.1%} of their time spent neither in the model nor in commands"
    )
    if summary.left_out:
        note(f"items left out: {shown(summary.left_out)}")
    for kind, message in sorted(summary.last_errors.items()):
        note(f"the last {kind or 'failure'}: {message}")
    click.echo(os.fspath(summary.run_dir))


def make_options(values: Mapping[str, Any]) -> RolloutOptions:
    """Return the run options for the command line's values.

    Raises:
        SpecError: a value is not allowed.
        WrongUsageError: the environment or the model is missing.
    """
    if not values["environment"]:
        raise WrongUsageError(
            "give --environment NAME; `hyperrun rollout environments` lists the installed ones"
        )
    found = {
        path: value
        for path, value in field_values(RolloutOptions, values).items()
        if path[0] != "model"
    }
    found["environment_options",] = dict(values["option"])
    env = dict(values["env"])
    found["container", "env"] = {name: text for name, text in env.items() if text is not None}
    found["env_names",] = tuple(name for name, text in env.items() if text is None)
    return changed(
        RolloutOptions(environment=values["environment"], model=make_model(values)), found
    )


class Tracker:
    """The progress of a rollout run, computed from its events.

    It gives a line for each failure, for scored trajectories at most once per second, and for the
    last one.

    Attributes:
        total: number of trajectories of the whole run; 0 before the first event.
        done: number of finished trajectories.
        running: empty, because there may be hundreds.
    """

    unit = "trajectories"

    def __init__(self) -> None:
        """Wait for the first event."""
        self.total = 0
        self.done = 0
        self.running: Mapping[str, Running] = {}
        self._making = 0
        self._mean: float | None = None
        self._said = 0.0

    def take(self, event: RolloutEvent) -> Line | None:
        """Process an event; return a line about it, or None if it needs none."""
        self.total = event.wanted
        self.done = event.done
        self._mean = event.mean_reward
        self._making += 1 if event.kind == "start" else -1
        if event.trajectory is None:
            return None
        failed = event.trajectory.status != SCORED
        now = time.monotonic()
        if not failed and event.done < event.wanted and now - self._said < _LINES_EVERY_S:
            return None
        self._said = now
        return Line(_line_of(event), is_bad=failed, is_minor=not failed)

    def summary(self) -> str:
        """Return the mean reward so far, and how many trajectories are being made."""
        mean = "" if self._mean is None else f"mean reward {self._mean:.3f}, "
        return f"{mean}{self._making} running"


def _line_of(event: RolloutEvent) -> str:
    """Return one line about a finished trajectory."""
    trajectory = event.trajectory
    assert trajectory is not None, "only for the event of a finished trajectory"
    took = format_duration(trajectory.timing.get("total_s", 0.0))
    if trajectory.status == SCORED:
        what = (
            f"reward {trajectory.reward:.3f}, {trajectory.turns} turns, "
            f"{trajectory.stop_reason}, in {took}"
        )
    else:
        error = trajectory.error or {}
        message = " ".join(str(error.get("message", "")).split())[:200]
        what = f"{trajectory.status}: {error.get('kind')} in {error.get('phase')}: {message}"
    mean = "" if event.mean_reward is None else f"; mean {event.mean_reward:.3f}"
    return f"{event.done}/{event.wanted}  {trajectory.id}: {what}{mean}"
