"""Translation of a compose file into a container with its services, and the builds of their images.

One service is the container itself; the others are its services (docs/services.md).
"""

from __future__ import annotations

import os
import platform
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.adapters.compose_parts import (
    COMPLETED,
    HEALTHY,
    conditions,
    interpolated,
    is_internal,
    networks_of,
    readiness,
    refused,
    variables_of_files,
    volumes_of,
    words,
)
from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime.images.build_inputs import dockerfile_digest
from hyperruntime.images.pull_errors import full_name
from hyperruntime.json_values import parse_yaml, yaml_lines
from hyperruntime.spec import ContainerSpec, Limits, Ready, is_text
from hyperruntime.spec import Service as SpecService
from hyperruntime.storage.text_file import read_utf8
from hyperruntime.units import parse_size

if TYPE_CHECKING:
    from hyperruntime.images.store import ImageStore

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
_LIMITS = {"mem_limit": "memory_bytes", "shm_size": "shm_bytes"}
_OTHERS = {"environment", "env_file", "build", "cpus", "tmpfs", "depends_on", "networks", *_LIMITS}
_MEANINGLESS = set(
    "init stdin_open tty restart stop_grace_period stop_signal "
    "labels annotations hostname platform container_name logging expose".split()
)
# of the container: programs that only wait for input
_MAIN = ("entrypoint", "command")
_OF_SERVICES = {*_MAIN, "healthcheck", "volumes"}
_NOT_OF_SERVICES = {"read_only"}
_AT_THE_TOP = {"services", "version", "name", "volumes", "networks"}
_MACHINES = {
    "x86_64": ("linux/amd64", "linux/x86_64"),
    "aarch64": ("linux/arm64", "linux/arm64/v8", "linux/aarch64"),
}
_TEXTS = "image working_dir network_mode pull_policy hostname container_name platform".split()
_TYPES: tuple[tuple[Sequence[str], tuple[type, ...], str], ...] = (
    (_TEXTS, (str,), "a text"),
    (("user", *_LIMITS), (str, int), "a text or a number"),
    (("cpus",), (str, int, float), "a number"),
    (("read_only",), (bool,), "true or false"),
    (("build",), (str, dict), "a path, or a table"),
)
_SHELLS = ("sh", "bash", "cat")
_BUILD = {"context", "dockerfile", "no_cache"}
_DEFAULTS = ("default", "main")
_JOB_S = 600.0  # for a service that another one waits for to complete
_TMP = "/tmp"  # noqa: S108 - in the container
_HUB = "docker.io"
_NO_IMAGE = "localhost/hyperruntime-compose/none:latest"


@attrs.define(kw_only=True, eq=False)
class Service:
    """Container and image of a service.

    Attributes:
        fields: fields of :class:`~hyperruntime.spec.ContainerSpec`, and the table ``limits``; of
            one beside the container, those of :class:`~hyperruntime.spec.Service`.
        dockerfile: the Dockerfile of its image; None if it names an image.
        context: directory that the build copies from.
        is_cached: whether the build may use cached layers.
        beside: the services of the container.
    """

    fields: Mapping[str, Any] = attrs.field(repr=False)
    dockerfile: Path | None = None
    context: Path = Path()
    is_cached: bool = True
    beside: tuple[Service, ...] = ()

    def image(self, images: ImageStore) -> str:
        """Return its image: a Dockerfile is built, and an unknown name gets a registry."""
        if self.dockerfile is None:
            if "image" not in self.fields:
                raise SpecError("image", None, "an image, or a build")
            name = str(self.fields["image"])
            return name if images.exists(name) else full_name(name, _HUB)
        digest = dockerfile_digest(self.dockerfile, self.context)
        return images.build(
            f"localhost/hyperruntime-compose/{digest}:latest",
            containerfile=self.dockerfile,
            context=self.context,
            short_names=_HUB,
            force=not self.is_cached,
        )

    def service(self, images: ImageStore) -> SpecService:
        """Return the service beside the container that it is; its image is built."""
        return SpecService(**{**self.fields, "image": self.image(images)})

    def spec(self, images: ImageStore, **changes: Any) -> ContainerSpec:  # noqa: ANN401 - fields
        """Return the spec of the container with its services; their images are built.

        Args:
            images: the images of the engine.
            changes: fields that replace those of the file.
        """
        fields = {**self.fields, "limits": Limits(**self.fields["limits"]), **changes}
        services = tuple(one.service(images) for one in self.beside)
        return ContainerSpec(**{**fields, "image": self.image(images), "services": services})


