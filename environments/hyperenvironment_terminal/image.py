"""Provide a task's image: build it once, with a tag derived from its content, or use the image that
the task names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import hyperruntime as hr
from hyperenvironment_terminal.task import Task
from hyperruntime.errors import ImageNotFoundError
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.build_inputs import inputs_digest
from hyperruntime.images.building.definition import SUFFIX, check_contained, read_definition
from hyperruntime.images.definition_file import parse_definition, with_base
from hyperruntime.images.dockerfile import read_dockerfile, write_dockerfile
from hyperruntime.images.pull_errors import is_local
from hyperruntime.images.store import ImageStore

PREFIX = "localhost/hyperruntime-task/"
_FROM = re.compile(r"^([ \t]*FROM[ \t]+(?:--\S+[ \t]+)*)(\S+)", re.IGNORECASE | re.MULTILINE)
_UPPER = re.compile(r"[^a-z0-9.-]+")


def task_image(
    task: Task, images: ImageStore, substitutes: Mapping[str, str], *, pull: bool
) -> str:
    """Return the reference of a task's image, and build or pull the image if it is missing.

    Args:
        task: the task.
        images: the store that builds and finds images.
        substitutes: images that replace those that tasks name.
        pull: whether to pull a missing image from its registry.

    Raises:
        ImageError: the image does not exist, or its build or pull failed.
        SpecError: the recipe would access the host.
    """
    if task.recipe is None:
        return _ready(substitutes.get(task.image, task.image), images, pull=pull)
    return _built(task.id, task.recipe, task.recipe.parent, images, substitutes)


def task_services(
    task: Task, images: ImageStore, substitutes: Mapping[str, str], *, pull: bool
) -> tuple[hr.Service, ...]:
    """Return the services beside a task's container; arguments and errors of their images are those
    of :func:`task_image`.
    """
    found = []
    for one in task.services:
        name = one.fields["name"]
        if one.dockerfile is None:
            image = one.fields["image"]
            image = _ready(substitutes.get(image, image), images, pull=pull)
        else:
            own = f"{task.id}-{name}"
            image = _built(own, one.dockerfile, one.context, images, substitutes)
        found.append(hr.Service(**{**one.fields, "image": image}))
    return tuple(found)


def _built(
    name: str, recipe: Path, context: Path, images: ImageStore, substitutes: Mapping[str, str]
) -> str:
    text = recipe_text(recipe, images.exists, substitutes)
    tag = _digest(context / recipe.name, text)
    reference = f"{PREFIX}{_UPPER.sub('-', name.lower()).strip('-.') or 'task'}:{tag}"
    if images.exists(reference):
        return reference
    with owned_directory() as directory:
        copy = Path(directory) / recipe.name
        write_dockerfile(copy, text)
        return images.build(reference, containerfile=copy, context=context)


def recipe_text(recipe: Path, exists: Callable[[str], bool], substitutes: Mapping[str, str]) -> str:
    """Return the text of a recipe with its base images substituted.

    Args:
        recipe: the Containerfile or definition file.
        exists: returns whether a local image exists.
        substitutes: images that replace the base images.

    Raises:
        SpecError: a definition file would run commands on the host, or copy files from outside its
            directory.
    """
    if recipe.suffix != SUFFIX:
        text = read_dockerfile(recipe)
        return _FROM.sub(lambda found: found[1] + substitutes.get(found[2], found[2]), text)
    text = read_definition(recipe)
    definition = parse_definition(text)
    check_contained(definition, recipe.parent)
    base = substitutes.get(definition.base, definition.base)
    here = definition.bootstrap == "docker" and exists(base)
    return with_base(text, "localimage", base) if here or base != definition.base else text


def _ready(reference: str, images: ImageStore, *, pull: bool) -> str:
    try:
        return images.ensure(reference)
    except ImageNotFoundError:
        if not pull or is_local(reference):
            raise
    return images.pull(reference)


def _digest(recipe: Path, text: str) -> str:
    """Return a digest of all inputs of an image: the recipe's text, and every file beside it with
    its mode.
    """
    paths = (
        path
        for path in recipe.parent.rglob("*")
        if path != recipe and "__pycache__" not in path.parts
    )
    return inputs_digest(text, recipe.parent, paths)
