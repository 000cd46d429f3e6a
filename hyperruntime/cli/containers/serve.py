"""``hyperrun serve``: containers for other programs, over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.containers.container_options import limit_options, take_limits
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.cli.params import DURATION, NAMES
from hyperruntime.cli.signals import ended_by_interrupt, run_until_signal
from hyperruntime.cli.streams import on_end_of_input
from hyperruntime.cli.tables import print_json
from hyperruntime.network.egress import NETWORKS, Egress

if TYPE_CHECKING:
    from hyperruntime.runtime import Runtime
    from hyperruntime.serve.rules import ContainerRules

_HOSTS = ("127.0.0.1", "localhost")


@attrs.frozen(kw_only=True)
class _Address:
    """The address to listen on, and the token that requests need."""

    host: str
    port: int | None
    socket: str | None
    token_file: str | None
    no_token: bool

    def check(self) -> None:
        if self.host not in _HOSTS:
            raise WrongUsageError(
                f"--host {self.host} is not allowed: the service listens on 127.0.0.1 only; "
                "from another machine, use `ssh -L`, with --port or --socket"
            )
        if self.port is not None and self.socket is not None:
            raise WrongUsageError("--port and --socket exclude each other; leave one out")
        if self.no_token and self.socket is None:
            raise WrongUsageError(
                "--no-token needs --socket: every user of this machine can reach a port"
            )
        if self.no_token and self.token_file is not None:
            raise WrongUsageError("--no-token and --token-file exclude each other; leave one out")

    def file_of_token(self) -> Path | None:
        from hyperruntime.storage.token_file import default_token_file

        if self.no_token:
            return None
        return Path(self.token_file or default_token_file()).expanduser().absolute()

    def path_of_socket(self) -> Path | None:
        return None if self.socket is None else Path(self.socket).expanduser().absolute()


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun serve",
        "hyperrun serve --port 8700 --image base --image 'docker.io/library/*' --memory 2g",
        "hyperrun serve --socket ~/.hyperrun/serve.sock --no-token",
    ),
)
@click.option(
    "--host",
    default=_HOSTS[0],
    show_default=True,
    help="Only this machine's loopback address is allowed.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port; default: any.")
@click.option(
    "--socket",
    metavar="PATH",
    help="Unix socket instead of a port, in a directory that only you may enter.",
)
@click.option(
    "--token-file", metavar="FILE", help="File with the token, which is made if it is missing."
)
@click.option("--no-token", is_flag=True, help="With --socket: ask for no token.")
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="PATTERN",
    help="Allow only these images; may be repeated.",
)
@click.option(
    "--network",
    "networks",
    type=click.Choice(NETWORKS),
    multiple=True,
    help="Allow this network; may be repeated.",
)
@click.option(
    "--allow",
    type=NAMES,
    multiple=True,
    help="Allow lists of these servers as a network, such as '*.example.org'; may be repeated.",
)
@click.option("--pull", "may_pull", is_flag=True, help="Allow pulls of images.")
@click.option(
    "--max-containers",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Containers at once.",
)
@click.option(
    "--idle",
    "idle_s",
    type=DURATION,
    default=1800.0,
    show_default="30m",
    help="End containers unused for this time.",
)
@click.option("--lifetime", "wall_s", type=DURATION, help="End containers after this time.")
@limit_options
@click.option(
    "--with-parent",
    is_flag=True,
    help="End when standard input ends, as when the parent process ends.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON.")
@click.pass_obj
def serve(state: State, /, with_parent: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - by their names
    """Serve containers, commands and files over HTTP to programs of this machine, until Ctrl-C.

    It prints its address; requests need the token in the printed file. GET /v1/openapi.json
    describes all requests. The containers end with the service. They get no host path, and no
    network unless --network or --allow allows it.
    """
    address = _Address(**{field.name: options.pop(field.name) for field in attrs.fields(_Address)})
    address.check()
    rules = _rules(options)
    with ended_by_interrupt(state), state.open_runtime() as runtime:
        run_until_signal(
            _serve(runtime, address, rules, with_parent=with_parent, as_json=as_json), state
        )


def _rules(options: dict[str, Any]) -> ContainerRules:
    from hyperruntime.serve.rules import ContainerRules

    limits = attrs.evolve(take_limits(options), wall_s=options.pop("wall_s"))
    networks = tuple(dict.fromkeys(("none", *options.pop("networks"))))
    allow = tuple(name for names in options.pop("allow") for name in names)
    return ContainerRules(
        most_containers=options.pop("max_containers"),
        networks=networks,
        egress=Egress(allow=allow) if allow else None,
        limits=limits,
        **options,
    )


@attrs.frozen
class _Opened:
    """A runtime that is open already."""

    opened: Runtime

    async def runtime(self) -> Runtime:
        return self.opened


async def _serve(
    runtime: Runtime, address: _Address, rules: ContainerRules, *, with_parent: bool, as_json: bool
) -> None:
    """Serve until this is cancelled, or with a parent until standard input ends."""
    from hyperruntime.ports.listeners import LOOPBACK, listen_on_loopback, listen_on_socket
    from hyperruntime.serve.containers import ContainerService
    from hyperruntime.serve.http_server import HttpServer, serving
    from hyperruntime.storage.token_file import token_of

    ended = asyncio.Event()
    if with_parent:
        on_end_of_input(asyncio.get_running_loop(), ended.set)
    file = address.file_of_token()
    token = None if file is None else token_of(file)
    path = address.path_of_socket()
    listener = listen_on_loopback(address.port or 0, 0) if path is None else listen_on_socket(path)
    own = None if path is None else os.lstat(path)
    url = (
        "http://localhost" if path is not None else f"http://{LOOPBACK}:{listener.getsockname()[1]}"
    )
    service = ContainerService(_Opened(runtime), rules)
    try:
        async with serving(HttpServer(service.handlers, token), service, listener):
            _announce({"url": url, "socket": path, "token_file": file}, as_json=as_json)
            await ended.wait()
    finally:
        if path is not None:
            _remove_own(path, own)


def _remove_own(path: Path, own: os.stat_result | None) -> None:
    """Remove our socket, but not that of another server which has taken its place."""
    with suppress(FileNotFoundError):
        if own is not None and os.path.samestat(os.lstat(path), own):
            path.unlink()


def _announce(where: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({name: None if value is None else str(value) for name, value in where.items()})
    else:
        if where["socket"] is not None:
            note(f"listening on {where['socket']}")
        if where["token_file"] is not None:
            note(f"the token is in {where['token_file']}")
        click.echo(where["url"])
    sys.stdout.flush()
