"""``hyperrun status``: a run during the run or after it, once or as it goes on."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.loop.generations import (
    failure_counts,
    generation_columns,
    run_to_json,
)
from hyperruntime.cli.loop.study_table import (
    study_columns,
    study_line,
    study_state,
    study_to_json,
    study_views,
)
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.cli.params import ANY_RUN_OR_STUDY, is_rollout
from hyperruntime.cli.signals import ended_by_interrupt
from hyperruntime.cli.tables import (
    Choice,
    Column,
    json_option,
    plain_lines,
    print_columns,
    print_json,
    rich_table,
    table_of,
    table_options,
)
from hyperruntime.errors import ArchiveError
from hyperruntime.gateway.log.budget import total_spent
from hyperruntime.loop.run_files.archive import RunView, best_generation, load_run
from hyperruntime.loop.run_files.follow import JournalFollower, running_generations
from hyperruntime.loop.run_files.study import is_study, read_study
from hyperruntime.units import format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

_LOOK_S = 1.0
_OTHER_LINES = 8  # of a terminal, beside the rows of the table


class Shown(Protocol):
    """A run that is shown while it goes on."""

    def read_new(self) -> Sequence[tuple[int, Any]]:
        """Read what is new."""
        ...

    def state(self) -> tuple[str, bool]:
        """Return one line about the run, and whether it is running."""
        ...

    def now(self) -> str:
        """Return one line about what is being made; "" if that is in the other line."""
        ...

    def columns(self) -> list[Column]:
        """Return the table."""
        ...


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun status outputs/generate_1",
        "hyperrun status outputs/generate_1 --sort score --tail 10",
        "hyperrun status outputs/rollout_1 --sort -duration",
        "hyperrun status outputs/generate_1 --watch",
        "hyperrun status outputs/generate_1 --json",
    ),
)
@click.argument("run_dir", type=ANY_RUN_OR_STUDY)
@click.option("--watch", is_flag=True, help="Update the display until the run ends, or Ctrl-C.")
@table_options
@json_option
@click.pass_obj
def status(
    state: State,
    run_dir: str,
    watch: bool,
    sort: str,
    tail: int | None,
    as_json: bool,
) -> None:
    """Show the generations of the run in RUN_DIR, or the runs of the study there, which may still
    run; damaged lines are reported and skipped.

    A rollout run is shown as one line, and as a table of trajectories with --sort, --tail or
    --watch. For a run that is made on nodes now, a line for each container (with --json,
    `containers`) names its node.
    """
    choice = Choice(sort=sort, tail=tail)
    if as_json and (watch or choice.is_made):
        raise WrongUsageError("--json prints everything once; leave out --watch, --sort and --tail")
    if is_study(Path(run_dir)):
        _show_study(state, Path(run_dir), choice, watch=watch, as_json=as_json)
        return
    is_rollouts = is_rollout(Path(run_dir))
    if watch:
        with ended_by_interrupt(state):
            _watch(_Rollouts(Path(run_dir)) if is_rollouts else _Loop(Path(run_dir)), choice)
    elif as_json:
        print_json(_rollout_to_json(run_dir) if is_rollouts else _loop_to_json(load_run(run_dir)))
    else:
        if is_rollouts:
            _print_rollout(run_dir, choice)
        else:
            _print_loop(load_run(run_dir), choice)
        if not choice.is_made:
            for one in _containers_on_nodes(Path(run_dir)):
                click.echo(f"container {one['name']} on {one['node']} ({one['host']})")


def _show_study(state: State, root: Path, choice: Choice, *, watch: bool, as_json: bool) -> None:
    run = _Study(root)
    if watch:
        with ended_by_interrupt(state):
            _watch(run, choice)
        return
    run.read_new()
    if as_json:
        print_json(study_to_json(run.study, run.views))
        return
    columns = run.columns()
    click.echo(run.state()[0])
    print_columns(columns, choice.rows(columns))
    for view in run.views:
        for problem in [str(view)] if isinstance(view, ArchiveError) else view.problems:
            note(f"problem: {problem}")
    if study_state(run.study, run.views) == "interrupted":
        note(f"continue with: hyperrun resume {shlex.quote(str(root))}")


def _loop_to_json(view: RunView) -> dict[str, Any]:
    facts = {
        "state": view.state,
        "ended": view.ended or None,
        "seed": view.seed,
        "problems": list(view.problems),
    }
    return run_to_json(
        view.run_dir, view.generations, **facts, containers=_containers_on_nodes(Path(view.run_dir))
    )


def _rollout_to_json(run_dir: str) -> dict[str, Any]:
    from hyperruntime.cli.trajectories import rollout_facts

    return {**rollout_facts(run_dir), "containers": _containers_on_nodes(Path(run_dir))}


def _print_loop(view: RunView, choice: Choice) -> None:
    columns = generation_columns(view.generations)
    rows = choice.rows(columns)
    click.echo(_loop_line(view))
    if view.state == "running" and (now := _now_line(Path(view.run_dir))):
        click.echo(now)
    if rows:
        print_columns(columns, rows)
    if used := [record.usage for record in view.generations if record.usage is not None]:
        spent = total_spent(used)
        tokens = f"{spent.input_tokens} tokens read, {spent.output_tokens} written"
        click.echo(f"models: {spent.requests} requests, {tokens}, money {spent.money:.4g}")
    for problem in view.problems:
        note(f"problem: {problem}")
    if view.state == "interrupted":
        note(f"continue with: hyperrun resume {shlex.quote(view.run_dir)}")


def _containers_on_nodes(run_dir: Path) -> list[dict[str, str]]:
    """Return the name, node and host of each container of a run that is made on nodes now."""
    from hyperruntime.cluster.open_clusters import open_clusters

    try:
        nodes = [
            node for cluster in open_clusters() if cluster.makes(run_dir) for node in cluster.nodes
        ]
    except OSError as error:
        note(
            f"containers on nodes are not shown: {error.filename} cannot be read: {error.strerror}"
        )
        return []
    return [
        {"name": name, "node": node.name, "host": node.host}
        for node in nodes
        for name in node.containers
    ]


def _loop_line(view: RunView) -> str:
    best = best_generation(view.generations)
    top = "no score yet" if best is None else f"best {best.score:.4f} (generation {best.genid})"
    made = f"{len(view.generations)} of {view.wanted} generations"
    counts = ", ".join(
        f"{count} {name}" for name, count in failure_counts(view.generations).items()
    )
    failed = f"; failed: {counts}" if counts else ""
    ended = f"; ended because: {view.ended}" if view.ended else ""
    return f"{view.run_dir}: {view.state}, {made}, {top}, seed {view.seed}{failed}{ended}"


def _now_line(run_dir: Path) -> str:
    """Return the running generations with their steps and elapsed times, or ""."""
    running = [
        f"generation {one.genid} "
        f"({', '.join(filter(None, (one.step, format_duration(one.elapsed_s))))})"
        for one in running_generations(run_dir)
    ]
    return f"now: {', '.join(running)}" if running else ""


def _print_rollout(run_dir: str, choice: Choice) -> None:
    """Print what the files of a rollout run say about it."""
    run = _Rollouts(Path(run_dir))
    run.read_new()
    line, is_running = run.state()
    columns = run.columns()
    rows = choice.rows(columns) if choice.is_made else []
    click.echo(line)
    if rows:
        print_columns(columns, rows)
    if not is_running:
        note(
            "if trajectories are missing, continue with: hyperrun rollout run --resume-from "
            f"{shlex.quote(run_dir)}"
        )


class _Loop:
    """A run of the loop."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._follower = JournalFollower(run_dir)

    def read_new(self) -> Sequence[tuple[int, Any]]:
        """Read what is new; everything again if another run is in the directory now."""
        if self._follower.journal.was_replaced():
            self._follower = JournalFollower(self._run_dir)
        return self._follower.read_new()

    def state(self) -> tuple[str, bool]:
        """Return one line about the run, and whether it is running."""
        view = self._follower.view()
        return _loop_line(view), view.state == "running"

    def now(self) -> str:
        """Return one line about the generations that are being made; "" if there are none."""
        return _now_line(self._run_dir)

    def columns(self) -> list[Column]:
        """Return the table."""
        return generation_columns(tuple(self._follower.archive))


