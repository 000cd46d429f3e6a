"""``hyperrun report``: an HTML report about a run, or pictures of it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hyperruntime.cli.command import Command, example
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.cli.params import (
    ANY_RUN_DIRECTORY,
    ANY_RUN_OR_STUDY,
    RUN_OR_STUDY,
    SIZE,
    is_rollout,
)
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.loop.generation.series import whose_scores
from hyperruntime.loop.run_files.archive import RunView, best_generation, load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.report.pictures import Picture, write_pictures, write_plots
from hyperruntime.report.study.content import Comparison, compare
from hyperruntime.report.study.tables import write_tables
from hyperruntime.units import format_size

if TYPE_CHECKING:
    from hyperruntime.report.page.page import ShownRun
    from hyperruntime.secrets.known import Secrets


import asyncio
import math
import os
import sys
from collections.abc import Callable
from socket import socket as Listener  # noqa: N812 - `socket` is the option

from hyperruntime.cli.command import State
from hyperruntime.cli.signals import draw_for, ended_by_interrupt, run_until_signal
from hyperruntime.cli.streams import on_end_of_input
from hyperruntime.report.live.followed import FollowedRun

PAGE = "report.html"


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun report outputs/generate_1",
        "hyperrun report outputs/generate_1 outputs/generate_2 -o both.html",
        "hyperrun report outputs/rollout_1 --max-size 10m",
        "hyperrun report outputs/study_1 outputs/study_2 --baseline 2.634 --tables ./paper --pictures ./paper",
    ),
)
@click.argument("runs", nargs=-1, required=True, type=ANY_RUN_OR_STUDY, metavar="RUN_DIR...")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="The file to write; default: report.html in the first RUN_DIR.",
)
@click.option(
    "--max-size", type=SIZE, default="50m", show_default=True, help="Largest size of the file."
)
@click.option(
    "--baseline",
    metavar="NUMBER|RUN_DIR",
    help="Compare with a score, or with the best scores of a run or a study.",
)
@click.option("--tables", metavar="DIR", help="Write tables as CSV and LaTeX into DIR instead.")
@click.option("--pictures", metavar="DIR", help="Draw pictures as SVG and PNG into DIR instead.")
@json_option
def report(
    runs: tuple[str, ...],
    output: str | None,
    max_size: int,
    baseline: str | None,
    tables: str | None,
    pictures: str | None,
    as_json: bool,
) -> None:
    """Write an HTML report about the run in RUN_DIR, or about several runs; a study is all its
    runs.

    It shows the lineage, scores, changes, transcripts, use of models and failures; for rollouts,
    groups, conversations and tokens. It is one file that needs no network, and keys are removed.
    Details that do not fit into the size are left out, the lowest scores and the oldest first.

    Several runs of the loop are compared: median and quartiles of the best score by what was spent,
    tests between studies or settings, and the Pareto front of score and cost.
    """
    if (tables or pictures) and output is not None:
        raise WrongUsageError(
            "--pictures and --tables cannot be combined with --output; leave it out"
        )
    paths = [Path(run) for run in runs]
    if tables is None and pictures is None:
        _page(paths, output, max_size, baseline, as_json=as_json)
        return
    for path in paths:
        RUN_OR_STUDY.convert(str(path), None, None)  # not a rollout run
    comparison = _compared(paths, baseline)
    drawn = () if pictures is None else _pictures(comparison, Path(pictures))
    written = () if tables is None else tuple(write_tables(comparison.tables(), Path(tables)))
    if as_json:
        print_json(drawn if tables is None else {"pictures": drawn, "tables": written})
        return
    print_pictures(drawn)
    for path in written:
        click.echo(path)


def _page(
    paths: Sequence[Path], output: str | None, max_size: int, baseline: str | None, *, as_json: bool
) -> None:
    from hyperruntime.report.page.page import write_page
    from hyperruntime.report.study.shown import shown_comparison
    from hyperruntime.secrets.known import Secrets

    screen = Secrets()
    rollouts = any(map(is_rollout, paths))
    if rollouts and baseline is not None:
        raise WrongUsageError("--baseline is for runs of the loop; leave it out")
    comparison = None if rollouts else _compared(paths, baseline)
    is_compared = comparison is not None and (len(comparison.runs) > 1 or baseline is not None)
    if comparison is None:
        shown = [_shown_run(path, screen) for path in paths]
    else:
        shown = [_shown_loop(run.view, screen) for run in comparison.runs]
    page = write_page(
        shown,
        Path(output) if output else paths[0] / PAGE,
        max_bytes=max_size,
        comparison=shown_comparison(comparison) if comparison and is_compared else None,
    )
    for problem in page.notes:
        note(f"problem: {problem}")
    if as_json:
        print_json({"page": str(page.path), "size": page.size, "without_details": page.left_out})
        return
    missing = f", {page.left_out} entries without details" if page.left_out else ""
    click.echo(f"{page.path}: {format_size(page.size)}{missing}")


def _compared(paths: Sequence[Path], baseline: str | None) -> Comparison:
    """Return the comparison of runs.

    Raises:
        WrongUsageError: the baseline is neither a number nor a run with a score, or no run of a
            study has begun.
    """
    if baseline is not None and not _is_number(baseline):
        baseline = RUN_OR_STUDY.convert(baseline, None, None)
    comparison = compare(paths, baseline)
    if not comparison.runs:
        raise WrongUsageError(f"no run of {str(paths[0])!r} has begun; resume it first")
    if baseline is not None and comparison.baseline is None:
        raise WrongUsageError(f"--baseline: no generation of {baseline!r} has a score")
    if comparison.wants_tests:
        note("no tests: scipy is missing; install it with `pip install 'hyperruntime[study]'`")
    return comparison


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _shown_run(path: Path, screen: Secrets) -> ShownRun:
    from hyperruntime.report.page.trajectories import RolloutRun

    return RolloutRun(path, screen) if is_rollout(path) else _shown_loop(load_run(path), screen)


def _shown_loop(view: RunView, screen: Secrets) -> ShownRun:
    from hyperruntime.report.page.generations import LoopRun

    return LoopRun(view, screen)


def _pictures(comparison: Comparison, target: Path) -> tuple[Picture, ...]:
    """Draw one run, or compare several."""
    if len(comparison.runs) > 1 or comparison.baseline is not None:
        from hyperruntime.report.study.figures import write_figures

        return tuple(write_figures(comparison, target))
    view = comparison.runs[0].view
    drawn = write_pictures(view, best_generation(view.generations), target)
    whose = whose_scores(view.options.optimize_option)
    return (*drawn, *write_plots(view.generations, target, whose))


def plots_at_end(
    run_dir: str,
    generations: Sequence[GenerationRecord],
    options: GenerateOptions,
    most_s: float | None = None,
    *,
    hint: bool = True,
) -> None:
    """Write the plots of a run that has ended; if that fails, only print the reason.

    Args:
        run_dir: the run directory.
        generations: the finished generations; nothing is drawn without any.
        options: the run's options.
        most_s: seconds after which the plots are left out, because the process has to end; None
            means no limit.
        hint: whether to say how to look at the run.
    """
    if not generations:
        return
    said = ["no plots: they would take too long, because the machine is busy"]

    def draw() -> None:
        try:
            pictures = write_plots(
                generations, Path(run_dir), whose_scores(options.optimize_option)
            )
            said.append(f"{len(pictures)} plots are in {run_dir}")
        except HyperRuntimeError as error:
            said.append(f"no plots: {error}")

    if most_s is None:
        draw()
    else:
        draw_for(most_s, draw)
    note(said[-1])
    if hint:
        note(f"look at it with: hyperrun report {shlex.quote(run_dir)}")


def print_pictures(pictures: Sequence[Picture]) -> None:
    """Print the paths of pictures, one line each."""
    width = max((len(picture.subject) for picture in pictures), default=0)
    for picture in pictures:
        also = "" if picture.png is None else f" and {picture.png.suffix}"
        click.echo(f"{picture.subject:{width}}  {picture.svg}{also}")


_RUN_FILE = "run.json"
_LOOK_S = 0.2
_NICE = 10  # the server of --watch gives way to the run


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun watch outputs/generate_1",
        "hyperrun watch outputs/rollout_1 --port 8123",
        "hyperrun watch outputs/generate_1 --socket ~/.watch/run.sock",
    ),
)
@click.argument("run_dir", metavar="RUN_DIR")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port on 127.0.0.1; default: the last one, or any.",
)
@click.option(
    "--socket",
    metavar="PATH",
    help="Unix socket instead of a port, in a directory that only you may enter.",
)
@click.option("--with-parent", is_flag=True, hidden=True)
@click.pass_obj
def watch(
    state: State, /, run_dir: str, port: int | None, socket: str | None, with_parent: bool
) -> None:
    """Serve the page of `hyperrun report` about the run in RUN_DIR, live, until Ctrl-C (exit code
    0).

    It reads only the files of the run, so another process, or a cluster, may make the run. Everyone
    who knows the printed address, which has a token, can read the page. After a restart on the same
    port the address is the same.
    """
    if port is not None and socket is not None:
        raise WrongUsageError("--port and --socket exclude each other; leave one out")
    if with_parent:
        os.nice(_NICE)
    path = None if socket is None else Path(socket).expanduser().absolute()
    with ended_by_interrupt(state):
        run_until_signal(_serve(run_dir, port or 0, path, with_parent=with_parent), state)


async def _serve(run_dir: str, port: int, socket: Path | None, *, with_parent: bool) -> None:
    """Serve until this is cancelled, or with a parent until the parent closes our standard
    input.
    """
    from hyperruntime.ports.listeners import LOOPBACK, listen_on_loopback, listen_on_socket
    from hyperruntime.report.live.address import ticket_of
    from hyperruntime.report.live.server import LiveServer, serving

    parent_ended = asyncio.Event()
    if with_parent:
        on_end_of_input(asyncio.get_running_loop(), parent_ended.set)
        while not await asyncio.to_thread(Path(run_dir, _RUN_FILE).is_file):
            if parent_ended.is_set():
                return
            await asyncio.sleep(_LOOK_S)
    path = Path(await asyncio.to_thread(ANY_RUN_DIRECTORY.convert, run_dir, None, None))
    ticket = await asyncio.to_thread(ticket_of, path)
    if socket is None:
        listener = listen_on_loopback(port, ticket.port)
        ticket = ticket.at(listener.getsockname()[1])
    else:
        listener = listen_on_socket(socket)
    try:
        ticket.keep()
        server = LiveServer(_opener(path), ticket.token)
        await server.start()
        async with serving(server, listener):
            if socket is None:
                click.echo(f"http://{LOOPBACK}:{ticket.port}{ticket.path}")
            else:
                _say_how(socket, ticket.path)
            sys.stdout.flush()
            try:
                await parent_ended.wait()
            finally:
                # else open pages keep polling a port that another user may take
                await asyncio.shield(server.end())
    finally:
        _close(listener, socket)


def _close(listener: Listener, socket: Path | None) -> None:
    listener.close()
    if socket is not None:
        socket.unlink(missing_ok=True)


def _say_how(socket: Path, path: str) -> None:
    note(
        f"listening on {socket}; on the machine with the browser: ssh -N -L "
        f"8123:{shlex.quote(str(socket))} HOST"
    )
    click.echo(f"http://127.0.0.1:8123{path}")


def _opener(path: Path) -> Callable[[], FollowedRun]:
    """Return the function that opens the run of a directory."""
    from hyperruntime.report.live.followed import LoopSource
    from hyperruntime.report.page.trajectories import RolloutRun
    from hyperruntime.secrets.known import Secrets

    screen = Secrets()
    return lambda: FollowedRun(
        RolloutRun(path, screen, reads=False) if is_rollout(path) else LoopSource(path, screen)
    )
