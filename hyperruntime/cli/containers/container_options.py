"""The options of a container, shared by the commands that start one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs
import click

from hyperruntime.cli.messages import Lines
from hyperruntime.cli.params import COUNT, ENV_PAIR, GPUS, MOUNT_PAIR, SIZE
from hyperruntime.container import Container
from hyperruntime.errors import ImageNotFoundError
from hyperruntime.images.recipes import image_reference
from hyperruntime.runtime import Runtime
from hyperruntime.spec import DEFAULT_PIDS, LIMITS_MODES, NETWORKS, PULLS, ContainerSpec, Limits

F = TypeVar("F", bound=Callable[..., Any])
_LIMITS = ("memory_bytes", "cpus", "pids", "disk_bytes", "shm_bytes")
_OPTIONS = (
    click.option(
        "--pull",
        type=click.Choice(PULLS),
        default="never",
        show_default=True,
        help="missing: pull the image if it is not on this machine; always: pull it again.",
    ),
    click.option(
        "--mount",
        "mounts",
        type=MOUNT_PAIR,
        multiple=True,
        help="Mount a host path; may be repeated.",
    ),
    click.option(
        "--env",
        type=ENV_PAIR,
        multiple=True,
        help="Set a variable in the container; may be repeated.",
    ),
    click.option("--workdir", metavar="DIR", help="Working directory of the command."),
    click.option("--user", metavar="NAME", help="User name or uid, with an optional :group."),
    click.option(
        "--network",
        type=click.Choice(NETWORKS),
        default="none",
        show_default=True,
        help="Network access.",
    ),
    click.option(
        "--memory", "memory_bytes", type=SIZE, help="Limit of memory and swap, such as 512m."
    ),
    click.option("--cpus", type=float, help="Limit of cores, such as 1.5."),
    click.option(
        "--pids",
        type=COUNT,
        default=DEFAULT_PIDS,
        show_default=True,
        help="Limit of processes and threads, or none.",
    ),
    click.option(
        "--disk",
        "disk_bytes",
        type=SIZE,
        help="Limit of disk space, such as 2g; a container that uses more is ended.",
    ),
    click.option(
        "--shm",
        "shm_bytes",
        type=SIZE,
        help="Size of /dev/shm, such as 1g; default: the engine's own.",
    ),
    click.option(
        "--limits-mode",
        type=click.Choice(LIMITS_MODES),
        default="enforce",
        show_default=True,
        help="watchdog: hyperrun watches the memory where the engine cannot limit it.",
    ),
    click.option(
        "--gpus",
        type=GPUS,
        metavar="WHICH",
        help="all, auto:N (the N least used), indices or CDI names.",
    ),
    click.option(
        "--read-only", "read_only_rootfs", is_flag=True, help="Make the image's files read-only."
    ),
)


def container_options(command: F) -> F:
    """Give a command the options of a container; they arrive as the keywords that
    :func:`container_spec` takes.
    """
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def container_spec(image: str, options: Mapping[str, Any]) -> ContainerSpec:
    """Return the spec that the options describe.

    Args:
        image: recipe name or image reference.
        options: the values of :func:`container_options`, by the names of their fields.

    Raises:
        SpecError: a value is invalid.
    """
    fields = dict(options)
    limits = Limits(**{name: fields.pop(name) for name in _LIMITS})
    return ContainerSpec(
        image=image_reference(image), env=dict(fields.pop("env")), limits=limits, **fields
    )


def start_container(runtime: Runtime, spec: ContainerSpec) -> Container:
    """Start a container; build the missing image of a recipe first, and pull another one if the
    spec says so.
    """
    here = attrs.evolve(spec, pull="never") if spec.pull == "missing" else spec
    try:
        return runtime.container(here)
    except ImageNotFoundError:
        try:
            runtime.images.ensure(spec.image, on_output=Lines())
        except ImageNotFoundError:
            if spec.pull == "never":
                raise
            runtime.images.pull(spec.image, on_output=Lines())
        return runtime.container(here)
