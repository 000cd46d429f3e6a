"""The options of a container, shared by the commands that start one."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from hyperruntime import option_fields
from hyperruntime.cli.field_options import add_options, click_option
from hyperruntime.cli.messages import Lines
from hyperruntime.cli.params import ENV_PAIR, GPUS, MOUNT_PAIR, NAMES
from hyperruntime.errors import ImageNotFoundError
from hyperruntime.images.recipes import image_reference
from hyperruntime.network.egress import NETWORKS, network_of
from hyperruntime.spec import DEFAULT_PIDS, LIMITS_MODES, PULLS, ContainerSpec, Limits

if TYPE_CHECKING:
    from hyperruntime.container import Container
    from hyperruntime.runtime import Runtime

_LIMITS = tuple(
    option_fields.OptionField(path=(name,), option=option, default=getattr(Limits(), name))
    for name, option in option_fields.limit_options(DEFAULT_PIDS).items()
)
_LIMIT_OPTIONS = tuple(map(click_option, _LIMITS))
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
        "--allow",
        type=NAMES,
        multiple=True,
        help="Without another network: reach these servers, such as pypi.org, '*.example.org' or "
        "git.example.org:8443, and no others; may be repeated.",
    ),
    *_LIMIT_OPTIONS,
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


container_options = add_options(_OPTIONS)
"""Gives a command the options of a container: the keywords that :func:`container_spec` takes."""
limit_options = add_options(_LIMIT_OPTIONS)
"""Gives a command the options of limits only, which :func:`take_limits` reads."""


def take_limits(options: MutableMapping[str, Any]) -> Limits:
    """Take the limits out of the values of :func:`limit_options` or :func:`container_options`.

    Raises:
        SpecError: a value is invalid.
    """
    return Limits(**{field.path[0]: options.pop(field.name) for field in _LIMITS})


def container_spec(image: str, options: Mapping[str, Any]) -> ContainerSpec:
    """Return the spec that the options describe.

    Args:
        image: recipe name or image reference.
        options: the values of :func:`container_options`, by the names of their fields.

    Raises:
        SpecError: a value is invalid.
    """
    fields = dict(options)
    allow = tuple(name for names in fields.pop("allow") for name in names)
    return ContainerSpec(
        image=image_reference(image),
        env=dict(fields.pop("env")),
        limits=take_limits(fields),
        network=network_of(fields.pop("network"), allow),
        **fields,
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
