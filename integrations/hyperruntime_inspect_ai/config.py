"""Configurations of a sandbox: a TOML file, a compose file, or a Dockerfile."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeAlias

import attrs
from inspect_ai.util import ComposeConfig, is_compose_yaml, is_dockerfile, parse_compose_yaml
from pydantic import BaseModel

import hyperruntime as hr
from hyperruntime.adapters.compose import Service, read_service
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
_BUILT = "localhost/hyperruntime-inspect/none:latest"  # until it is built
_REGISTRY = "docker.io"  # of names that have none
Prepared: TypeAlias = tuple[hr.Runtime, hr.ContainerSpec]


@attrs.frozen
class Beside:
    """A service beside the container, and the build of its image."""

    service: hr.Service
    dockerfile: Path | None = None
    context: Path = Path()
    is_cached: bool = True


@attrs.frozen
class Plan:
    """An engine (None: the usual one), a container, the build of its image, the name of its
    environment, and the services beside it.
    """

    runtime: str | None
    spec: hr.ContainerSpec
    dockerfile: Path | None = None
    context: Path = Path()
    is_cached: bool = True
    name: str = "default"
    beside: tuple[Beside, ...] = ()

    def prepare(self) -> Prepared:
        """Return the open engine and the spec; make the image of a Dockerfile or a recipe, but pull
        no other image.
        """
        runtime = shared_runtime(self.runtime)
        image = self.spec.image
        is_recipe = "/" not in image and ":" not in image and self.spec.pull == "never"
        makes = runtime.images.ensure if self.dockerfile is None and is_recipe else None
        image = makes(image) if makes else _image(runtime, image, self)
        services = tuple(
            attrs.evolve(one.service, image=_image(runtime, one.service.image, one))
            for one in self.beside
        )
        spec = attrs.evolve(self.spec, image=image, services=services)
        _prepared.get()[self] = prepared = runtime, spec
        return prepared

    def prepared(self) -> Prepared:
        """Return what the last call of `prepare` returned, so that the samples of a task have one
        image.
        """
        return _prepared.get().get(self) or self.prepare()


def _image(runtime: hr.Runtime, image: str, made: Plan | Beside) -> str:
    """Return an image, which is built if it has a Dockerfile; an unknown name gets a registry."""
    if made.dockerfile is None:
        return image if runtime.images.exists(image) else full_name(image, _REGISTRY)
    digest = dockerfile_digest(made.dockerfile, made.context)
    return runtime.images.build(
        f"localhost/hyperruntime-inspect/{digest}:latest",
        containerfile=made.dockerfile,
        context=made.context,
        short_names=_REGISTRY,
        force=not made.is_cached,
    )


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
    found = read_service(
        config.model_dump(exclude_unset=True, exclude_none=True, by_alias=True), folder
    )
    beside = tuple(
        Beside(hr.Service(**{"image": _BUILT, **one.fields}), *_build(one)) for one in found.beside
    )
    names = found.fields.get("host_names", ("default",))  # of one service the name is not used
    plan = _of_table({**found.fields, "host_names": list(names)} if beside else {**found.fields})
    dockerfile, context, is_cached = _build(found)
    return attrs.evolve(
        plan,
        dockerfile=dockerfile,
        context=context,
        is_cached=is_cached,
        name=names[0],
        beside=beside,
    )


def _build(service: Service) -> tuple[Path | None, Path, bool]:
    return service.dockerfile, service.context, service.is_cached
