"""Reader of a task's compose file, for its container and the services beside it.

A task may have ``environment/docker-compose.yaml``, with changes to the service ``main`` that
Harbor starts, and with more services. ``docker-compose.yml`` is an ordinary file, not a definition.

Source: Harbor, ``src/harbor/environments/docker/docker.py``: ``_environment_docker_compose_path``,
``_docker_compose_paths`` and ``DockerEnvironmentEnvVars``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.adapters.compose import Service, read_service, read_variables
from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime.json_values import parse_yaml
from hyperruntime.run_as import is_root
from hyperruntime.spec import check_user
from hyperruntime.storage.text_file import read_utf8

NAME = "docker-compose.yaml"
ROOT = "root"
_MAIN = "main"
# Variables that Harbor sets for this file: what they stand for is done here without it.
_NAMES = r"(?:MAIN_IMAGE_NAME|PREBUILT_IMAGE_NAME|CPUS|MEMORY|(?:HOST|ENV)_(?:VERIFIER_LOGS|AGENT_LOGS|ARTIFACTS)_PATH)"
_OF_HARBOR = re.compile(rf"\$\{{?{_NAMES}(?::-[^}}]*)?\}}?")
_CONTEXT = re.compile(r"\$\{?CONTEXT_DIR\}?")
# an unused volume changes nothing
_AT_THE_TOP = {"services", "version", "name", "volumes", "networks"}


@attrs.frozen(kw_only=True)
class Main:
    """The service ``main`` of a compose file.

    Attributes:
        image: reference of a ready image, or "".
        recipe: its Dockerfile, or None.
        workdir: working directory, or "".
        user: user of agents and tests as :func:`user_text` returns it, or "".
        env: environment variables; ``${NAME}`` takes a value of the host.
        limits: limits, by the name of the field of :class:`~hyperruntime.Limits`.
        has_network: False if it has none; None if the file does not say.
        services: the services beside it.
        host_names: the names by which they reach it.
    """

    image: str = ""
    recipe: Path | None = None
    workdir: str = ""
    user: str = ""
    env: Mapping[str, str] = attrs.field(factory=dict)
    limits: Mapping[str, Any] = attrs.field(factory=dict)
    has_network: bool | None = None
    services: tuple[Service, ...] = ()
    host_names: tuple[str, ...] = ()


def read_main(folder: Path) -> Main:
    """Return the service ``main`` of the compose file in a task's ``environment`` directory; all
    defaults without one.

    Args:
        folder: the directory.

    Raises:
        SpecError: the file is invalid, or asks for something that is not supported.
    """
    path = folder / NAME
    if not path.is_file():
        return Main()
    try:
        config, variables = _read(path)
        service = read_service(config, folder, main=_MAIN, variables={})
        for one in service.beside:
            _check_beside(one, folder)
        return _as_main(service, variables, folder)
    except UnsupportedOptionError as error:
        where = "" if "(service " in error.why else f" of the service {_MAIN!r}"
        raise SpecError("task", str(path), f"{error.field}{where}: {error.why}") from None


def _check_beside(service: Service, folder: Path) -> None:
    """Check that a service beside ``main`` needs only files of the task."""
    used = () if service.dockerfile is None else (service.dockerfile, service.context)
    if any(not path.resolve().is_relative_to(folder.resolve()) for path in used):
        name = service.fields["name"]
        why = f"the Dockerfile and the context of {name!r} must be in environment/"
        raise UnsupportedOptionError("terminal", "build", why)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str | None]]:
    """Return the content of the file and the variables of ``main``, without what only repeats what
    Harbor does by itself.
    """
    text = read_utf8(path, "task", may_be_link=False)
    try:
        config = parse_yaml(text) or {}
        unknown = sorted(
            key for key in config if key not in _AT_THE_TOP and not key.startswith("x-")
        )
        services = {
            name: {key: value for key, value in (given or {}).items() if value is not None}
            for name, given in (config.get("services") or {}).items()
        }
    except (ValueError, AttributeError) as error:
        raise SpecError(
            "task", str(path), f"a valid compose file: {' '.join(str(error).split())}"
        ) from None
    if unknown:
        raise SpecError("task", str(path), f"a file without {unknown[0]}, which is not supported")
    main = services.pop(_MAIN, {})
    variables = _variables(read_variables(main.pop("environment", {})))
    for name, given in services.items():
        values = read_variables(given.get("environment", {})).items()
        if unset := [variable for variable, value in values if value is None]:
            why = f"a value of {unset[0]} for {name!r}: only {_MAIN!r} gets variables of the host"
            raise SpecError("task", str(path), why)
    kept = {
        name: {
            key: kept
            for key, value in given.items()
            if (kept := _without_harbors(value)) not in (None, [], {})
        }
        for name, given in {_MAIN: main, **services}.items()
    }
    return {**config, "services": kept}, variables


def _variables(given: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return variables without those of Harbor; one without a value keeps its name, whose value is
    the host's.
    """
    own = {
        name: value
        for name, value in given.items()
        if value is not None or not re.fullmatch(_NAMES, name)
    }
    return {
        name: None if value is None else _CONTEXT.sub(".", value)
        for name, value in own.items()
        if value is None or not _is_harbors(value)
    }


