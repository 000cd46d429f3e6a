"""Reader of a task's compose file, for its one container.

A task may have ``environment/docker-compose.yaml``, with changes to the service ``main`` that
Harbor starts, and with more services. Only ``main`` is supported here. ``docker-compose.yml`` is an
ordinary file, not a definition.

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
    """

    image: str = ""
    recipe: Path | None = None
    workdir: str = ""
    user: str = ""
    env: Mapping[str, str] = attrs.field(factory=dict)
    limits: Mapping[str, Any] = attrs.field(factory=dict)
    has_network: bool | None = None


def read_main(folder: Path) -> Main:
    """Return the service ``main`` of the compose file in a task's ``environment`` directory; all
    defaults without one.

    Args:
        folder: the directory.

    Raises:
        SpecError: the file is invalid, has another service, or asks for something that is not
            supported.
    """
    path = folder / NAME
    if not path.is_file():
        return Main()
    try:
        given, variables = _main(path)
        service = read_service({"services": {_MAIN: given}}, folder)
        return _as_main(service, variables, folder)
    except UnsupportedOptionError as error:
        raise SpecError(
            "task", str(path), f"{error.field} of the service {_MAIN!r}: {error.why}"
        ) from None


def _main(path: Path) -> tuple[dict[str, Any], dict[str, str | None]]:
    """Return the keys of ``main`` and its variables, without those that only repeat what Harbor
    does by itself.
    """
    text = read_utf8(path, "task", may_be_link=False)
    try:
        config = parse_yaml(text) or {}
        services = config.get("services") or {_MAIN: {}}
        unknown = sorted(
            key for key in config if key not in _AT_THE_TOP and not key.startswith("x-")
        )
        main = {
            key: value for key, value in (services.get(_MAIN) or {}).items() if value is not None
        }
    except (ValueError, AttributeError) as error:
        raise SpecError(
            "task", str(path), f"a valid compose file: {' '.join(str(error).split())}"
        ) from None
    if others := sorted(services.keys() - {_MAIN}):
        names = ", ".join(map(str, others))
        raise SpecError(
            "task",
            str(path),
            f"a task with one container, {_MAIN!r}; it also has the service {names}",
        )
    if unknown or config.get("networks"):
        raise SpecError(
            "task", str(path), f"a file without {(*unknown, 'networks')[0]}, which is not supported"
        )
    variables = _variables(read_variables(main.pop("environment", {})))
    given = {
        key: kept
        for key, value in main.items()
        if (kept := _without_harbors(value)) not in (None, [], {})
    }
    return given, variables


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
    )
