"""The values a user hands in and gets back, validated once on construction."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs

from hyperruntime.errors import CommandFailedError, SpecError

Network = Literal["none", "host", "bridge"]
LimitsMode = Literal["enforce", "watchdog"]
LIMITS_MODES: tuple[str, ...] = ("enforce", "watchdog")
NETWORKS: tuple[str, ...] = ("none", "host", "bridge")
DEFAULT_PIDS = 512
DEFAULT_OUTPUT_LIMIT_BYTES = 10 * 1024**2
_REFERENCE = re.compile(r"[A-Za-z0-9./_][A-Za-z0-9._:/@+-]*")
_USER = re.compile(r"(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]*\$?)(:(?P<group>[A-Za-z0-9_][A-Za-z0-9_.-]*\$?))?")
_LETTERS = r"[A-Za-z](?:[A-Za-z0-9_{}-]*[A-Za-z0-9])?"
# Source: SPEC.md of the Container Device Interface, "kind" and "devices.name".
DEVICE_KIND = re.compile(f"{_LETTERS.format('.')}/{_LETTERS.format('')}")
DEVICE_NAME = re.compile(f"{DEVICE_KIND.pattern}=[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_GPU_INDEX = re.compile(r"[0-9]{1,4}(:[0-9]{1,4})?|(GPU|MIG)-[A-Za-z0-9/-]{8,80}")
_GPU_WORDS = re.compile(r"all|auto(:[1-9][0-9]{0,3})?")
_MAX_ID = 2**31 - 1  # what engines take
_MIN_CPUS = 0.01  # 1 ms in each 100 ms, the least that the kernel enforces; source: sched-bwc.rst
_MAX_CPUS = 1_000_000  # far from what overflows the kernel's quota
_MAX_PIDS = 2**22  # source: proc(5), pid_max
_MAX_BYTES = 2**63 - 1
# What exec, the engine and the kernel put there themselves. Below the second ones nothing can be put either.
_RESERVED = ("/", "/run", "/dev")
_RESERVED_TREES = ("/run/hyperruntime", "/proc", "/sys")
_TAIL_BYTES = 2000


def frozen_mapping(value: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return an unchangeable copy of a mapping."""
    return MappingProxyType(dict(value or {}))


def check_env(field: str, env: Mapping[Any, Any]) -> None:
    """Refuse names and values that no process can have.

    Raises:
        SpecError: a name is empty or holds ``=`` or NUL, a value holds NUL, or one of them is no text that bytes can
            be made of.
    """
    for name, value in env.items():
        if not is_text(name) or not name or "=" in name:
            raise SpecError(field, name, "a name without '=' and NUL, not empty")
        if not is_text(value):
            raise SpecError(f"{field}[{name}]", value, "text without NUL and lone surrogates")


def check_inside_path(field: str, path: Any) -> None:  # noqa: ANN401 - checked here
    """Refuse what is no absolute path inside a container.

    Raises:
        SpecError: the path is relative, or holds NUL or what no bytes can be made of.
    """
    if not is_text(path) or not path.startswith("/"):
        raise SpecError(field, path, "an absolute path inside the container")


def check_seconds(field: str, value: Any) -> None:  # noqa: ANN401 - checked here
    """Refuse what is no time limit.

    Raises:
        SpecError: it is no number, not finite, or not above zero.
    """
    if not _is_number(value) or value <= 0:
        raise SpecError(field, value, "a positive number of seconds")


def is_text(value: object) -> bool:
    """Tell whether bytes can be made of a text, as of a file name; no process can have NUL in a string."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _check_utf8(field: str, *texts: str) -> None:
    """Refuse what an engine, which keeps it as JSON, would change."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SpecError(field, text, "text that is UTF-8, because engines keep it as JSON") from None


def _whole(least: int, most: int, why: str = "") -> Any:  # noqa: ANN401 - an attrs validator
    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is None:
            return
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            allowed = f"a whole number, at least {least}{why} and at most {most}, or None for no limit"
            raise SpecError(attribute.name, value, allowed)

    return check