class _Study:
    """A study.

    Attributes:
        study: its runs.
        views: the runs as of the last :meth:`read_new`.
    """

    def __init__(self, root: Path) -> None:
        self.study = read_study(root)
        self.views: tuple[RunView | ArchiveError, ...] = ()

    def read_new(self) -> Sequence[tuple[int, Any]]:
        """Read all runs again."""
        before = self.views
        self.views = study_views(self.study)
        return [] if before == self.views else [(0, None)]

    def state(self) -> tuple[str, bool]:
        """Return one line about the study, and whether it is running."""
        line = study_line(self.study, self.views)
        return line, study_state(self.study, self.views) == "running"

    def now(self) -> str:
        """Return one line about the generations that are being made; "" if there are none."""
        return "\n".join(filter(None, map(_now_line, self.study.runs)))

    def columns(self) -> list[Column]:
        """Return the table."""
        return study_columns(self.views)


class _Rollouts:
    """A rollout run."""

    def __init__(self, run_dir: Path) -> None:
        from hyperruntime.rollout.run_files.follow import TrajectoryFollower

        self._open = TrajectoryFollower
        self._follower = self._open(run_dir)
        self._run_dir = run_dir

    def read_new(self) -> Sequence[tuple[int, Any]]:
        """Read what is new; everything again if another run is in the directory now."""
        if self._follower.journal.was_replaced():
            self._follower = self._open(self._run_dir)
        return self._follower.read_new()

    def state(self) -> tuple[str, bool]:
        """Return one line about the run, and whether it is running."""
        from hyperruntime.cli.trajectories import rollout_line

        is_running = self._follower.is_owned
        return rollout_line(
            self._run_dir, list(self._follower.records.values()), is_running=is_running
        ), is_running

    def now(self) -> str:
        """Return nothing: trajectories last seconds."""
        return ""

    def columns(self) -> list[Column]:
        """Return the table."""
        from hyperruntime.cli.trajectories import trajectory_columns

        return trajectory_columns(list(self._follower.records.values()))


