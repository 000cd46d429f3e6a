"""The values that a user passes in and gets back; validated once, on construction."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import attrs

from hyperruntime.errors import CommandFailedError, SpecError
from hyperruntime.json_values import is_number
from hyperruntime.network.egress import NETWORKS, Egress, Network
from hyperruntime.pickling import frozen_mapping, names_only
from hyperruntime.settings.image_names import check_image

LimitsMode = Literal["enforce", "watchdog"]
Pull = Literal["never", "missing", "always"]
LIMITS_MODES: tuple[str, ...] = ("enforce", "watchdog")
PULLS: tuple[str, ...] = ("never", "missing", "always")
DEFAULT_PIDS = 512
DEFAULT_OUTPUT_LIMIT_BYTES = 10 * 1024**2
_USER = re.compile(
    r"(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]*\$?)(:(?P<group>[A-Za-z0-9_][A-Za-z0-9_.-]*\$?))?"
)
_LETTERS = r"[A-Za-z](?:[A-Za-z0-9_{}-]*[A-Za-z0-9])?"
# Source: SPEC.md of the Container Device Interface, "kind" and "devices.name".
DEVICE_KIND = re.compile(f"{_LETTERS.format('.')}/{_LETTERS.format('')}")
DEVICE_NAME = re.compile(f"{DEVICE_KIND.pattern}=[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_GPU_INDEX = re.compile(r"[0-9]{1,4}(:[0-9]{1,4})?|(GPU|MIG)-[A-Za-z0-9/-]{8,80}")
_GPU_WORDS = re.compile(r"all|auto(:[1-9][0-9]{0,3})?")
_MAX_ID = 2**31 - 1  # the largest id that engines accept
_MIN_CPUS = 0.01  # 1 ms in each 100 ms, the least quota of the kernel; source: sched-bwc.rst
_MAX_CPUS = 1_000_000  # does not overflow the kernel's quota
_MAX_PIDS = 2**22  # source: proc(5), pid_max
_MAX_BYTES = 2**63 - 1
# Mount points used by exec, the engine and the kernel. In the trees, no path below them is allowed
# either.
_RESERVED = ("/", "/run", "/dev")
_RESERVED_TREES = ("/run/hyperruntime", "/proc", "/sys")
_TAIL_BYTES = 2000


def check_env(field: str, env: Mapping[Any, Any]) -> None:
    """Check that variables can be passed to a process.

    Args:
        field: name of the field, for the error.
        env: the variables.

    Raises:
        SpecError: a name is empty or contains ``=`` or NUL, a value contains NUL, or one of them
            cannot be encoded.
    """
    for name, value in env.items():
        if not is_text(name) or not name or "=" in name:
            raise SpecError(field, name, "a non-empty name without '=' and NUL")
        if not is_text(value):
            other = "" if isinstance(value, str) else f", not a {type(value).__name__}"
            allowed = f"text without NUL and lone surrogates{other}"
            raise SpecError(f"{field}[{name}]", "...", allowed)


def check_inside_path(field: str, path: Any) -> None:  # noqa: ANN401 - checked here
    """Check that a value is an absolute path in a container.

    Args:
        field: name of the field, for the error.
        path: the value.

    Raises:
        SpecError: it is not text, is relative, contains NUL or cannot be encoded.
    """
    if not is_text(path) or not path.startswith("/"):
        raise SpecError(field, path, "an absolute path inside the container")


def check_seconds(field: str, value: Any) -> None:  # noqa: ANN401 - checked here
    """Check that a value is a time limit.

    Args:
        field: name of the field, for the error.
        value: the value.

    Raises:
        SpecError: it is not a finite number above 0.
    """
    if not is_number(value) or value <= 0:
        raise SpecError(field, value, "a positive number of seconds")


def is_text(value: object) -> bool:
    """Return whether a value is text that can be passed to a process: without NUL, and encodable
    like a file name.
    """
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def _check_utf8(field: str, *texts: str) -> None:
    """Check that texts are UTF-8, because engines store them as JSON."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SpecError(field, text, "UTF-8 text, because engines store it as JSON") from None