def read_compose(
    path: Path | str, main: str = "", variables: Mapping[str, str] | None = None
) -> Service:
    """Return the container that a compose file describes, with its services.

    Args:
        path: the file.
        main: the service that is the container; "" means the only one, or ``default``, the one
            with ``x-default: true``, or ``main``.
        variables: what replaces variables in the file; None means those of this process.

    Raises:
        UnsupportedOptionError: a key cannot be honoured; names the line.
        SpecError: the file cannot be read, or a value is invalid.
    """
    path = Path(path)
    text = read_utf8(path, "compose")
    try:
        config = parse_yaml(text)
    except ValueError as error:
        raise SpecError("compose", str(path), f"a YAML file ({error})") from None
    if not isinstance(config, dict):
        raise SpecError("compose", str(path), "a YAML file with the table services")
    lines = yaml_lines(text)
    return read_service(config, path.parent, main=main, variables=variables, lines=lines)


def read_service(
    config: Mapping[str, Any],
    folder: Path,
    *,
    main: str = "",
    variables: Mapping[str, str] | None = None,
    lines: Mapping[tuple[str, ...], int] | None = None,
) -> Service:
    """Return what the services of a compose file ask for. What cannot be honoured is refused by
    name.

    Args:
        config: the content of the file.
        folder: the file's directory.
        main: as for :func:`read_compose`.
        variables: as for :func:`read_compose`.
        lines: the lines of its keys, by their paths.

    Raises:
        UnsupportedOptionError: a key would make another container.
        SpecError: a value is invalid.

    Source: the Compose Specification, "Services top-level elements" and "Compose Build
    Specification".
    """
    reader = _Reader(config, folder, os.environ if variables is None else variables, lines or {})
    return reader.read(main)


