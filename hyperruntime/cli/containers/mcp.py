"""``hyperrun mcp``: tools in containers for clients of the Model Context Protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime import registry
from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.containers.container_options import container_options, container_spec
from hyperruntime.cli.field_options import given
from hyperruntime.cli.messages import Lines, WrongUsageError, note
from hyperruntime.cli.params import DURATION
from hyperruntime.cli.signals import run_until_signal
from hyperruntime.errors import SpecError, unknown_name
from hyperruntime.images.recipes import BASE, recipe_of
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool_values.config import PoolConfig, ToolPolicy
from hyperruntime.pool_values.profiles import load_profiles
from hyperruntime.ports.listeners import is_loopback, listen_on
from hyperruntime.runtime import Runtime
from hyperruntime.storage.token_file import token_of
from hyperruntime.wire.tokens import new_token

_LEAST_TIMEOUT_S = 0.1
_ACQUIRE_TIMEOUT_S = 10.0
_POLICY = ("default_timeout_s", "max_timeout_s", "output_chars")
_OF_HTTP = ("host", "port", "token_file", "allowed_hosts", "idle_timeout_s")
Serve = Callable[..., Coroutine[Any, Any, None]]


@click.command(
    "mcp",
    cls=Command,
    epilog=example(
        "hyperrun mcp dev --memory 2g --mount ./src:/src",
        "hyperrun mcp --http --port 8123 --token-file ~/.config/hyperrun-mcp.token --sessions 8",
        "hyperrun mcp --pools pools.toml --profile python",
    ),
)
@click.argument("image", default=BASE)
@container_options
@click.option(
    "--timeout",
    "default_timeout_s",
    type=DURATION,
    default=60.0,
    show_default="1m",
    help="Time limit of a call that sets none.",
)
@click.option(
    "--max-timeout",
    "max_timeout_s",
    type=DURATION,
    default=600.0,
    show_default="10m",
    help="Highest time limit that a call may set.",
)
@click.option(
    "--output-chars",
    type=click.IntRange(min=1),
    default=50_000,
    show_default=True,
    help="Longest output for a client, in characters; longer output keeps its head and tail.",
)
@click.option(
    "--sessions",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="With --http: sessions that may have a container at once.",
)
@click.option(
    "--pools",
    metavar="FILE",
    help="Profiles of a pool (TOML or YAML), instead of the options above.",
)
@click.option(
    "--profile",
    metavar="NAME",
    help="With --pools: the profile; default: the default profile of FILE.",
)
@click.option(
    "--http", is_flag=True, help="Serve over HTTP, instead of on standard input and output."
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="With --http: address to listen on."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="With --http: port to listen on; default: any.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="With --http: file of the token; made if it does not exist.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="With --http: further name of this machine in requests; may be repeated.",
)
@click.option(
    "--idle-timeout",
    "idle_timeout_s",
    type=DURATION,
    default=600.0,
    show_default="10m",
    help="With --http: end a session after this time without an open request.",
)
@click.pass_context
def mcp(ctx: click.Context, /, image: str, **options: Any) -> None:  # noqa: ANN401 - the options by name
    """Serve tools (bash, files, search) to a client of the Model Context Protocol, in containers of
    IMAGE.

    Each session has its own container, which is removed at its end. All limits are those of this
    command line, or of the profile; a client cannot change them. Without --http, the one client is
    the program that starts this command.
    """
    state = ctx.ensure_object(State)
    http = {name: options.pop(name) for name in _OF_HTTP}
    if not options["http"] and (said := given(ctx, _OF_HTTP)):
        raise WrongUsageError(f"{_flag(ctx, said)} needs --http")
    config = _config(ctx, image, options)
    serve = registry.load_server("mcp")
    with ExitStack() as stack:
        how = stack.enter_context(_over_http(http)) if options["http"] else {}
        runtime = stack.enter_context(state.open_runtime())
        run_until_signal(_serve(SlotPool(runtime, _with_image(runtime, config)), serve, how), state)


async def _serve(pool: SlotPool, serve: Serve, how: Mapping[str, Any]) -> None:
    async with pool:
        await serve(pool, **how)


def _flag(ctx: click.Context, names: set[str]) -> str:
    return next(param.opts[-1] for param in ctx.command.params if param.name in names)


def _config(ctx: click.Context, image: str, options: Mapping[str, Any]) -> PoolConfig:
    """Return the pool that the options or the profile describe.

    Raises:
        WrongUsageError: options are given that exclude each other.
        SpecError: a value is invalid.
    """
    fields = dict(options)
    pools, profile, is_http = (fields.pop(name) for name in ("pools", "profile", "http"))
    if pools is not None:
        if said := given(ctx, {"image", *fields}):
            raise WrongUsageError(
                f"{_flag(ctx, said)} and --pools exclude each other; set it in the profile"
            )
        return _profile(pools, profile)
    if profile is not None:
        raise WrongUsageError("--profile needs --pools")
    if not is_http and given(ctx, ("sessions",)):
        raise WrongUsageError("--sessions needs --http; without it, there is one session")
    sessions = fields.pop("sessions")
    policy = ToolPolicy(
        min_timeout_s=_LEAST_TIMEOUT_S, **{name: fields.pop(name) for name in _POLICY}
    )
    return PoolConfig(
        spec=container_spec(image, fields),
        name="mcp",
        slots_per_container=1,
        max_containers=sessions if is_http else 1,
        spare_containers=1 if is_http else 0,
        acquire_timeout_s=_ACQUIRE_TIMEOUT_S,
        max_lifetime_s=None,
        tools=policy,
    )


def _profile(file: str, name: str | None) -> PoolConfig:
    profiles = load_profiles(os.path.expanduser(file))
    chosen = profiles.default if name is None else name
    if chosen not in profiles.configs:
        raise SpecError("--profile", chosen, unknown_name("profile", chosen, profiles.configs))
    return profiles.configs[chosen]


def _with_image(runtime: Runtime, config: PoolConfig) -> PoolConfig:
    """Build the image if it is a shipped recipe and missing; return the config with its
    reference.
    """
    if recipe_of(config.spec.image) is None:
        return config
    image = runtime.images.ensure(config.spec.image, on_output=Lines())
    return attrs.evolve(config, spec=attrs.evolve(config.spec, image=image))


@contextmanager
def _over_http(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of a server over HTTP: its socket, its token, its names."""
    host = options["host"]
    file = options["token_file"]
    token = new_token() if file is None else token_of(Path(file).expanduser())
    with closing(listen_on(host, options["port"])) as listener:
        if not is_loopback(listener):
            note(
                f"{host} is not a loopback address: the token and all data cross the network "
                "without encryption"
            )
        name = f"[{host}]" if ":" in host else host
        click.echo(f"http://{name}:{listener.getsockname()[1]}/mcp")
        click.echo(f"Authorization: Bearer {token}" if file is None else f"the token is in {file}")
        sys.stdout.flush()
        yield {
            "listener": listener,
            "token": token,
            "hosts": (name, *options["allowed_hosts"]),
            "idle_timeout_s": options["idle_timeout_s"],
        }
