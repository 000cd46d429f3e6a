"""What the compose file of a task says about its one container.

A task may have ``environment/docker-compose.yaml``, with changes to the service ``main`` that Harbor starts, and with
more services. Only ``main`` is supported here. ``docker-compose.yml`` is an ordinary file, not a definition.

Source: Harbor, ``src/harbor/environments/docker/docker.py``: ``_environment_docker_compose_path``,
``_docker_compose_paths`` and ``DockerEnvironmentEnvVars``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import yaml

from hyperruntime.adapters.compose import Service, read_service, read_variables
from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime.storage.text_file import read_utf8

NAME = "docker-compose.yaml"
_MAIN = "main"
# Variables that Harbor sets for this file: what they stand for is done here without it.
_OF_HARBOR = re.compile(
    r"\$\{?(?:MAIN_IMAGE_NAME|PREBUILT_IMAGE_NAME|CPUS|MEMORY|(?:HOST|ENV)_(?:VERIFIER_LOGS|AGENT_LOGS|ARTIFACTS)_PATH)"
    r"(?::-[^}]*)?\}?"
)
_CONTEXT = re.compile(r"\$\{?CONTEXT_DIR\}?")
_AT_THE_TOP = {"services", "version", "name", "volumes", "networks"}  # an unused volume changes nothing


@attrs.frozen(kw_only=True)
class Main:
    """The service ``main`` of a compose file.

    Attributes:
        image: reference of a ready image, or "".
        recipe: its Dockerfile, or None.
        workdir: working directory, or "".
        env: environment variables; ``${NAME}`` takes a value of the host.
        limits: limits, by the name of the field of :class:`~hyperruntime.Limits`.
        has_network: False if it has none; None if the file does not say.
    """

    image: str = ""
    recipe: Path | None = None
    workdir: str = ""
    env: Mapping[str, str] = attrs.field(factory=dict)
    limits: Mapping[str, Any] = attrs.field(factory=dict)
    has_network: bool | None = None


def read_main(folder: Path) -> Main:
    """Return the service ``main`` of the compose file in a task's ``environment`` directory; all defaults without one.

    Args:
        folder: the directory.

    Raises:
        SpecError: the file is invalid, has another service, or asks for something that is not supported.
    """
    path = folder / NAME
    if not path.is_file():
        return Main()
    try:
        given = _main(path)
        variables = read_variables(given.pop("environment", {}))
        service = read_service({"services": {_MAIN: given}}, folder)
        return _as_main(service, variables, folder)
    except UnsupportedOptionError as error:
        raise SpecError("task", str(path), f"{error.field} of the service {_MAIN!r}: {error.why}") from None


def _main(path: Path) -> dict[str, Any]:
    """Return the keys of ``main``, without those that only repeat what Harbor does by itself."""
    try:
        config = yaml.safe_load(read_utf8(path, "task", may_be_link=False)) or {}
        services = config.get("services") or {_MAIN: {}}
        unknown = sorted(key for key in config if key not in _AT_THE_TOP and not key.startswith("x-"))
        main = {key: value for key, value in (services.get(_MAIN) or {}).items() if value is not None}
    except (yaml.YAMLError, AttributeError) as error:
        raise SpecError("task", str(path), f"a valid compose file: {' '.join(str(error).split())}") from None
    if others := sorted(services.keys() - {_MAIN}):
        names = ", ".join(map(str, others))
        raise SpecError("task", str(path), f"a task with one container, {_MAIN!r}; it also has the service {names}")
    if unknown or config.get("networks"):
        raise SpecError("task", str(path), f"a file without {(*unknown, 'networks')[0]}, which is not supported")
    return {key: kept for key, value in main.items() if (kept := _without_harbors(value)) not in (None, [], {})}


def _without_harbors(value: Any) -> Any:  # noqa: ANN401 - of a YAML file
    """Return a value without the parts that consist of Harbor's variables; None if nothing is left."""
    if isinstance(value, dict):
        kept = {key: _without_harbors(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner not in (None, {}, [])} or None
    if isinstance(value, list):
        return [kept for inner in value if (kept := _without_harbors(inner)) is not None]
    if not isinstance(value, str):
        return value
    name, equals, text = value.partition("=")
    if _OF_HARBOR.search(text if equals else name) and not _OF_HARBOR.sub("", text if equals else name).strip(":roz,"):
        return None
    return _CONTEXT.sub(".", value)


def _as_main(service: Service, variables: Mapping[str, str | None], folder: Path) -> Main:
    fields = service.fields
    if fields.get("user", "root") not in ("root", 0, "0", "0:0", "root:root"):
        raise UnsupportedOptionError("terminal", "user", f"{fields['user']!r} is not root, as which agents run")
    if fields.get("read_only_rootfs"):
        raise UnsupportedOptionError("terminal", "read_only", "agents and tests write files")
    if fields["network"] not in ("none", "bridge", "default"):
        raise UnsupportedOptionError("terminal", "network_mode", f"{fields['network']!r} is not none or bridge")
    recipe = service.dockerfile
    if recipe is not None and (recipe.parent.resolve(), service.context.resolve()) != (folder.resolve(),) * 2:
        raise UnsupportedOptionError("terminal", "build", "its Dockerfile and context must be in environment/")
    if recipe is not None and not recipe.is_file():
        raise UnsupportedOptionError("terminal", "build.dockerfile", f"{recipe.name!r} does not exist in environment/")
    return Main(
        image=fields.get("image", ""),
        recipe=None if recipe is None else folder / recipe.name,
        workdir=fields.get("workdir", ""),
        env={name: f"${{{name}}}" if value is None else value for name, value in variables.items()},
        limits=fields["limits"],
        has_network=False if fields["network"] == "none" else None,
    )
