"""Configurations of a sandbox: a TOML file, a compose file of one service, or a Dockerfile."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeAlias

import attrs
from inspect_ai.util import ComposeConfig, is_compose_yaml, is_dockerfile, parse_compose_yaml
from pydantic import BaseModel

import hyperruntime as hr
from hyperruntime.adapters.compose import read_service
from hyperruntime.adapters.shared_runtime import shared_runtime
from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.errors import SpecError
from hyperruntime.images.build_inputs import dockerfile_digest
from hyperruntime.images.pull_errors import full_name
from hyperruntime.pool_values.profiles import parse_profile

NAME = "hyperruntime"
FILES = [
    "hyperruntime.toml",
    "compose.yaml",
    "compose.yml",
    "docker-compose.yaml",
    "docker-compose.yml",
    "Dockerfile",
]
_REGISTRY = "docker.io"  # of names that have none
Prepared: TypeAlias = tuple[hr.Runtime, hr.ContainerSpec]


@attrs.frozen
class Plan:
    """An engine (None: the usual one), a container, and the build of its image."""

    runtime: str | None
    spec: hr.ContainerSpec
    dockerfile: Path | None = None
    context: Path = Path()
    is_cached: bool = True

    def prepare(self) -> Prepared:
        """Return the open engine and the spec; make the image of a Dockerfile or a recipe, but pull
        no other image.
        """
        runtime = shared_runtime(self.runtime)
        image = self.spec.image
        if self.dockerfile is not None:
            image = f"localhost/hyperruntime-inspect/{dockerfile_digest(self.dockerfile, self.context)}:latest"
            runtime.images.build(
                image,
                containerfile=self.dockerfile,
                context=self.context,
                short_names=_REGISTRY,
                force=not self.is_cached,
            )
        elif "/" not in image and ":" not in image and self.spec.pull == "never":
            image = runtime.images.ensure(image)  # the name of a recipe
        elif not runtime.images.exists(image):
            image = full_name(image, _REGISTRY)
        _prepared.get()[self] = prepared = runtime, attrs.evolve(self.spec, image=image)
        return prepared

    def prepared(self) -> Prepared:
        """Return what the last call of `prepare` returned, so that the samples of a task have one
        image.
        """
        return _prepared.get().get(self) or self.prepare()


_prepared: PerProcess[dict[Plan, Prepared]] = PerProcess(dict)


def read_config(config: BaseModel | str | None) -> Plan:
    """Return what a configuration asks for; None asks for the base image.

    Raises:
        HyperRuntimeError: the file cannot be read, or asks for something that a container cannot
            have.
    """
    if isinstance(config, ComposeConfig):
        return _of_compose(config, Path.cwd())
    if config is None:
        return _of_table({})
    if isinstance(config, BaseModel):
        raise SpecError(
            "sandbox", type(config).__name__, "a TOML file, a compose file or a Dockerfile"
        )
    path = Path(config)
    if is_dockerfile(config):
        return _of_table({}, dockerfile=path, context=path.parent)
    if is_compose_yaml(config):
        return _of_compose(parse_compose_yaml(config), path.parent)
    try:
        return _of_table(tomllib.loads(path.read_text()))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SpecError(
            "sandbox", config, f"a TOML file, a compose file or a Dockerfile ({error})"
        ) from error


def _of_table(table: dict[str, Any], **build: Any) -> Plan:  # noqa: ANN401 - fields of a Plan
    fields = {"image": "base", **table}
    runtime = fields.pop("runtime", None)
    try:
        return Plan(runtime, parse_profile("sandbox", fields).spec, **build)
    except SpecError as error:
        raise SpecError(
            error.field.removeprefix("profiles.sandbox."), error.value, error.allowed
        ) from None


def _of_compose(config: ComposeConfig, folder: Path) -> Plan:
    service = read_service(
        config.model_dump(exclude_unset=True, exclude_none=True, by_alias=True), folder
    )
    build = {
        "dockerfile": service.dockerfile,
        "context": service.context,
        "is_cached": service.is_cached,
    }
    return _of_table({**service.fields}, **build)
