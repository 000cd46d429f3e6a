"""Configurations of a sandbox: a TOML file, a compose file of one service, or a Dockerfile."""

from __future__ import annotations

import functools
import hashlib
import tomllib
from pathlib import Path
from typing import Any

import attrs
from inspect_ai.util import ComposeBuild, ComposeConfig, is_compose_yaml, is_dockerfile, parse_compose_yaml
from pydantic import BaseModel

import hyperruntime as hr
from hyperruntime.adapters.shared_runtime import shared_runtime
from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime.images.pull_errors import full_name
from hyperruntime.pool.values.profiles import parse_profile
from hyperruntime.units import parse_size

NAME = "hyperruntime"
FILES = ["hyperruntime.toml", "compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml", "Dockerfile"]
# Keys of a service in a compose file: those of a spec, by their names there, others, and those that mean nothing here.
_KEYS = {"image": "image", "working_dir": "workdir", "user": "user", "network_mode": "network", "pull_policy": "pull"}
_KEYS |= {"read_only": "read_only_rootfs"}
_OTHERS = {"environment", "build", "cpus", "mem_limit"}
_MEANINGLESS = set("command entrypoint init stdin_open tty restart stop_grace_period x_default".split())


@attrs.frozen
class Plan:
    """What a configuration asks for: an engine (None: the usual one), a container, and the Dockerfile of its image."""

    runtime: str | None
    spec: hr.ContainerSpec
    dockerfile: Path | None = None
    context: Path | None = None

    @functools.cache  # noqa: B019 - a process has few plans
    def prepared(self) -> tuple[hr.Runtime, hr.ContainerSpec]:
        """Return the engine, which stays open, and the spec; the image exists, or is pulled by the first sample."""
        runtime, image = shared_runtime(self.runtime), self.spec.image
        if self.dockerfile is not None:
            runtime.images.build(image, containerfile=self.dockerfile, context=self.context)
        elif "/" not in image and ":" not in image and self.spec.pull == "never":
            image = runtime.images.ensure(image)  # the name of a recipe
        elif not runtime.images.exists(image):
            image = full_name(image, "docker.io")
        return runtime, attrs.evolve(self.spec, image=image)


def read_config(config: BaseModel | str | None) -> Plan:
    """Return what a configuration asks for; None asks for the base image. What cannot be honoured is refused."""
    if isinstance(config, ComposeConfig):
        return _of_compose(config, Path.cwd())
    if config is None:
        return _of_table({})
    if isinstance(config, BaseModel):
        raise SpecError("sandbox", type(config).__name__, "a TOML file, a compose file or a Dockerfile")
    path = Path(config)
    if is_dockerfile(config):
        return _of_table({}, path, path.parent)
    if is_compose_yaml(config):
        return _of_compose(parse_compose_yaml(config), path.parent)
    try:
        return _of_table(tomllib.loads(path.read_text()))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SpecError("sandbox", config, f"a TOML file, a compose file or a Dockerfile ({error})") from error


def _of_table(table: dict[str, Any], dockerfile: Path | None = None, context: Path | None = None) -> Plan:
    fields = {"image": "base", **table}
    runtime = fields.pop("runtime", None)
    if dockerfile is not None:
        digest = hashlib.sha256(str(dockerfile.resolve()).encode() + dockerfile.read_bytes()).hexdigest()[:16]
        fields["image"] = f"localhost/hyperruntime-inspect/{digest}:latest"
    try:
        return Plan(runtime, parse_profile("sandbox", fields).spec, dockerfile, context)
    except SpecError as error:
        raise SpecError(error.field.removeprefix("profiles.sandbox."), error.value, error.allowed) from None


def _of_compose(config: ComposeConfig, folder: Path) -> Plan:
    if len(config.services) != 1:
        names = ", ".join(config.services)
        raise UnsupportedOptionError(NAME, "services", f"a sandbox is one container, not {names}; use one service")
    service = next(iter(config.services.values()))
    given = {name: value for name in service.model_fields_set if (value := getattr(service, name)) is not None}
    if unknown := sorted(given.keys() - _KEYS.keys() - _OTHERS - _MEANINGLESS):
        raise UnsupportedOptionError(NAME, unknown[0], "this key of the compose file cannot be honoured; remove it")
    fields = {"network": "bridge", "pull": "missing", **{_KEYS[key]: given[key] for key in _KEYS if key in given}}
    env = given.get("environment", {})
    pairs = dict(word.partition("=")[::2] for word in env) if isinstance(env, list) else env
    fields["env"] = {name: "" if value is None else str(value) for name, value in pairs.items()}
    fields["limits"] = {"cpus": given["cpus"]} if "cpus" in given else {}
    if "mem_limit" in given:
        fields["limits"]["memory_bytes"] = parse_size(given["mem_limit"])
    if service.build is None:
        return _of_table(fields)
    build = ComposeBuild(context=service.build) if isinstance(service.build, str) else service.build
    context = folder / (build.context or ".")
    return _of_table(fields, context / (build.dockerfile or "Dockerfile"), context)
