"""``hyperrun shell``: an interactive shell in a fresh container."""

from __future__ import annotations

from typing import Any

import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.containers.attach import check_terminal, run_attached
from hyperruntime.cli.containers.container_options import (
    container_options,
    container_spec,
    start_container,
)
from hyperruntime.images.recipes import BASE

_SHELL = ("/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash; fi; exec /bin/sh")


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