def _watch(run: Shown, choice: Choice) -> None:
    if not sys.stdout.isatty():
        _watch_as_lines(run, choice)
        return
    from rich.live import Live

    from hyperruntime.cli.display import DisplayConsole

    console = DisplayConsole(stderr=False)
    with Live(console=console, auto_refresh=False, redirect_stderr=sys.stderr.isatty()) as live:

        def show(line: str, columns: Sequence[Column], is_last: bool) -> None:
            lines = line if is_last else "\n".join(filter(None, (line, run.now())))
            live.update(_screen(lines, columns, choice), refresh=True)

        _follow(run, show, always=True)


def _screen(line: str, columns: Sequence[Column], choice: Choice) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    rows = choice.rows(columns)
    fitting = max(1, shutil.get_terminal_size().lines - _OTHER_LINES)
    shown = rows if choice.tail is not None else rows[-fitting:]
    names, texts, right = table_of(columns, shown)
    more = f"{len(rows) - len(shown)} rows above" if len(shown) < len(rows) else ""
    return Group(Text(line), Text(more, style="dim"), rich_table(names, texts, right))


def _watch_as_lines(run: Shown, choice: Choice) -> None:
    """Print the table, and after it each new row as it comes."""
    printed: set[str] = set()

    def show(line: str, columns: Sequence[Column], is_last: bool) -> None:
        names_now = {text.split(" *")[0] for text in columns[0].texts}
        if not printed <= names_now:  # another run is in the directory now
            printed.clear()
        rows = [
            row
            for row in choice.rows(columns)
            if columns[0].texts[row].split(" *")[0] not in printed
        ]
        names, texts, right = table_of(columns, rows)
        if not printed or is_last:
            click.echo(line)
        if rows:
            lines = plain_lines(names, texts, right)
            click.echo("\n".join(lines[1:] if printed else lines))
        sys.stdout.flush()
        printed.update(names_now)

    _follow(run, show)


def _follow(
    run: Shown, show: Callable[[str, Sequence[Column], bool], None], *, always: bool = False
) -> None:
    """Show the run at once, after each change (or with ``always``, after each look), and when it
    has ended.
    """
    before = ""
    while True:
        changed = run.read_new()
        line, is_running = run.state()
        if always or changed or line != before or not is_running:
            before = line
            show(line, run.columns(), not is_running)
        if not is_running:
            return
        time.sleep(_LOOK_S)