def _cores(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401 - checked here
    if value is not None and (not _is_number(value) or not _MIN_CPUS <= value <= _MAX_CPUS):
        raise SpecError(attribute.name, value, f"a number of cores, at least {_MIN_CPUS}, or None for no limit")


def _seconds(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        check_seconds(attribute.name, value)


def as_gpus(value: Any) -> str | tuple[str, ...] | None:  # noqa: ANN401 - checked here
    """Return ``all``, ``auto:N`` or the names of GPUs; one name alone is a tuple of it.

    Raises:
        SpecError: it is none of these.
    """
    if value is None or (isinstance(value, str) and _GPU_WORDS.fullmatch(value)):
        return "auto:1" if value == "auto" else value
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else ()
    for name in names or (value,):
        if not isinstance(name, str) or not (_GPU_INDEX.fullmatch(name) or DEVICE_NAME.fullmatch(name)):
            raise SpecError("gpus", name, "'all', 'auto:N', an index such as '0', a UUID, or a CDI name: vendor/gpu=0")
    return tuple(dict.fromkeys(names))


def _host_path(value: Any) -> str:  # noqa: ANN401 - checked here
    """Return the absolute form of a path: engines run elsewhere than the caller."""
    try:
        text = os.fsdecode(value)
    except TypeError:
        raise SpecError("Mount.source", value, "a path of the host") from None
    if not text or not is_text(text):
        raise SpecError("Mount.source", text, "a path of the host")
    return os.path.abspath(text)


@attrs.frozen(kw_only=True)
class Mount:
    """A path of the host made visible in the container.

    Attributes:
        source: path on the host, made absolute at once; must exist when the container starts.
        target: absolute path inside.
        read_only: whether the container may only read it.
    """

    source: str = attrs.field(converter=_host_path)
    target: str
    read_only: bool = True

    def __attrs_post_init__(self) -> None:
        """Check both paths."""
        check_inside_path("Mount.target", self.target)
        _check_utf8("Mount.source", self.source)
        _check_utf8("Mount.target", self.target)


def _mounts(value: Iterable[Mount]) -> tuple[Mount, ...]:
    return tuple(value)


@attrs.frozen(kw_only=True)
class Limits:
    """What a container may use; None is no limit.

    Attributes:
        memory_bytes: memory and swap together.
        cpus: cores, may be a fraction; at least 0.01.
        pids: processes and threads. See ``EngineInfo.limits`` for how this machine enforces it.
        tmpfs_bytes: makes ``/tmp`` a memory file system of this size.
        wall_s: seconds the container may live, counted by this library on every engine.
        disk_bytes: all that its writable mounts hold, what was there before included, what it writes to its image's
            files, and its memory file systems; watched by this library on every engine.
    """

    memory_bytes: int | None = attrs.field(default=None, validator=_whole(6 * 1024**2, _MAX_BYTES, " (6 MiB)"))
    cpus: float | None = attrs.field(default=None, validator=_cores)
    pids: int | None = attrs.field(
        default=DEFAULT_PIDS, validator=_whole(16, _MAX_PIDS, ", of which about 6 serve exec itself,")
    )
    tmpfs_bytes: int | None = attrs.field(default=None, validator=_whole(1, _MAX_BYTES))
    wall_s: float | None = attrs.field(default=None, validator=_seconds)
    disk_bytes: int | None = attrs.field(default=None, validator=_whole(1024**2, _MAX_BYTES, " (1 MiB)"))


@attrs.frozen(kw_only=True)
class ContainerSpec:
    """Everything that describes a container before it runs.

    Attributes:
        image: OCI reference of an image that is on this machine.
        mounts: the only host paths visible inside; not at ``/``, ``/run``, ``/dev`` or in ``/proc``, ``/sys`` and
            ``/run/hyperruntime``, and each target once.
        env: environment of every exec.
        workdir: where execs start; None is the image's own.
        user: ``name``, ``uid`` or ``uid:gid`` as execs run; None is the image's own.
        network: ``none``, ``host`` or ``bridge``.
        gpus: None; ``"all"``; ``"auto:N"``, the N GPUs that are used least and that no other run of this user has
            (``"auto"`` is one); or indices (``"0"``), UUIDs and CDI device names (``"nvidia.com/gpu=0"``).
        limits: what it may use.
        limits_mode: ``enforce``: a limit that the engine cannot enforce here is refused; ``watchdog``: this library
            watches the memory from outside where the engine cannot, and ends the container past the limit.
        read_only_rootfs: whether the image's own files are read-only inside.
        labels: added to the container's labels.
    """

    image: str
    mounts: tuple[Mount, ...] = attrs.field(default=(), converter=_mounts)
    env: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping)
    workdir: str | None = None
    user: str | None = None
    network: Network = "none"
    gpus: str | tuple[str, ...] | None = attrs.field(default=None, converter=as_gpus)
    limits: Limits = Limits()
    limits_mode: LimitsMode = "enforce"
    read_only_rootfs: bool = False
    labels: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping)

    def __attrs_post_init__(self) -> None:
        """Check every field."""
        if not _REFERENCE.fullmatch(str(self.image)):
            raise SpecError("image", self.image, "an image reference such as localhost/name:tag")
        if self.network not in NETWORKS:
            raise SpecError("network", self.network, f"one of {', '.join(NETWORKS)}")
        if self.limits_mode not in LIMITS_MODES:
            raise SpecError("limits_mode", self.limits_mode, f"one of {', '.join(LIMITS_MODES)}")
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

    def _check_targets(self) -> None:
        taken = {"/tmp": "tmpfs_bytes"} if self.limits.tmpfs_bytes is not None else {}  # noqa: S108 - inside
        for mount in self.mounts:
            target = "/" + posixpath.normpath(mount.target).lstrip("/")
            top = next((tree for tree in _RESERVED_TREES if f"{target}/".startswith(f"{tree}/")), None)
            if target in _RESERVED or top is not None:
                allowed = f"a path that is not {', '.join(_RESERVED)} or in {', '.join(_RESERVED_TREES)}"
                raise SpecError("Mount.target", mount.target, allowed)
            if target in taken:
                raise SpecError("Mount.target", mount.target, f"one thing at a place, and {taken[target]} is there")
            taken[target] = f"the mount of {mount.source!r}"


def check_user(user: Any) -> None:  # noqa: ANN401 - checked here
    """Refuse what is no user.

    Raises:
        SpecError: not ``name``, ``uid``, ``name:group`` or ``uid:gid``.
    """
    match = _USER.fullmatch(user) if isinstance(user, str) else None
    if match is None or any(part and part.isdigit() and not _is_id(part) for part in match.groupdict().values()):
        raise SpecError("user", user, f"a name or uid (0 to {_MAX_ID}), with an optional :group")


def _is_id(digits: str) -> bool:
    return len(digits) <= len(str(_MAX_ID)) and int(digits) <= _MAX_ID


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