def _is_harbors(text: str) -> bool:
    """Return whether a text consists of Harbor's variables and what compose writes around them."""
    return _OF_HARBOR.search(text) is not None and not _OF_HARBOR.sub("", text).strip(":roz,")


def _without_harbors(value: Any) -> Any:  # noqa: ANN401 - of a YAML file
    """Return a value without the parts that consist of Harbor's variables; None if nothing is
    left.
    """
    if isinstance(value, dict):
        kept = {key: _without_harbors(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner not in (None, {}, [])} or None
    if isinstance(value, list):
        return [kept for inner in value if (kept := _without_harbors(inner)) is not None]
    if not isinstance(value, str):
        return value
    name, equals, text = value.partition("=")
    if _is_harbors(text if equals else name):
        return None
    return _CONTEXT.sub(".", value)


def user_text(value: object) -> str:
    """Return a user as ``root``, or as a name or uid with an optional ``:group``; a number is a
    uid.

    Raises:
        SpecError: it is neither.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    check_user(text)
    assert isinstance(text, str)
    return ROOT if is_root(text) else text


def _user(value: object) -> str:
    try:
        return "" if value == "" else user_text(value)
    except SpecError as error:
        raise UnsupportedOptionError(
            "terminal", "user", f"{value!r} is not {error.allowed}"
        ) from None


def _as_main(service: Service, variables: Mapping[str, str | None], folder: Path) -> Main:
    fields = service.fields
    if fields.get("read_only_rootfs"):
        raise UnsupportedOptionError("terminal", "read_only", "agents and tests write files")
    if fields["network"] not in ("none", "bridge", "default"):
        raise UnsupportedOptionError(
            "terminal", "network_mode", f"{fields['network']!r} is not none or bridge"
        )
    recipe = service.dockerfile
    if (
        recipe is not None
        and (recipe.parent.resolve(), service.context.resolve()) != (folder.resolve(),) * 2
    ):
        raise UnsupportedOptionError(
            "terminal", "build", "its Dockerfile and context must be in environment/"
        )
    if recipe is not None and not recipe.is_file():
        raise UnsupportedOptionError(
            "terminal", "build.dockerfile", f"{recipe.name!r} does not exist in environment/"
        )
    return Main(
        image=fields.get("image", ""),
        recipe=None if recipe is None else folder / recipe.name,
        workdir=fields.get("workdir", ""),
        user=_user(fields.get("user", "")),
        env={name: f"${{{name}}}" if value is None else value for name, value in variables.items()},
        limits=fields["limits"],
        has_network=False if fields["network"] == "none" else None,
        services=service.beside,
        host_names=fields.get("host_names", ()),
    )
