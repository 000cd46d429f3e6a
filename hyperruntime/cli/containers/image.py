"""``hyperrun image``: build, pull, list, load, save and remove images."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import click

from hyperruntime.cli.command import Group, State, example
from hyperruntime.cli.messages import Lines, note
from hyperruntime.cli.params import ENV_PAIR, Pairs
from hyperruntime.cli.tables import json_option, print_list
from hyperruntime.driver import Image
from hyperruntime.units import format_duration, format_size

_ID_LETTERS = 12


@click.group(cls=Group, epilog=example("hyperrun image bootstrap", "hyperrun image list"))
def image() -> None:
    """Build, pull, list, load, save and remove images."""


@image.command(
    epilog=example(
        "hyperrun image build agent",
        "hyperrun image build cuda --build-arg CUDA=12.4",
        "hyperrun image build localhost/mine:1 --file ./Containerfile",
        "hyperrun image build hyperagents --file ./Dockerfile --short-names docker.io",
        "hyperrun image build hyperagents --requirements requirements.txt",
        "hyperrun image build hyperagents --requirements requirements.txt --sdist",
    )
)
@click.argument("name")
@click.option(
    "--file",
    "containerfile",
    metavar="FILE",
    help="Your own Containerfile or definition file (.def); NAME is then the image reference.",
)
@click.option(
    "--context", metavar="DIR", help="Build context, for COPY; default: the directory of FILE."
)
@click.option(
    "--requirements",
    metavar="FILE",
    help="Build an image with the Python packages of this pip file on top of `dev`; needs no "
    "registry.",
)
@click.option(
    "--sdist",
    is_flag=True,
    help="With --requirements: build missing wheels on this machine, which runs code of the "
    "packages as you; default: in a container.",
)
@click.option(
    "--short-names",
    metavar="REGISTRY",
    help="Registry of base images that name none in FILE, such as docker.io for `FROM "
    "nvidia/cuda`.",
)
@click.option(
    "--build-arg",
    "build_args",
    type=ENV_PAIR,
    multiple=True,
    help="Value of an ARG; may be repeated.",
)
@click.option(
    "--force-rebuild",
    "--force",
    "force",
    is_flag=True,
    help="Build even if the image exists, without the cache.",
)
@click.pass_obj
def build(state: State, /, name: str, build_args: Pairs, **options: Any) -> None:  # noqa: ANN401 - options by name
    """Build the shipped recipe NAME, or your own file with --file or --requirements; print the
    image reference.
    """
    for option in ("context", "short_names"):
        if options[option] is not None and options["containerfile"] is None:
            raise click.UsageError(f"--{option.replace('_', '-')} needs --file")
    if options["requirements"] is not None and options["containerfile"] is not None:
        raise click.UsageError("--requirements and --file exclude each other")
    if options["sdist"] and options["requirements"] is None:
        raise click.UsageError("--sdist needs --requirements")
    started = time.monotonic()
    with state.open_runtime() as runtime:
        make = runtime.images.build
        requirements = options.pop("requirements")
        sdist = options.pop("sdist")
        if requirements is not None:
            make = partial(
                runtime.images.build_requirements, requirements=requirements, sdist=sdist
            )
            options = {"force": options["force"]}
        reference = make(name, build_args=dict(build_args), on_output=Lines(), **options)
    _print_made(reference, started)


@image.command(epilog=example("hyperrun image bootstrap", "hyperrun image bootstrap dev --force"))
@click.argument("name", default="base")
@click.option(
    "--force-rebuild", "--force", "force", is_flag=True, help="Make the image even if it exists."
)
@click.pass_obj
def bootstrap(state: State, name: str, force: bool) -> None:
    """Make the image base, dev (with libstdc++, pip, apt) or torch from Debian packages, without a
    registry.
    """
    started = time.monotonic()
    with state.open_runtime() as runtime:
        reference = runtime.images.bootstrap(name, force=force, on_output=Lines())
    _print_made(reference, started)


@image.command(epilog=example("hyperrun image pull docker.io/library/debian:bookworm-slim"))
@click.argument("references", nargs=-1, required=True)
@click.pass_obj
def pull(state: State, references: tuple[str, ...]) -> None:
    """Pull images from their registries; print the references."""
    with state.open_runtime() as runtime:
        for reference in references:
            click.echo(runtime.images.pull(reference, on_output=Lines()))


@image.command("list", epilog=example("hyperrun image list", "hyperrun image list --json"))
@json_option
@click.pass_obj
def list_images(state: State, as_json: bool) -> None:
    """List the images on this machine."""
    with state.open_runtime() as runtime:
        images = runtime.images.list()
    rows = sorted(_row(item, name) for item in images for name in item.references or ("",))
    none = "no images; `hyperrun image bootstrap` makes the base image"
    print_list(
        images,
        ("reference", "id", "size", "age"),
        rows,
        as_json=as_json,
        none=none,
        right=("size", "age"),
    )


@image.command(epilog=example("hyperrun image remove localhost/hyperruntime/base:latest"))
@click.argument("references", nargs=-1, required=True)
@click.pass_obj
def remove(state: State, references: tuple[str, ...]) -> None:
    """Remove images by reference."""
    with state.open_runtime() as runtime:
        for reference in references:
            runtime.images.remove(reference)
            click.echo(f"removed {reference}")


@image.command(epilog=example("hyperrun image save localhost/mine:1 mine.tar"))
@click.argument("reference")
@click.argument("archive")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.pass_obj
def save(state: State, reference: str, archive: str, force: bool) -> None:
    """Write an image to a file that `hyperrun image load` reads on another machine."""
    with state.open_runtime() as runtime:
        runtime.images.save(reference, archive, force=force)
    note(f"saved {reference}")
    click.echo(archive)


@image.command(epilog=example("hyperrun image load mine.tar"))
@click.argument("archive")
@click.pass_obj
def load(state: State, archive: str) -> None:
    """Load an archive of `hyperrun image save`, `podman save` or `docker save`; print its
    references.
    """
    with state.open_runtime() as runtime:
        for reference in runtime.images.load(archive):
            click.echo(reference)


def _print_made(reference: str, started: float) -> None:
    note(f"image ready after {format_duration(time.monotonic() - started)}")
    click.echo(reference)


def _row(item: Image, name: str) -> tuple[str, ...]:
    # built without a time
    age = format_duration(max(0.0, time.time() - item.created)) if item.created > 0 else "-"
    size = format_size(item.size_bytes) if item.size_bytes else "-"
    return name or "<none>", item.id[:_ID_LETTERS], size, age
