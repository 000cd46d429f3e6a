"""``hyperrun rollout run``: run agents on items, score them, and write trajectories."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime.cli.command import SpreadingCommand, State, example
from hyperruntime.cli.consent import with_consent
from hyperruntime.cli.field_options import given_changes
from hyperruntime.cli.live_page import live_page, watch_option
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.cli.rollout.options import make_options, option_decorators
from hyperruntime.cli.rollout.progress import shown_progress
from hyperruntime.cli.signals import run_until_signal
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.cli.trajectories import rollout_line
from hyperruntime.cluster.config import ClusterConfig, read_config
from hyperruntime.datasets.left_out import shown
from hyperruntime.errors import HyperRuntimeError, RunLockedError
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.rollout.run.options import RolloutOptions, new_run_id
from hyperruntime.rollout.run.runner import run_rollouts
from hyperruntime.rollout.run.store import RunStore, resumable_options, stored_options
from hyperruntime.rollout.run.summary import RolloutSummary
from hyperruntime.runs.lock import is_unowned_remnant, wait_for_lease
from hyperruntime.runs.run_file import RUN
from hyperruntime.storage.atomic import make_new_directory
from hyperruntime.storage.run_files import refuse_links
from hyperruntime.units import format_duration

CLUSTER = "cluster"  # in the run directory: job scripts and logs of nodes
RunOn = Callable[..., Coroutine[Any, Any, RolloutSummary]]
_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


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
@option_decorators
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
        shown_progress() as on_event,
        live_page(state) as start_page,
    ):

        def on_start() -> None:
            note(f"run {run_dir}, seed {options.seed}, {where}")
            start_page(run_dir)

        work = run_on(options, run_dir=run_dir, on_event=on_event, on_start=on_start)
        summary = run_until_signal(work, state)  # slots are released first
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
    if not _RUN_ID.fullmatch(run_id):
        raise WrongUsageError(
            f"--run-id {run_id!r} is invalid; use up to 100 letters, digits, '-', '_' and '.'"
        )
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
