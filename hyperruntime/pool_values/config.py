"""The configuration of a pool and the tool policy of its slots, validated on construction."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

import attrs
from attrs.validators import optional

from hyperruntime.errors import SpecError, unknown_name
from hyperruntime.option_fields import AtLeast, OneOf
from hyperruntime.spec import ContainerSpec, check_inside_path, check_seconds

_Names = list[str] | set[str] | frozenset[str] | tuple[str, ...]
Isolation = Literal["uid", "container", "directory"]
ResetMode = Literal["clean", "rollback", "replace"]
DEFAULT_SLOTS = 10
_PROFILE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?")
_EXTRA_PIDS = 64  # for the supervisor, its lanes and the pool's own commands
_MIB = 1024**2

POLICY_KEYS = frozenset(
    "allow_network network require_sandbox require_stateful_sandbox sandbox sandboxed "
    "isolation privileged user image gpus policy file_roots read_roots".split()
)
"""Names that a model may not set: they are removed from its arguments and noted in the result."""

TOOL_NAMES = (
    *("bash", "bash_stateful", "terminal", "terminal_stateful"),
    *("read_file", "write_file", "edit_file", "patch", "list_files", "search"),
    *("read_artifact", "list_artifacts", "archive_artifacts"),
)
"""All tools of a slot."""


def seconds(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Validate an attrs field that is a time limit in seconds.

    Raises:
        SpecError: the value is not a positive, finite number.
    """
    check_seconds(attribute.name, value)


_seconds_or_never: Any = optional(seconds)


def _names(value: _Names) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, (list, set, frozenset)) else value


def _names_or_all(value: _Names | None) -> tuple[str, ...] | None:
    return None if value is None else _names(value)


