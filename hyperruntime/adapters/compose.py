"""Translation of the one service of a compose file into fields of a container and the build of its
image.
"""

from __future__ import annotations

import os
import platform
import posixpath
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime.units import parse_size

# Keys of a service: those of a spec, by their names there, others, and those that mean nothing
# here.
_KEYS = {
    "image": "image",
    "working_dir": "workdir",
    "user": "user",
    "network_mode": "network",
    "pull_policy": "pull",
}
_KEYS |= {"read_only": "read_only_rootfs"}
_OTHERS = {"environment", "build", "cpus", "mem_limit", "shm_size"}
_MEANINGLESS = set(
    "command entrypoint init stdin_open tty restart stop_grace_period stop_signal "
    "labels annotations hostname platform container_name logging expose".split()
)
_MACHINES = {
    "x86_64": ("linux/amd64", "linux/x86_64"),
    "aarch64": ("linux/arm64", "linux/arm64/v8", "linux/aarch64"),
}
# programs that only wait for input
_MAIN = ("entrypoint", "command")
_SHELLS = ("sh", "bash", "cat")
_BUILD = {"context", "dockerfile", "no_cache"}


@attrs.define(kw_only=True, eq=False)
class Service:
    """Container and image of a service.

    Attributes:
        fields: fields of :class:`~hyperruntime.spec.ContainerSpec`, and the table ``limits``.
        dockerfile: the Dockerfile of its image; None if it names an image.
        context: directory that the build copies from.
        is_cached: whether the build may use cached layers.
    """

    fields: Mapping[str, Any] = attrs.field(repr=False)
    dockerfile: Path | None = None
    context: Path = Path()
    is_cached: bool = True


def read_service(config: Mapping[str, Any], folder: Path) -> Service:
    """Return what the one service of a compose file asks for. What cannot be honoured is refused by
    name.

    Args:
        config: the content of the file, without keys that have no value.
        folder: the file's directory.

    Raises:
        UnsupportedOptionError: there are several services, or a key would make another container.
        SpecError: a value is invalid.

    Source: the Compose Specification, "Services top-level elements" and "Compose Build
    Specification".
    """
    if len(config["services"]) != 1:
        names = ", ".join(config["services"])
        raise _refused("services", f"a sandbox is one container, not {names}; use one service")
    if config.get("networks"):
        raise _refused(
            "networks", "a sandbox has no network of its own; use network_mode in the service"
        )
    given = _effective(next(iter(config["services"].values())))
    if unknown := sorted(given.keys() - _KEYS.keys() - _OTHERS - _MEANINGLESS):
        raise _refused(unknown[0], "this key of the compose file cannot be honoured; remove it")
    _check_main_program(given)
    _check_platform(given.get("platform"))
    for key in given.keys() - _MEANINGLESS:
        if "$" in str(given[key]):
            raise _refused(
                key, "variables are not replaced in a compose file; write the value without `$`"
            )
    fields = {
        "network": "bridge",
        "pull": "missing",
        **{_KEYS[key]: given[key] for key in _KEYS if key in given},
    }
    fields["env"] = _environment(given.get("environment", {}))
    fields["limits"] = {"cpus": given["cpus"]} if "cpus" in given else {}
    for key, field in (("mem_limit", "memory_bytes"), ("shm_size", "shm_bytes")):
        if key in given:
            fields["limits"][field] = parse_size(given[key])
    return _built(fields, given["build"], folder) if "build" in given else Service(fields=fields)


def _effective(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service without extensions (``x-...``), and without keys whose list or table is
    empty.
    """
    return {
        key: value
        for key, value in given.items()
        if not key.startswith("x-") and value not in ([], {})
    }


def _check_platform(name: object) -> None:
    """Refuse an image of another processor: no engine here emulates one."""
    here = _MACHINES.get(platform.machine(), ("linux",))
    if name is not None and name not in ("linux", *here):
        raise _refused("platform", f"this machine is {here[0]}, not {name}; use an image for it")


def _check_main_program(given: Mapping[str, Any]) -> None:
    """Refuse a main program, unless it only keeps the container running, as our containers do by
    themselves.
    """
    found = {key: given[key] for key in _MAIN if given.get(key)}
    words = [
        word
        for value in found.values()
        for word in (shlex.split(value) if isinstance(value, str) else value)
    ]
    if words and not _only_waits(words):
        why = (
            "a sandbox has no main program of its own; remove this key, and start the program "
            "in the sandbox"
        )
        raise _refused(next(iter(found)), why)


def _only_waits(words: list[str]) -> bool:
    name = posixpath.basename("".join(words[:1]))
    rest = words[1:]
    if name in _SHELLS and len(rest) == 2 and re.fullmatch("-l?c", rest[0]):
        return _only_waits(shlex.split(rest[1].removeprefix("exec ")))
    if name == "tail":
        return rest[-1:] == ["/dev/null"] and all(word.startswith("-") for word in rest[:-1])
    return (name == "sleep" and re.fullmatch(r"[\w.]*", "".join(rest)) is not None) or (
        name in _SHELLS and not rest
    )


def _built(fields: Mapping[str, Any], build: str | Mapping[str, Any], folder: Path) -> Service:
    given = (
        {"context": build}
        if isinstance(build, str)
        else {name: value for name, value in build.items() if value}
    )
    if "pull" in given:
        raise _refused(
            "build.pull",
            "its base images are not pulled again; remove this key, and pull them first",
        )
    if unknown := sorted(given.keys() - _BUILD):
        raise _refused(
            f"build.{unknown[0]}", "this key of the compose file cannot be honoured; remove it"
        )
    context = folder / given.get("context", ".")
    dockerfile = context / given.get("dockerfile", "Dockerfile")
    return Service(
        fields=fields, dockerfile=dockerfile, context=context, is_cached="no_cache" not in given
    )


def _environment(given: object) -> dict[str, str]:
    """Return variables; one without a value has the value of this process, and is left out if there
    is none.
    """
    known = {
        name: os.environ.get(name) if value is None else value
        for name, value in read_variables(given).items()
    }
    return {name: value for name, value in known.items() if value is not None}


def read_variables(given: object) -> dict[str, str | None]:
    """Return the variables of the key ``environment``; one without a value has None.

    Raises:
        SpecError: it is neither a list nor a table.
    """
    values = list(given.values()) if isinstance(given, Mapping) else given
    if not isinstance(values, list) or any(isinstance(value, list | dict) for value in values):
        raise SpecError("environment", "...", "a list such as [NAME=value], or a table")
    if isinstance(given, Mapping):
        return {str(name): None if value is None else str(value) for name, value in given.items()}
    words = [str(word).partition("=") for word in values]
    return {name: value if equals else None for name, equals, value in words}


def _refused(key: str, why: str) -> UnsupportedOptionError:
    return UnsupportedOptionError("hyperruntime", key, why)