def _whole(least: int, most: int, why: str = "") -> Any:  # noqa: ANN401 - an attrs validator
    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is None:
            return
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            allowed = (
                f"a whole number, at least {least}{why} and at most {most}, or None for no limit"
            )
            raise SpecError(attribute.name, value, allowed)

    return check


def _cores(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401 - checked here
    if value is not None and (not is_number(value) or not _MIN_CPUS <= value <= _MAX_CPUS):
        raise SpecError(
            attribute.name, value, f"a number of cores, at least {_MIN_CPUS}, or None for no limit"
        )


def _seconds(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        check_seconds(attribute.name, value)


def as_gpus(value: str | Iterable[str] | None) -> str | tuple[str, ...] | None:
    """Return a validated GPU request: ``all``, ``auto:N`` or a tuple of names; a single name
    becomes a tuple.

    Raises:
        SpecError: the value is not a valid request.
    """
    if value is None or (isinstance(value, str) and _GPU_WORDS.fullmatch(value)):
        return "auto:1" if value == "auto" else value
    given: object = value
    names = (
        (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    )
    for name in names or (given,):
        if not isinstance(name, str) or not (
            _GPU_INDEX.fullmatch(name) or DEVICE_NAME.fullmatch(name)
        ):
            raise SpecError(
                "gpus",
                name,
                "'all', 'auto:N', an index such as '0', a UUID, or a CDI name: vendor/gpu=0",
            )
    return tuple(dict.fromkeys(names))


def _host_path(value: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """Return an absolute path, because engines run in another directory than the caller."""
    try:
        text = os.fsdecode(value)
    except TypeError:
        raise SpecError("Mount.source", value, "a path of the host") from None
    if not text or not is_text(text):
        raise SpecError("Mount.source", text, "a path of the host")
    return os.path.abspath(text)


@attrs.frozen(kw_only=True)
class Mount:
    """A path of the host that is mounted in the container.

    Attributes:
        source: path on the host, made absolute on construction; must exist when the container
            starts.
        target: absolute path in the container.
        read_only: whether the mount is read-only.

    Example:
        >>> mount = hr.Mount(source=".", target="/data")
        >>> mount.read_only, mount.source.startswith("/")
        (True, True)
    """

    source: str = attrs.field(converter=_host_path)
    target: str
    read_only: bool = True

    def __attrs_post_init__(self) -> None:
        """Check both paths."""
        check_inside_path("Mount.target", self.target)
        _check_utf8("Mount.source", self.source)
        _check_utf8("Mount.target", self.target)


@attrs.frozen(kw_only=True)
class Limits:
    """The resource limits of a container; None means no limit.

    Attributes:
        memory_bytes: memory and swap together.
        cpus: number of cores, may be a fraction; at least 0.01.
        pids: number of processes and threads; ``EngineInfo.limits`` says how this machine enforces
            it.
        tmpfs_bytes: size of a memory file system at ``/tmp``; None means no such file system.
        shm_bytes: size of the memory file system at ``/dev/shm``; None means the engine's own size,
            which is 64 MiB on Podman and Docker.
        wall_s: lifetime of the container in seconds; enforced by this library on every engine.
        disk_bytes: size of its writable mounts (with their earlier content), its changes to the
            image's files and its memory file systems; enforced by this library on every engine.

    Example:
        >>> limits = hr.Limits(memory_bytes=512 * 1024**2, cpus=1.5, wall_s=600)
        >>> hr.ContainerSpec(image="base", limits=limits).limits.cpus
        1.5
    """

    memory_bytes: int | None = attrs.field(
        default=None, validator=_whole(6 * 1024**2, _MAX_BYTES, " (6 MiB)")
    )
    cpus: float | None = attrs.field(default=None, validator=_cores)
    pids: int | None = attrs.field(
        default=DEFAULT_PIDS,
        validator=_whole(16, _MAX_PIDS, ", of which about 6 serve exec itself,"),
    )
    tmpfs_bytes: int | None = attrs.field(default=None, validator=_whole(1, _MAX_BYTES))
    shm_bytes: int | None = attrs.field(default=None, validator=_whole(1, _MAX_BYTES))
    wall_s: float | None = attrs.field(default=None, validator=_seconds)
    disk_bytes: int | None = attrs.field(
        default=None, validator=_whole(1024**2, _MAX_BYTES, " (1 MiB)")
    )


_SERVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_MOST_SERVICES = 200  # each has an address, from 127.0.0.2


def _arguments(value: Iterable[str] | None) -> tuple[str, ...] | None:
    return value if value is None else tuple([value] if isinstance(value, str) else value)


@attrs.frozen(kw_only=True)
class Ready:
    """When a service counts as ready. One of the first four is given.

    Attributes:
        tcp: a port that it listens on, at the service's own address or at all.
        http: a URL that answers with a status below 400.
        command: a command in the service's container that ends with exit code 0.
        completed: its program has ended with exit code 0, as one does that only prepares something.
        interval_s: most seconds between two looks; the first ones follow sooner.
        timeout_s: the deadline, from the start of its program; it grows with the load of the
            machine.

    Example:
        >>> hr.Ready(tcp=5432).timeout_s
        60.0
    """

    tcp: int | None = attrs.field(default=None, validator=_whole(1, 65535))
    http: str | None = None
    command: tuple[str, ...] | None = attrs.field(default=None, converter=_arguments)
    completed: bool = False
    interval_s: float = attrs.field(default=0.1, validator=_seconds)
    timeout_s: float = attrs.field(default=60.0, validator=_seconds)

    def __attrs_post_init__(self) -> None:
        """Check that one thing is asked for."""
        asked = (self.tcp, self.http, self.command, self.completed or None)
        if sum(one is not None for one in asked) != 1:
            raise SpecError("Ready", asked, "one of tcp, http, command and completed")
        if self.http is not None and not re.fullmatch(r"http://[!-~]+", self.http):
            raise SpecError("Ready.http", self.http, "a URL such as http://api:8000/health")
        _check_arguments("Ready.command", self.command)


@attrs.frozen(kw_only=True)
class Service:
    """A program in a container of its own that shares the network of another container.

    Attributes:
        name: the name by which all containers of the group reach it.
        image: its image.
        entrypoint: what comes before ``args``; None means the image's.
        args: the arguments of its program; None means the image's, if ``entrypoint`` is None too.
        env: variables, in addition to the image's.
        ready: when the next ones start, and the container is there; None: with its program.
        after: names of services that must be ready before it starts.
        aliases: more names of it.
        directories: what is made before its program starts, where it is missing.
        workdir: working directory; None means the image's.
        user: its user; None means the image's.
        limits: limits of its container.

    Example:
        >>> db = hr.Service(name="db", image="localhost/db:latest", ready=hr.Ready(tcp=5432))
        >>> hr.ContainerSpec(image="base", services=(db,)).services[0].name
        'db'
    """

    name: str
    image: str
    entrypoint: tuple[str, ...] | None = attrs.field(default=None, converter=_arguments)
    args: tuple[str, ...] | None = attrs.field(default=None, converter=_arguments)
    env: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping, repr=names_only)
    ready: Ready | None = None
    after: tuple[str, ...] = attrs.field(default=(), converter=tuple[str, ...])
    aliases: tuple[str, ...] = attrs.field(default=(), converter=tuple[str, ...])
    directories: tuple[str, ...] = attrs.field(default=(), converter=tuple[str, ...])
    workdir: str | None = None
    user: str | None = None
    limits: Limits = Limits()

    def __attrs_post_init__(self) -> None:
        """Check what its container does not check itself."""
        for name in (self.name, *self.aliases):
            check_host_name("Service.name", name)
        for path in self.directories:
            check_inside_path("Service.directories", path)
        _check_arguments("Service.entrypoint", self.entrypoint)
        _check_arguments("Service.args", self.args)
        ContainerSpec(
            image=self.image,
            env=self.env,
            workdir=self.workdir,
            user=self.user,
            limits=self.limits,
        )


def check_host_name(field: str, name: object) -> None:
    """Check that a value can be the name of a service, or of a container of its group.

    Raises:
        SpecError: it cannot.
    """
    if not isinstance(name, str) or not _SERVICE.fullmatch(name) or name == "localhost":
        allowed = "letters, digits and .-_ between them, at most 63, and not localhost"
        raise SpecError(field, name, allowed)


def _check_arguments(field: str, args: tuple[str, ...] | None) -> None:
    if args is not None and not all(map(is_text, args)):
        raise SpecError(field, args, "texts without NUL")


def _check_group(services: tuple[Service, ...], names: tuple[str, ...]) -> None:
    """Check that the services of a container have different names, and that some order of start
    exists.
    """
    taken: set[str] = set()
    for name in names:
        check_host_name("host_names", name)
    for name in (*names, *(name for one in services for name in {one.name, *one.aliases})):
        if name in taken:
            raise SpecError("services", name, "a different name for each service")
        taken.add(name)
    if len(services) > _MOST_SERVICES:
        raise SpecError("services", len(services), f"at most {_MOST_SERVICES} services")
    steps_of(services)


def steps_of(services: Sequence[Service]) -> list[list[Service]]:
    """Return the services that may start at once, step by step.

    Raises:
        SpecError: there is no such order.
    """
    steps: list[list[Service]] = []
    known: set[str] = set()
    left = list(services)
    while left:
        steps.append([one for one in left if known.issuperset(one.after)])
        if not steps[-1]:
            why = "the names of other services, without a circle"
            raise SpecError("Service.after", {one.name: one.after for one in left}, why)
        known |= {one.name for one in steps[-1]}
        left = [one for one in left if one.name not in known]
    return steps


@attrs.frozen(kw_only=True)
class ContainerSpec:
    """Everything that describes a container before it runs.

    Attributes:
        image: OCI reference of an image, on this machine, or see ``pull``; for Apptainer also the
            path of a SIF or of a directory.
        mounts: the only host paths visible in the container. Targets must be different, and must
            not be ``/``, ``/run`` or ``/dev``, or lie in ``/proc``, ``/sys`` or
            ``/run/hyperruntime``.
        env: environment of every exec.
        workdir: working directory of execs; None means the image's.
        user: user of execs, as ``name``, ``uid`` or ``uid:gid``; None means the image's.
        network: ``none``, ``host``, ``bridge``, or the servers that it may reach, an
            :class:`~hyperruntime.network.egress.Egress`.
        gpus: None; ``"all"``; ``"auto:N"``, the N least used GPUs that no other run of this user
            has (``"auto"`` is one); or indices (``"0"``), UUIDs and CDI device names
            (``"nvidia.com/gpu=0"``).
        limits: its resource limits.
        limits_mode: ``enforce`` refuses a limit that the engine cannot enforce here; with
            ``watchdog`` this library watches the memory if the engine cannot limit it, and ends the
            container when it exceeds the limit.
        read_only_rootfs: whether the image's files are read-only in the container.
        labels: additional labels of the container.
        pull: ``never`` uses only images on this machine; ``missing`` pulls the image if it is not
            there; ``always`` pulls it with every start, in case its tag has moved.
        services: programs in containers of their own that share its network, and end with it.
        host_names: names by which the services reach it.

    Example:
        >>> spec = hr.ContainerSpec(image="docker.io/library/debian:12", env={"WORD": "hello"})
        >>> spec.network
        'none'
    """

    image: str
    mounts: tuple[Mount, ...] = attrs.field(default=(), converter=tuple[Mount, ...])
    env: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping, repr=names_only)
    workdir: str | None = None
    user: str | None = None
    network: Network | Egress = "none"
    gpus: str | tuple[str, ...] | None = attrs.field(default=None, converter=as_gpus)
    limits: Limits = Limits()
    limits_mode: LimitsMode = "enforce"
    read_only_rootfs: bool = False
    labels: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping)
    pull: Pull = "never"
    services: tuple[Service, ...] = attrs.field(default=(), converter=tuple[Service, ...])
    host_names: tuple[str, ...] = attrs.field(default=(), converter=tuple[str, ...])

    def __attrs_post_init__(self) -> None:
        """Check every field."""
        check_image("image", self.image)
        if not isinstance(self.network, Egress) and self.network not in NETWORKS:
            allowed = f"one of {', '.join(NETWORKS)}, or an Egress with the servers it may reach"
            raise SpecError("network", self.network, allowed)
        if self.limits_mode not in LIMITS_MODES:
            raise SpecError("limits_mode", self.limits_mode, f"one of {', '.join(LIMITS_MODES)}")
        if self.pull not in PULLS:
            raise SpecError("pull", self.pull, f"one of {', '.join(PULLS)}")
        check_env("env", self.env)
        check_env("labels", self.labels)
        _check_utf8("labels", *self.labels, *self.labels.values())
        _check_utf8("env", *self.env, *self.env.values())
        if self.workdir is not None:
            check_inside_path("workdir", self.workdir)
            _check_utf8("workdir", self.workdir)
        if self.user is not None:
            check_user(self.user)
        self._check_targets()
        _check_group(self.services, self.host_names)

    @property
    def engine_network(self) -> Network:
        """The network that the engine gives: none where a list says what may be reached."""
        return "none" if isinstance(self.network, Egress) else self.network

    @property
    def network_word(self) -> str:
        """The network in one word, for people: ``list`` where a list says what may be reached."""
        return "list" if isinstance(self.network, Egress) else self.network

    def _check_targets(self) -> None:
        memory = {"/tmp": "tmpfs_bytes", "/dev/shm": "shm_bytes"}  # noqa: S108 - in the container
        taken = {
            path: field for path, field in memory.items() if getattr(self.limits, field) is not None
        }
        for mount in self.mounts:
            target = "/" + posixpath.normpath(mount.target).lstrip("/")
            top = next(
                (tree for tree in _RESERVED_TREES if f"{target}/".startswith(f"{tree}/")), None
            )
            if target in _RESERVED or top is not None:
                allowed = (
                    f"a path other than {', '.join(_RESERVED)}, and not in "
                    f"{', '.join(_RESERVED_TREES)}"
                )
                raise SpecError("Mount.target", mount.target, allowed)
            if target in taken:
                raise SpecError(
                    "Mount.target",
                    mount.target,
                    f"one mount per target, and {taken[target]} is there",
                )
            taken[target] = f"the mount of {mount.source!r}"


def check_user(user: Any) -> None:  # noqa: ANN401 - checked here
    """Check that a value names a user of a container.

    Raises:
        SpecError: it is not a name or uid with an optional ``:group`` (name or gid).
    """
    match = _USER.fullmatch(user) if isinstance(user, str) else None
    if match is None or any(
        part and part.isdigit() and not _is_id(part) for part in match.groupdict().values()
    ):
        raise SpecError("user", user, f"a name or uid (0 to {_MAX_ID}), with an optional :group")


def _is_id(digits: str) -> bool:
    return len(digits) <= len(str(_MAX_ID)) and int(digits) <= _MAX_ID


@attrs.frozen(kw_only=True)
class ExecResult:
    """How a command ended.

    Attributes:
        args: argv of the command.
        exit_code: 0-255; 128+n if killed by signal n; 124 if it timed out.
        stdout: its standard output; past the output limit the head, one line with the number of
            dropped bytes, and the tail.
        stderr: its standard error, likewise.
        timed_out: whether its deadline passed and all its processes were killed.
        truncated: whether output was dropped.
        not_executed: whether no program ran, so that the exit code is not its own: 127 if it was
            not found, 126 if it is a directory or not executable, one of both if its interpreter is
            missing. False for a program that itself ends with 126 or 127, such as ``sh`` with an
            unknown command.
        duration_s: seconds from the call to the end.

    Example:
        >>> with runtime.container(spec) as container:
        ...     result = container.exec(["sh", "-c", "printf no >&2; exit 3"])
        >>> result.exit_code, result.stderr
        (3, b'no')
    """

    args: tuple[str, ...]
    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    truncated: bool = False
    not_executed: bool = False
    duration_s: float = 0.0

    def check(self) -> ExecResult:
        """Return this result if the command succeeded.

        Raises:
            CommandFailedError: the command failed; the message contains the tails of both streams.
        """
        if self.exit_code == 0:
            return self
        how = "timed out" if self.timed_out else f"ended with exit code {self.exit_code}"
        how = f"could not be executed (exit code {self.exit_code})" if self.not_executed else how
        parts = [f"command {self.args!r} {how} after {self.duration_s:.2f} s"]
        for name, data in (("stderr", self.stderr), ("stdout", self.stdout)):
            if tail := data[-_TAIL_BYTES:].decode(errors="replace").strip():
                parts.append(f"{name}: {tail}")
        raise CommandFailedError("\n".join(parts))
