"""``hyperrun watch``: serve the page about a run while the run goes on."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from socket import socket as Listener  # noqa: N812 - `socket` is the option

import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.cli.params import ANY_RUN_DIRECTORY, is_rollout
from hyperruntime.cli.signals import ended_by_interrupt, run_until_signal
from hyperruntime.cli.streams import on_end_of_input
from hyperruntime.report.live.followed import FollowedRun

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
    from hyperruntime.report.live.followed import LoopSource, RolloutSource
    from hyperruntime.secrets.known import Secrets

    screen = Secrets()
    return lambda: FollowedRun(
        RolloutSource(path, screen) if is_rollout(path) else LoopSource(path, screen)
    )