def _check_network(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse a value that is not a bool: Python treats the text ``false`` as true."""
    if value is not None and not isinstance(value, bool):
        raise SpecError(attribute.name, value, "true or false")


@attrs.frozen(kw_only=True)
class ToolPolicy:
    """Limits and rights of tool calls; they come only from configuration, never from a model's
    arguments.

    Attributes:
        tools: names of the tools that may be called; None allows all tools of a slot.
        default_timeout_s: timeout of a call that sets none.
        min_timeout_s: a model's shorter timeout is raised to this.
        max_timeout_s: a model's longer timeout is lowered to this.
        output_chars: characters of each stream shown to the model; of a longer stream, head and
            tail are kept.
        file_bytes: largest file that is written, edited or read whole.
        artifact_bytes: largest artifact or archive that is returned.
        max_entries: most entries of one listing or archive, and most matches of one search.
        file_roots: directories outside the workspace in which file tools may read and write.
        read_roots: directories in which file tools may only read.
        allow_network: False refuses calls in containers that have a network, True in containers
            without one; None allows both.

    Example:
        >>> policy = hr.ToolPolicy(tools=("bash", "read_file"), output_chars=8000)
        >>> hr.PoolConfig(spec=spec, tools=policy).tools.tools
        ('bash', 'read_file')
    """

    tools: tuple[str, ...] | None = attrs.field(default=None, converter=_names_or_all)
    default_timeout_s: float = attrs.field(default=300.0, validator=seconds)
    min_timeout_s: float = attrs.field(default=1.0, validator=seconds)
    max_timeout_s: float = attrs.field(default=600.0, validator=seconds)
    output_chars: int = attrs.field(default=50_000, validator=AtLeast(1))
    file_bytes: int = attrs.field(default=100 * _MIB, validator=AtLeast(1))
    artifact_bytes: int = attrs.field(default=5 * _MIB, validator=AtLeast(1))
    max_entries: int = attrs.field(default=5000, validator=AtLeast(1))
    file_roots: tuple[str, ...] = attrs.field(default=(), converter=_names)
    read_roots: tuple[str, ...] = attrs.field(default=(), converter=_names)
    allow_network: bool | None = attrs.field(default=None, validator=_check_network)

    def __attrs_post_init__(self) -> None:
        """Check the fields together, and the lists."""
        if not self.min_timeout_s <= self.default_timeout_s <= self.max_timeout_s:
            raise SpecError(
                "default_timeout_s",
                self.default_timeout_s,
                "between min_timeout_s and max_timeout_s",
            )
        for name in ("tools", "file_roots", "read_roots"):
            value = getattr(self, name)
            if not isinstance(value, tuple) and not (value is None and name == "tools"):
                raise SpecError(name, value, "a list of texts")
        for root in (*self.file_roots, *self.read_roots):
            check_inside_path("file_roots, read_roots", root)
        for tool in self.tools or ():
            if tool not in TOOL_NAMES:
                raise SpecError("tools", tool, unknown_name("tool", str(tool), TOOL_NAMES))


@attrs.frozen(kw_only=True)
class PoolConfig:
    """The configuration of a pool of containers and their slots; None disables a time limit.

    Attributes:
        spec: the spec of each container.
        name: the profile's name, shown in slots and log events.
        slots_per_container: None means 10 where slots share a container, else 1.
        min_containers: how many containers stay even when idle; may be 0.
        max_containers: how many containers may hold leases at the same time.
        spare_containers: unused containers kept ready while at least one container is in use. They
            may exceed max_containers, so that a replacement is ready before the old container has
            ended. None means 1 if a reset replaces the container and the spec has no GPUs, else 0.
        max_starting: upper bound on containers that start at the same time. The pool begins with
            one; more may start while starts stay quick, fewer when they take twice as long as a
            start alone, or fail.
        idle_timeout_s: an unused container above the minimum ends after this time.
        health_interval_s: time between two health checks of an unused container. A container that
            does not answer within this time, at most 10 s, is replaced. A container in use is not
            checked.
        max_lifetime_s: a container of this age gets no more leases and is replaced after its last
            release.
        acquire_timeout_s: how long an acquire waits.
        lease_timeout_s: a lease held longer expires: the pool ends its processes and refuses its
            holder.
        isolation: ``uid``: each slot has its own user; ``container``: its own container;
            ``directory``: only its own directory, so that slots of one container can read and
            disturb each other; ``auto``: ``uid`` with several slots per container, or with
            ``slots_per_container=1`` and ``reset="clean"``, else ``container``.
        reset: ``clean``: remove everything that a slot left, then check; ``replace``: replace its
            container; ``auto``: ``clean`` if slots share a container; else roll the container back
            (``rollback``) if the engine does that quickly (bubblewrap), and ``replace`` if not.
        pids_per_slot: limit of processes and threads of a slot that has its own user; the
            container's limit is raised to hold all slots.
        workspace_base: the directory for the slots of a shared container.
        image_workdir: where a slot with its own container works if the spec has no ``workdir``:
            True means the working directory of the image, False means ``/workspace``.
        tools: the policy for tools.

    Example:
        >>> config = hr.PoolConfig(spec=spec, max_containers=2, slots_per_container=1)
        >>> config.min_containers, config.reset
        (1, 'auto')
    """

    spec: ContainerSpec
    name: str = "default"
    slots_per_container: int | None = attrs.field(default=None, validator=AtLeast(1))
    min_containers: int = attrs.field(default=1, validator=AtLeast(0))
    max_containers: int = attrs.field(default=5, validator=AtLeast(1))
    spare_containers: int | None = attrs.field(default=None, validator=AtLeast(0))
    max_starting: int = attrs.field(default=16, validator=AtLeast(1))
    idle_timeout_s: float | None = attrs.field(default=120.0, validator=_seconds_or_never)
    health_interval_s: float | None = attrs.field(default=30.0, validator=_seconds_or_never)
    max_lifetime_s: float | None = attrs.field(default=3600.0, validator=_seconds_or_never)
    acquire_timeout_s: float = attrs.field(default=60.0, validator=seconds)
    lease_timeout_s: float | None = attrs.field(default=None, validator=_seconds_or_never)
    isolation: Literal["auto"] | Isolation = attrs.field(
        default="auto", validator=OneOf(("auto", *get_args(Isolation)))
    )
    reset: Literal["auto", "clean", "replace"] = attrs.field(
        default="auto", validator=OneOf(("auto", "clean", "replace"))
    )
    pids_per_slot: int = attrs.field(default=128, validator=AtLeast(8))
    workspace_base: str = "/slots"
    image_workdir: bool = False
    tools: ToolPolicy = attrs.field(factory=ToolPolicy)

    def __attrs_post_init__(self) -> None:
        """Check the parts, the name, the base directory and combinations of fields."""
        for part, kind in (("spec", ContainerSpec), ("tools", ToolPolicy)):
            if not isinstance(getattr(self, part), kind):
                raise SpecError(part, getattr(self, part), f"a {kind.__name__}")
        name: Any = self.name
        if not isinstance(name, str) or not _PROFILE.fullmatch(name):
            allowed = (
                "1 to 64 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
            )
            raise SpecError("name", self.name, allowed)
        if self.min_containers > self.max_containers:
            raise SpecError(
                "min_containers",
                self.min_containers,
                f"at most max_containers ({self.max_containers})",
            )
        check_inside_path("workspace_base", self.workspace_base)
        several = self.slots_per_container is not None and self.slots_per_container > 1
        if several and self.isolation == "container":
            raise SpecError(
                "slots_per_container", self.slots_per_container, "1 with isolation='container'"
            )
        if several and self.reset == "replace":
            raise SpecError("reset", self.reset, "'clean' or 'auto' where slots share a container")
        if self.isolation == "container" and self.reset == "clean":
            allowed = (
                "'replace' or 'auto' with isolation='container' (the slot may be root), or "
                "isolation='uid'"
            )
            raise SpecError("reset", self.reset, allowed)
        shares = self.isolation in ("uid", "directory") or self.reset == "clean"
        if self.spec.services and (several or shares):
            names = tuple(one.name for one in self.spec.services)
            allowed = "slots with their own container, with which a reset replaces the services"
            raise SpecError("services", names, allowed)


@attrs.frozen(kw_only=True)
class PoolLayout:
    """A pool configuration with its defaults resolved for one engine.

    Attributes:
        spec: the spec that containers start with.
        slots: number of slots in each container.
        isolation: how slots are isolated from each other.
        reset: how a released slot is made clean.
        spares: unused containers kept ready while at least one is in use.
    """

    spec: ContainerSpec
    slots: int
    isolation: Isolation
    reset: ResetMode
    spares: int


def make_layout(
    config: PoolConfig, *, users: bool, driver: str, snapshots: bool = False
) -> PoolLayout:
    """Resolve a pool configuration for one engine.

    Args:
        config: the configuration.
        users: whether the engine can run commands as several users.
        driver: the engine's name, for the error message.
        snapshots: whether the engine has snapshots.

    Raises:
        SpecError: this engine cannot isolate the slots.
    """
    isolation = _isolation(config, users)
    slots = config.slots_per_container
    if isolation == "uid" and not users:
        several = slots is not None and slots > 1
        field, value = (
            ("slots_per_container", slots) if several else ("isolation", config.isolation)
        )
        allowed = (
            f"each slot needs its own container on {driver}, which has no users to isolate slots"
        )
        raise SpecError(field, value, f"{allowed} (or accept isolation='directory')")
    slots = slots or (DEFAULT_SLOTS if isolation != "container" else 1)
    reset: ResetMode = "clean"
    if config.reset == "replace" or isolation == "container":
        can_roll_back = snapshots and not config.spec.services
        reset = "rollback" if can_roll_back and config.reset == "auto" else "replace"
    spares = config.spare_containers
    if spares is None:
        spares = 1 if reset == "replace" and config.spec.gpus is None else 0
    spec = _with_users(config, slots) if isolation == "uid" else config.spec
    return PoolLayout(
        spec=spec,
        slots=slots if reset == "clean" else 1,
        isolation=isolation,
        reset=reset,
        spares=spares,
    )


def _isolation(config: PoolConfig, users: bool) -> Isolation:
    match config:
        case PoolConfig(isolation="uid" | "container" | "directory" as named):
            return named
        case PoolConfig(slots_per_container=1, reset=reset):
            return "uid" if reset == "clean" else "container"
        case PoolConfig(reset="replace") | PoolConfig(spec=ContainerSpec(services=(_, *_))):
            return "container"
        case PoolConfig(slots_per_container=None):
            return "uid" if users else "container"
    return "uid"


def _with_users(config: PoolConfig, slots: int) -> ContainerSpec:
    """Return the spec with root as main user and a process limit that holds all slots."""
    spec = config.spec
    pids = config.spec.limits.pids
    needed = slots * config.pids_per_slot + _EXTRA_PIDS
    limits = spec.limits if pids is None else attrs.evolve(spec.limits, pids=max(pids, needed))
    return attrs.evolve(spec, user="0:0", limits=limits)
