"""The values a user hands in and gets back, validated once on construction. Imports errors only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs

from hyperruntime.errors import CommandFailedError, SpecError

Network = Literal["none", "host", "bridge"]
NETWORKS: tuple[str, ...] = ("none", "host", "bridge")
DEFAULT_PIDS = 512
DEFAULT_OUTPUT_LIMIT_BYTES = 10 * 1024**2
_REFERENCE = re.compile(r"[A-Za-z0-9./_][A-Za-z0-9._:/@+-]*")
_TAIL_BYTES = 2000


def frozen_mapping(value: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return an unchangeable copy of a mapping."""
    return MappingProxyType(dict(value or {}))


def check_env(field: str, env: Mapping[Any, Any]) -> None:
    """Refuse names and values that no process can have.

    Raises:
        SpecError: a name is empty or holds ``=`` or NUL, or a value holds NUL or is no text.
    """
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise SpecError(field, name, "a name without '=' and NUL, not empty")
        if not isinstance(value, str) or "\0" in value:
            raise SpecError(f"{field}[{name}]", value, "text without NUL")


def check_inside_path(field: str, path: Any) -> None:  # noqa: ANN401 - checked here
    """Refuse what is no absolute path inside a container.

    Raises:
        SpecError: the path is relative or holds NUL.
    """
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise SpecError(field, path, "an absolute path inside the container")


def _positive(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401 - checked here
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0):
        raise SpecError(attribute.name, value, "a positive number, or None for no limit")


@attrs.frozen(kw_only=True)
class Mount:
    """A path of the host made visible in the container.

    Attributes:
        source: absolute or relative path on the host; must exist when the container starts.
        target: absolute path inside.
        read_only: whether the container may only read it.
    """

    source: str = attrs.field(converter=str)
    target: str
    read_only: bool = True

    def __attrs_post_init__(self) -> None:
        """Check both paths."""
        check_inside_path("Mount.target", self.target)
        if not self.source or "\0" in self.source:
            raise SpecError("Mount.source", self.source, "a path of the host")


def _mounts(value: Iterable[Mount]) -> tuple[Mount, ...]:
    return tuple(value)


@attrs.frozen(kw_only=True)
class Limits:
    """What a container may use; None is no limit.

    Attributes:
        memory_bytes: memory and swap together.
        cpus: cores, may be a fraction.
        pids: processes and threads. See ``EngineInfo.limits`` for how this machine enforces it.
        tmpfs_bytes: makes ``/tmp`` a memory file system of this size.
    """

    memory_bytes: int | None = attrs.field(default=None, validator=_positive)
    cpus: float | None = attrs.field(default=None, validator=_positive)
    pids: int | None = attrs.field(default=DEFAULT_PIDS, validator=_positive)
    tmpfs_bytes: int | None = attrs.field(default=None, validator=_positive)

    def __attrs_post_init__(self) -> None:
        """Refuse limits that no engine accepts or that leave no room to run anything."""
        if self.memory_bytes is not None and self.memory_bytes < 6 * 1024**2:
            raise SpecError("memory_bytes", self.memory_bytes, "at least 6291456 (6 MiB)")
        if self.pids is not None and self.pids < 16:
            raise SpecError("pids", self.pids, "at least 16, of which about 6 serve exec itself")


@attrs.frozen(kw_only=True)
class ContainerSpec:
    """Everything that describes a container before it runs.

    Attributes:
        image: OCI reference of an image that is on this machine.
        mounts: the only host paths visible inside.
        env: environment of every exec.
        workdir: where execs start; None is the image's own.
        user: ``name``, ``uid`` or ``uid:gid`` as execs run; None is the image's own.
        network: ``none``, ``host`` or ``bridge``.
        gpus: None, ``"all"``, indices or CDI device names.
        limits: what it may use.
        read_only_rootfs: whether the image's own files are read-only inside.
        labels: added to the container's labels.
    """

    image: str
    mounts: tuple[Mount, ...] = attrs.field(default=(), converter=_mounts)
    env: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping)
    workdir: str | None = None
    user: str | None = None
    network: Network = "none"
    gpus: str | tuple[str, ...] | None = None
    limits: Limits = Limits()
    read_only_rootfs: bool = False
    labels: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping)

    def __attrs_post_init__(self) -> None:
        """Check every field."""
        if not _REFERENCE.fullmatch(str(self.image)):
            raise SpecError("image", self.image, "an image reference such as localhost/name:tag")
        if self.network not in NETWORKS:
            raise SpecError("network", self.network, f"one of {', '.join(NETWORKS)}")
        check_env("env", self.env)
        check_env("labels", self.labels)
        if self.workdir is not None:
            check_inside_path("workdir", self.workdir)
        if self.user is not None:
            check_user(self.user)


def check_user(user: Any) -> None:  # noqa: ANN401 - checked here
    """Refuse what is no user.

    Raises:
        SpecError: not ``name``, ``uid``, ``name:group`` or ``uid:gid``.
    """
    if not isinstance(user, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_.-]+)?", user):
        raise SpecError("user", user, "a name or uid, with an optional :group")


@attrs.frozen(kw_only=True)
class ExecResult:
    """How a command ended.

    Attributes:
        args: its argv.
        exit_code: 0-255; 128+n for a death by signal n; 124 when it timed out.
        stdout: what it wrote there; past the output limit its head, one line saying how much is missing, its tail.
        stderr: the same for the other stream.
        timed_out: whether its deadline passed and everything it had started was ended.
        truncated: whether output was dropped.
        duration_s: seconds from the call to its end.
    """

    args: tuple[str, ...]
    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    truncated: bool = False
    duration_s: float = 0.0

    def check(self) -> ExecResult:
        """Return this result if the command succeeded.

        Raises:
            CommandFailedError: it did not; the message holds both streams' tails.
        """
        if self.exit_code == 0:
            return self
        how = "timed out" if self.timed_out else f"ended with exit code {self.exit_code}"
        parts = [f"command {self.args!r} {how} after {self.duration_s:.2f} s"]
        for name, data in (("stderr", self.stderr), ("stdout", self.stdout)):
            if tail := data[-_TAIL_BYTES:].decode(errors="replace").strip():
                parts.append(f"{name}: {tail}")
        raise CommandFailedError("\n".join(parts))