class _Reader:
    """Reads the services of one file."""

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path,
        variables: Mapping[str, str],
        lines: Mapping[tuple[str, ...], int],
    ) -> None:
        self._config = config
        self._folder = folder
        self._variables = variables
        self._lines = lines
        self._services: dict[str, dict[str, Any]] = {}
        self._conditions: dict[str, dict[str, str]] = {}
        self._volumes: dict[str, dict[str, str]] = {}  # names by target
        self._waited: dict[str, set[str]] = {}  # conditions by the service that must meet them

    def read(self, main: str) -> Service:
        """Return the container of a service, with the others beside it."""
        self._read_top()
        main = self._main(main)
        for name, given in self._services.items():
            with self._placed(name):
                _check_types(given)
                self._volumes[name] = volumes_of(given.get("volumes") or [])
                needed = conditions(given.get("depends_on") or [], self._services)
                self._conditions[name] = needed
                for other, condition in needed.items():
                    self._waited.setdefault(other, set()).add(condition)
        with self._placed(main):
            self._check_waited(main)
        internal = self._check_networks(main)
        with self._placed(main):
            found = self._container(self._services[main])
            if internal and "network_mode" not in self._services[main]:
                found.fields = {**found.fields, "network": "none"}
        others = [name for name in self._services if name != main]
        if others:
            found.fields = {**found.fields, "host_names": self._names(main)}
        found.beside = tuple(self._beside(name, main) for name in others)
        fields = {key: value for key, value in found.fields.items() if key == "host_names"}
        services = [SpecService(**{**one.fields, "image": _NO_IMAGE}) for one in found.beside]
        ContainerSpec(image=_NO_IMAGE, services=tuple(services), **fields)  # checks them together
        return found

    def _read_top(self) -> None:
        services = self._config.get("services")
        if not isinstance(services, Mapping) or not services:
            raise SpecError("services", services, "a table with at least one service")
        for key in self._config:
            if key not in _AT_THE_TOP and not str(key).startswith("x-"):
                with self._placed(""):
                    raise refused(str(key), "this part of a compose file cannot be honoured")
        for name, given in services.items():
            if not isinstance(name, str) or not isinstance(given, Mapping):
                raise SpecError("services", name, "a table of services with texts as names")
            self._services[name] = _effective(given)
        volumes = self._config.get("volumes")
        for name, options in volumes.items() if isinstance(volumes, Mapping) else ():
            if options:
                with self._placed(""):
                    raise refused("volumes", f"{name!r} has options; remove them")

    def _main(self, asked: str) -> str:
        names = list(self._services)
        if asked:
            if asked not in names:
                raise SpecError("service", asked, f"one of {', '.join(names)}")
            return asked
        if len(names) == 1:
            return names[0]
        marked = [name for name in names if self._config["services"][name].get("x-default")]
        for name in (*_DEFAULTS[:1], *marked, *_DEFAULTS[1:]):
            if name in names:
                return name
        listed = ", ".join(names)
        why = f"which of {listed} is the container? Name one `default`, or name it by --service"
        raise refused("services", why)

    @contextmanager
    def _placed(self, service: str) -> Iterator[None]:
        """Add to errors where in the file they are."""
        try:
            yield
        except (UnsupportedOptionError, SpecError) as error:
            where = self._where(service, error.field)
            if isinstance(error, UnsupportedOptionError):
                raise refused(error.field, f"{error.why}{where}") from None
            raise SpecError(error.field, error.value, f"{error.allowed}{where}") from None

    def _where(self, service: str, field: str) -> str:
        top = ("services", service) if service else ()
        path = (*top, *field.split("."))
        known = (self._lines.get(path[:end]) for end in range(len(path), 0, -1))
        line = next((one for one in known if one is not None), None)
        parts = [f"service {service!r}"] if service and len(self._services) > 1 else []
        parts += [] if line is None else [f"line {line}"]
        return f" ({', '.join(parts)})" if parts else ""

    def _check_waited(self, main: str) -> None:
        if self._waited.get(main, set()) & {HEALTHY, COMPLETED}:
            raise refused("depends_on", f"a service waits for {main!r}, which runs no program")

    def _names(self, name: str) -> tuple[str, ...]:
        """Return all names of a service."""
        given = self._services[name]
        aliases = [
            one for more in networks_of(given.get("networks") or []).values() for one in more
        ]
        named = [str(given[key]) for key in ("hostname", "container_name") if given.get(key)]
        return tuple(dict.fromkeys((name, *named, *aliases)))

    def _check_networks(self, main: str) -> bool:
        """Return whether the network of all services is internal; all of them share one here."""
        used = set()
        for name, given in self._services.items():
            with self._placed(name):
                used |= set(networks_of(given.get("networks") or ["default"]))
                mode = given.get("network_mode")
                own = self._services[main].get("network_mode")
                shared = {f"service:{other}" for other in self._services}
                if name != main and mode not in (None, own, *shared):
                    raise refused("network_mode", f"it shares the network of {main!r}; remove it")
        if len(used) > 1:
            with self._placed(""):
                raise refused("networks", f"all services share one network, not {sorted(used)}")
        with self._placed(""):
            return is_internal(self._config.get("networks"), used)

    def _container(self, given: dict[str, Any]) -> Service:
        """Return the container of the main service."""
        _check_known(given, {*_KEYS, *_OTHERS, *_MEANINGLESS, *_MAIN, "healthcheck"})
        _check_main_program(given)
        if given.get("healthcheck") and readiness(given["healthcheck"]) is not None:
            raise refused("healthcheck", "nothing waits for it: the container runs no program")
        given = self._with_values(given)
        if str(given.get("network_mode", "")).startswith("service:"):
            del given["network_mode"]
        fields = {"network": "bridge", "pull": "missing", **self._fields(given)}
        return self._built(fields, given)

    def _beside(self, name: str, main: str) -> Service:
        """Return a service beside the container."""
        with self._placed(name):
            given = self._services[name]
            known = {*_KEYS, *_OTHERS, *_MEANINGLESS, *_OF_SERVICES} - _NOT_OF_SERVICES
            _check_known(given, known)
            given = self._with_values(given)
            fields = self._fields(given)
            for key in ("network", "pull"):
                fields.pop(key, None)
            fields["limits"] = Limits(**fields["limits"])
            for key, field in (("entrypoint", "entrypoint"), ("command", "args")):
                if given.get(key) is not None:
                    fields[field] = words(key, given[key])
            names = self._names(name)
            fields |= {"name": name, "aliases": names[1:]}
            fields["after"] = tuple(one for one in self._conditions[name] if one != main)
            fields["ready"] = self._ready(name, given)
            fields["directories"] = self._directories(name)
            if not given.keys() & {"image", "build"}:
                raise SpecError("image", None, "an image, or a build")
            return self._built(fields, given)

    def _ready(self, name: str, given: Mapping[str, Any]) -> Ready | None:
        waited = self._waited.get(name, set())
        if COMPLETED in waited:
            return Ready(completed=True, timeout_s=_JOB_S)
        ready = readiness(given["healthcheck"]) if given.get("healthcheck") else None
        if ready is None and HEALTHY in waited:
            raise refused(
                "depends_on",
                f"a service waits for the health of {name!r}, "
                "which has no healthcheck in the file; write one",
            )
        return ready

    def _directories(self, name: str) -> tuple[str, ...]:
        """Return the directories that are volumes of a service; those of several are refused."""
        mine = {volume for volume in self._volumes[name].values() if volume}
        for other, found in self._volumes.items():
            if other != name and (shared := sorted(mine & set(found.values()))):
                why = f"{other!r} has {shared[0]!r} too, and services share no files"
                raise refused("volumes", why)
        return tuple(self._volumes[name])

    def _with_values(self, given: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value if key in _MEANINGLESS else interpolated(key, value, self._variables)
            for key, value in given.items()
        }

    def _fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a container: those that all services have."""
        _check_platform(given.get("platform"))
        fields = {_KEYS[key]: given[key] for key in _KEYS if key in given}
        if "user" in fields:
            fields["user"] = str(fields["user"])
        files = variables_of_files(given["env_file"], self._folder) if "env_file" in given else {}
        fields["env"] = {**files, **self._environment(given.get("environment", {}))}
        limits = {"cpus": _number("cpus", given["cpus"])} if "cpus" in given else {}
        limits |= {
            field: parse_size(str(given[key]), key)
            for key, field in _LIMITS.items()
            if key in given
        }
        fields["limits"] = {**limits, **_tmpfs(given.get("tmpfs") or [])}
        return fields

    def _environment(self, given: object) -> dict[str, str]:
        """Return variables; one without a value has the value of this process, and is left out if
        there is none.
        """
        known = {
            name: self._variables.get(name) if value is None else value
            for name, value in read_variables(given).items()
        }
        return {name: value for name, value in known.items() if value is not None}

    def _built(self, fields: Mapping[str, Any], given: Mapping[str, Any]) -> Service:
        if "build" not in given:
            return Service(fields=fields)
        build = given["build"]
        table = (
            {"context": build}
            if isinstance(build, str)
            else {name: value for name, value in build.items() if value}
        )
        if "pull" in table:
            raise refused(
                "build.pull",
                "its base images are not pulled again; remove this key, and pull them first",
            )
        if unknown := sorted(table.keys() - _BUILD):
            raise refused(
                f"build.{unknown[0]}", "this key of the compose file cannot be honoured; remove it"
            )
        for key in ("context", "dockerfile"):
            if not is_text(table.get(key, "")):
                raise SpecError(f"build.{key}", table[key], "a path")
        context = self._folder / table.get("context", ".")
        return Service(
            fields=fields,
            dockerfile=context / table.get("dockerfile", "Dockerfile"),
            context=context,
            is_cached="no_cache" not in table,
        )


def _effective(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service without extensions (``x-...``), and without keys that have no value, or
    whose list or table is empty.
    """
    return {
        key: value
        for key, value in given.items()
        if not str(key).startswith("x-") and value is not None and value not in ([], {})
    }


