"""``hyperrun exec`` and ``hyperrun shell``: run one command, or an interactive shell, in a fresh
container; streams and exit codes are passed on unchanged.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal

import attrs
import click

from hyperruntime.adapters.compose import Service, read_compose
from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.containers.attach import check_terminal, run_attached
from hyperruntime.cli.containers.container_options import (
    container_options,
    container_spec,
    start_container,
)
from hyperruntime.cli.messages import note
from hyperruntime.cli.params import COPY_PAIR, DURATION, Pairs, existing_path
from hyperruntime.cli.streams import write_whole
from hyperruntime.container import Container
from hyperruntime.errors import BudgetExceededError, TransferError
from hyperruntime.exec.options import TerminalKeywords
from hyperruntime.gateway import Access, Gateway, GatewayConfig
from hyperruntime.gateway.config.source import load_source
from hyperruntime.images.recipes import BASE
from hyperruntime.runtime import Runtime
from hyperruntime.spec import ContainerSpec, ExecResult, Limits
from hyperruntime.transfer.copy import DEFAULT_TIMEOUT_S
from hyperruntime.units import format_duration

_KEPT_BYTES = 4096
_SHELL = ("/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash; fi; exec /bin/sh")
_DESCRIPTORS = {"stdout": 1, "stderr": 2}


@click.command(
    "exec",
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    epilog=example(
        "hyperrun exec -- python3 -c 'print(6 * 7)'",
        "hyperrun exec --mount ./data:/data --memory 512m --timeout 10s -- sh -c 'wc -c /data/*'",
        "hyperrun exec --put ./src:/src --get /src/out:./out -- make -C /src < input.txt",
        "hyperrun exec --compose compose.yaml --service app -- pytest",
        "hyperrun exec -it -- python3",
        "hyperrun exec --image agent --gateway gateway.toml --put ask.py:/ask.py -- python3 "
        "/ask.py",
    ),
)
@click.option("--image", default=BASE, show_default=True, help="Recipe name or image reference.")
@click.option(
    "--compose",
    "compose_file",
    metavar="FILE",
    help="Container and services of a compose file, instead of --image.",
)
@click.option("--service", metavar="NAME", default="", help="The container in this file.")
@click.option(
    "--interactive", "-i", is_flag=True, help="Pass on standard input also if it is a terminal."
)
@click.option(
    "--tty",
    "-t",
    is_flag=True,
    help="Run the command on a terminal, connected with this one; see -i.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    help="End the command and all it started after this; exit code 124.",
)
@container_options
@click.option(
    "--put",
    type=COPY_PAIR,
    multiple=True,
    help="Copy from the host before the command; may be repeated.",
)
@click.option(
    "--get",
    type=COPY_PAIR,
    multiple=True,
    help="Copy to the host after the command, also if it failed; may be repeated.",
)
@click.option(
    "--copy-timeout",
    "copy_timeout_s",
    type=DURATION,
    default=DEFAULT_TIMEOUT_S,
    show_default="10m",
    help="Time limit of each --put and --get.",
)
@click.option(
    "--gateway",
    "gateway_file",
    metavar="FILE",
    help="Model access: TOML with [gateway], or (replay|record):FILE.",
)
@click.argument(
    "args", metavar="COMMAND [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED
)
@click.pass_obj
def exec_command(
    state: State,
    /,
    args: tuple[str, ...],
    image: str,
    compose_file: str | None,
    service: str,
    interactive: bool,
    tty: bool,
    gateway_file: str | None,
    timeout_s: float | None,
    put: Pairs,
    get: Pairs,
    copy_timeout_s: float,
    **container: Any,  # noqa: ANN401 - the other options, by the names of their fields
) -> int:
    """Run one command in a fresh container, which is then removed. By default it has no network and
    no host path.

    Standard input is passed on unless it is a terminal; output is passed on at once, byte for byte.
    The exit code is the command's: 128+n if signal n killed it, 124 after a timeout, 127 if the
    program does not exist.
    """
    if tty:
        check_terminal()
    spec = container_spec(image, container)
    composed = None if compose_file is None else read_compose(compose_file, service)
    gateway = None if gateway_file is None else load_source(gateway_file)
    for source, _ in put:
        existing_path(source, "--put")
    with state.open_runtime() as runtime, _start(runtime, spec, composed) as started:
        for source, target in put:
            started.put(source, target, timeout_s=copy_timeout_s)
        with _models(started, gateway) as model_env:
            if tty:
                terminal: TerminalKeywords = {"env": model_env, "timeout_s": timeout_s}
                result = run_attached(state, started, args, terminal, has_input=interactive)
            else:
                result = started.exec(
                    args,
                    timeout_s=timeout_s,
                    env=model_env,
                    input=_standard_input(from_terminal=interactive),
                    on_output=_hand_on,
                    output_limit_bytes=_KEPT_BYTES,
                )
        if result.timed_out:
            note(
                "hyperrun: timeout: the command and all it started ended after "
                f"{format_duration(timeout_s or 0)}"
            )
        _copy_out(started, get, copy_timeout_s, result)
        return result.exit_code


def _start(runtime: Runtime, spec: ContainerSpec, composed: Service | None) -> Container:
    """Start the container of the options, or that of a compose file, to which they are added."""
    if composed is None:
        return start_container(runtime, spec)
    own = attrs.asdict(spec.limits)
    limits = {name: value for name, value in own.items() if value != getattr(Limits(), name)}
    given = {name: getattr(spec, name) for name in ("workdir", "user") if getattr(spec, name)}
    return runtime.container(
        composed.spec(
            runtime.images,
            **given,
            env={**composed.fields["env"], **spec.env},
            limits=Limits(**{**composed.fields["limits"], **limits}),
            mounts=spec.mounts,
            network=spec.network,
            gpus=spec.gpus,
            limits_mode=spec.limits_mode,
        )
    )


@contextmanager
def _models(
    container: Container, config: GatewayConfig | None
) -> Iterator[Mapping[str, str] | None]:
    """Give the container a gateway while the command runs; yield the environment variables for the
    command.
    """
    if config is None:
        yield None
        return
    with Gateway(config) as gateway, Access(gateway, container, "exec") as access:
        yield access.env
        try:
            access.seat.check()
        except BudgetExceededError as error:
            note(f"hyperrun: {error}")


def _copy_out(container: Container, get: Pairs, timeout_s: float, result: ExecResult) -> None:
    """Copy out each ``--get``; if the command failed, a failed copy is only noted."""
    for inside, target in get:
        try:
            report = container.get(inside, target, timeout_s=timeout_s)
        except TransferError as error:
            if result.exit_code == 0:
                raise
            note(f"hyperrun: {error}")
            continue
        for name, reason in report.refused:
            note(f"hyperrun: {name!r} was not copied out: {reason}")


def _hand_on(stream: Literal["stdout", "stderr"], chunk: bytes) -> None:
    """Write the whole chunk to our own stream of the same name; if it cannot be written, the
    command is ended.
    """
    write_whole(_DESCRIPTORS[stream], chunk)


def _standard_input(*, from_terminal: bool) -> BinaryIO | None:
    """Return our standard input, or None if it is closed, a directory, or a terminal that is not
    wanted.
    """
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    if sys.stdin is None or (os.isatty(0) and not from_terminal) or stat.S_ISDIR(mode):
        return None
    return open(0, "rb", buffering=0, closefd=False)


@click.command(
    "shell",
    cls=Command,
    epilog=example("hyperrun shell", "hyperrun shell dev --mount ./src:/src --network host"),
)
@click.argument("image", default=BASE)
@container_options
@click.pass_obj
def shell_command(
    state: State,
    /,
    image: str,
    **container: Any,  # noqa: ANN401 - the options, by the names of their fields
) -> int:
    """Open a shell in a fresh container of IMAGE, which is removed afterwards; bash if the image
    has it.

    IMAGE is a recipe name or an image reference; without it, the base image. By default the
    container has no network and no host path. The exit code is the shell's.
    """
    check_terminal()
    spec = container_spec(image, container)
    with state.open_runtime() as runtime, start_container(runtime, spec) as started:
        return run_attached(state, started, _SHELL, {}).exit_code
