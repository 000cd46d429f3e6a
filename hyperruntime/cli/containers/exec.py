"""``hyperrun exec``: one command in a fresh container, its streams and its exit code handed on as they are."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal

import attrs
import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.messages import Lines, note
from hyperruntime.cli.params import COPY_PAIR, COUNT, DURATION, ENV_PAIR, GPUS, MOUNT_PAIR, SIZE, existing_path
from hyperruntime.container import Container
from hyperruntime.errors import BudgetExceededError, ImageNotFoundError, TransferError
from hyperruntime.gateway import Access, Gateway, GatewayConfig
from hyperruntime.gateway.config.source import load_source
from hyperruntime.images.recipes import BASE, image_reference
from hyperruntime.runtime import Runtime
from hyperruntime.spec import DEFAULT_PIDS, LIMITS_MODES, NETWORKS, ContainerSpec, ExecResult, Limits, Mount
from hyperruntime.transfer.copy import DEFAULT_TIMEOUT_S
from hyperruntime.units import format_duration

_KEPT_BYTES = 4096
_SIGPIPE_CODE = 128 + signal.SIGPIPE
_DESCRIPTORS = {"stdout": 1, "stderr": 2}
Pairs = tuple[tuple[str, str], ...]


class _ReaderGoneError(Exception):
    """Nobody reads our output any more, as after ``hyperrun exec ... | head -1``."""


@attrs.frozen(kw_only=True)
class ExecOptions:
    """How a command is run; what describes the container is in its spec.

    Attributes:
        args: its argv.
        timeout_s: after which everything it started is ended.
        copy_timeout_s: after which one copy in or out is given up.
        put: copied in before, host to container.
        get: copied out after, container to host.
        gateway: what gives it models, or None.
    """

    args: tuple[str, ...]
    timeout_s: float | None
    copy_timeout_s: float
    put: Pairs
    get: Pairs
    gateway: GatewayConfig | None = None


@click.command(
    "exec",
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    epilog=example(
        "hyperrun exec -- python3 -c 'print(6 * 7)'",
        "hyperrun exec --mount ./data:/data --memory 512m --timeout 10s -- sh -c 'wc -c /data/*'",
        "hyperrun exec --put ./src:/src --get /src/out:./out -- make -C /src < input.txt",
        "hyperrun exec --image agent --gateway gateway.toml --put ask.py:/ask.py -- python3 /ask.py",
    ),
)
@click.option("--image", default=BASE, show_default=True, help="A recipe's name, or an image reference.")
@click.option("--mount", "mounts", type=MOUNT_PAIR, multiple=True, help="A host path to see inside; may be repeated.")
@click.option("--env", type=ENV_PAIR, multiple=True, help="A variable inside; may be repeated.")
@click.option("--workdir", metavar="DIR", help="Where the command starts.")
@click.option("--user", metavar="NAME", help="Name or uid, with an optional :group.")
@click.option("--network", type=click.Choice(NETWORKS), default="none", show_default=True, help="What it can reach.")
@click.option("--memory", type=SIZE, help="Memory and swap, such as 512m.")
@click.option("--cpus", type=float, help="Cores, such as 1.5.")
@click.option(
    "--pids", type=COUNT, default=DEFAULT_PIDS, show_default=True, help="Processes and threads, or none for no limit."
)
@click.option("--disk", type=SIZE, help="What its files may take, such as 2g; one that takes more is ended.")
@click.option(
    "--limits-mode",
    type=click.Choice(LIMITS_MODES),
    default="enforce",
    show_default=True,
    help="watchdog: watch the memory where the engine cannot limit it.",
)
@click.option("--gpus", type=GPUS, metavar="WHICH", help="all, auto:N for the least used, or indices or CDI names.")
@click.option("--timeout", "timeout_s", type=DURATION, help="Ends all it started after this; exit code 124.")
@click.option("--read-only", is_flag=True, help="The image's own files cannot be changed.")
@click.option("--put", type=COPY_PAIR, multiple=True, help="Copy in before; may be repeated.")
@click.option("--get", type=COPY_PAIR, multiple=True, help="Copy out after, whatever the exit code; may be repeated.")
@click.option(
    "--copy-timeout",
    "copy_timeout_s",
    type=DURATION,
    default=DEFAULT_TIMEOUT_S,
    show_default="10m",
    help="Gives up each --put and --get after this.",
)
@click.option("--gateway", "gateway_file", metavar="FILE", help="Models: TOML with [gateway], or (replay|record):FILE.")
@click.argument("args", metavar="COMMAND [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def exec_command(
    state: State,
    /,
    image: str,
    mounts: tuple[Mount, ...],
    env: Pairs,
    memory: int | None,
    cpus: float | None,
    pids: int | None,
    disk: int | None,
    read_only: bool,
    gateway_file: str | None,
    **rest: Any,  # noqa: ANN401 - the other options, by the names of their fields
) -> int:
    """Run one command in a fresh container: no network, no host path, nothing left behind.

    Standard input is handed on unless it is a terminal; output is handed on as it comes, byte for byte. The exit
    code is the command's: 128+n for a death by signal n, 124 for a timeout, 127 for a program that is missing.
    """
    container = {name: rest.pop(name) for name in ("workdir", "user", "network", "gpus", "limits_mode")}
    spec = ContainerSpec(
        image=image_reference(image),
        mounts=mounts,
        env=dict(env),
        limits=Limits(memory_bytes=memory, cpus=cpus, pids=pids, disk_bytes=disk),
        read_only_rootfs=read_only,
        **container,
    )
    gateway = None if gateway_file is None else load_source(gateway_file)
    options = ExecOptions(**rest, gateway=gateway)
    for source, _ in options.put:
        existing_path(source, "--put")
    try:
        with state.open_runtime() as runtime, _start(runtime, spec) as started:
            return _run(started, options)
    except _ReaderGoneError:
        return _SIGPIPE_CODE


def _start(runtime: Runtime, spec: ContainerSpec) -> Container:
    """Start the container; an image that is missing is made first where that is possible."""
    try:
        return runtime.container(spec)
    except ImageNotFoundError:
        lines = Lines()
        runtime.images.ensure(spec.image, on_output=lines)
        return runtime.container(spec)


def _run(container: Container, options: ExecOptions) -> int:
    for source, target in options.put:
        container.put(source, target, timeout_s=options.copy_timeout_s)
    with _models(container, options.gateway) as env:
        result = container.exec(
            options.args,
            timeout_s=options.timeout_s,
            env=env,
            input=_standard_input(),
            on_output=_hand_on,
            output_limit_bytes=_KEPT_BYTES,
        )
    if result.timed_out:
        note(f"hyperrun: the command and all it started was ended after {format_duration(options.timeout_s or 0)}")
    _copy_out(container, options, result)
    return result.exit_code


@contextmanager
def _models(container: Container, config: GatewayConfig | None) -> Iterator[Mapping[str, str] | None]:
    """Give the container a gateway for as long as a command runs; yield the variables that the command needs."""
    if config is None:
        yield None
        return
    with Gateway(config) as gateway, Access(gateway, container, "exec") as access:
        yield access.env
        try:
            access.seat.check()
        except BudgetExceededError as error:
            note(f"hyperrun: {error}")


def _copy_out(container: Container, options: ExecOptions, result: ExecResult) -> None:
    """Copy out what was asked for; after a command that failed, what is missing is only noted."""
    for inside, target in options.get:
        try:
            report = container.get(inside, target, timeout_s=options.copy_timeout_s)
        except TransferError as error:
            if result.exit_code == 0:
                raise
            note(f"hyperrun: {error}")
            continue
        for name, reason in report.refused:
            note(f"hyperrun: {name!r} was not copied out: {reason}")


def _hand_on(stream: Literal["stdout", "stderr"], chunk: bytes) -> None:
    """Write a chunk to our own stream of the same name, all of it."""
    view, descriptor = memoryview(chunk), _DESCRIPTORS[stream]
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # whoever shares the terminal with us has made it non-blocking
            select.select([], [descriptor], [])
        except BrokenPipeError:
            raise _ReaderGoneError from None


def _standard_input() -> BinaryIO | None:
    """Return our standard input, or None where it is closed or a terminal."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    if sys.stdin is None or os.isatty(0) or stat.S_ISDIR(mode):
        return None
    return open(0, "rb", buffering=0, closefd=False)