def _check_types(given: Mapping[str, Any]) -> None:
    for keys, kinds, allowed in _TYPES:
        for key in keys:
            if key in given and type(given[key]) not in kinds:
                raise SpecError(key, given[key], allowed)


def _check_known(given: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(map(str, given.keys() - known)):
        raise refused(unknown[0], "this key of the compose file cannot be honoured; remove it")


def _check_platform(name: object) -> None:
    """Refuse an image of another processor: no engine here emulates one."""
    here = _MACHINES.get(platform.machine(), ("linux",))
    if name is not None and name not in ("linux", *here):
        raise refused("platform", f"this machine is {here[0]}, not {name}; use an image for it")


def _check_main_program(given: Mapping[str, Any]) -> None:
    """Refuse a main program, unless it only keeps the container running, as our containers do by
    themselves.
    """
    found = {key: given[key] for key in _MAIN if given.get(key)}
    said = [word for key, value in found.items() for word in words(key, value)]
    if said and not _only_waits(said):
        why = (
            "a sandbox has no main program of its own; remove this key, and start the program "
            "in the sandbox"
        )
        raise refused(next(iter(found)), why)


def _only_waits(said: list[str]) -> bool:
    name = posixpath.basename("".join(said[:1]))
    rest = said[1:]
    if name in _SHELLS and len(rest) == 2 and re.fullmatch("-l?c", rest[0]):
        return _only_waits(list(words("command", rest[1].removeprefix("exec "))))
    if name == "tail":
        return rest[-1:] == ["/dev/null"] and all(word.startswith("-") for word in rest[:-1])
    return (name == "sleep" and re.fullmatch(r"[\w.]*", "".join(rest)) is not None) or (
        name in _SHELLS and not rest
    )


def _number(key: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise SpecError(key, value, "a number") from None


def _tmpfs(given: object) -> dict[str, int]:
    """Return the limit of a ``tmpfs`` at ``/tmp``, the one that a container can have; without a
    size it changes nothing.
    """
    found = {}
    for one in given if isinstance(given, list) else [given]:
        path, _, options = str(one).partition(":")
        sizes = [word.removeprefix("size=") for word in options.split(",") if word]
        if posixpath.normpath(path) != _TMP:
            raise refused("tmpfs", f"only {_TMP} can be in memory, not {path!r}")
        for word in options.split(","):
            if word.startswith("size="):
                found["tmpfs_bytes"] = parse_size(sizes[-1], "tmpfs")
            elif word and not re.fullmatch(r"mode=0?1777|rw|exec|nosuid|nodev", word):
                raise refused("tmpfs", f"the option {word!r} cannot be honoured")
    return found


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
    parts = [str(word).partition("=") for word in values]
    return {name: value if equals else None for name, equals, value in parts}
