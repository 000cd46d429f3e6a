"""The configuration of a cluster: a table of a TOML file, which may name a function that returns a
Parsl config.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs

from hyperruntime import registry
from hyperruntime.errors import ClusterConfigError, DriverNotFoundError, SpecError, unknown_name
from hyperruntime.option_fields import ABOVE_ZERO, NOT_NEGATIVE, AtLeast
from hyperruntime.settings.files import read_table
from hyperruntime.settings.reader import read

# variables that the script of a node's job sets
JOB_BEGAN = "HYPERRUNTIME_JOB_BEGAN"  # when the job began, in seconds since 1970
_BY_HAND = "command"
PROVIDERS = ("slurm", "pbs", "lsf", "gridengine", "htcondor", "ray", "local", _BY_HAND)
_TABLE = "cluster"
_WALLTIME = re.compile(r"(\d+-)?\d{1,3}:\d{2}(:\d{2})?")


def _walltime(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not _WALLTIME.fullmatch(value):
        raise SpecError(attribute.name, value, "a time such as '01:30:00' or '2-00:00:00'")


def _provider(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in PROVIDERS and value not in (known := registry.plugins(registry.LAUNCHERS)):
        names = (*PROVIDERS, *known)
        raise SpecError(attribute.name, value, unknown_name(attribute.name, str(value), names))


def _lines(name: str) -> tuple[str, ...]:
    """Return a field that is a list of texts."""

    def convert(value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(line, str) for line in value):
            raise SpecError(name, value, 'a list of texts, such as ["module load apptainer"]')
        return tuple(value)

    field: tuple[str, ...] = attrs.field(default=(), converter=convert)
    return field


@attrs.frozen(kw_only=True)
class ClusterConfig:
    """Which nodes to ask for, and how.

    Attributes:
        provider: the batch system; ``local``: processes of this machine in place of nodes;
            ``command``: somebody runs a command on each node; or a launcher of another package.
        partition: the partition or queue; "" means the default one.
        account: the account or project to charge; "" means the default one.
        walltime: the longest time of a node's job, as ``HH:MM:SS`` or ``D-HH:MM:SS``.
        min_nodes: nodes that are kept without work.
        max_nodes: nodes that may run at once.
        cores_per_node: cores to ask for; None means the batch system's default.
        memory_gb_per_node: memory to ask for, in GiB; None means the batch system's default.
        gpus_per_node: GPUs to ask for.
        options: lines for the head of the job script, such as ``#SBATCH --constraint=fast``.
        setup: shell lines that run on a node before the node server, such as
            ``module load apptainer``.
        python: path of a Python on the nodes that has this library; "" means that of this process,
            at the same path.
        withhold: variables of the head's environment that no job gets, besides the usual ones with
            API keys.
        scratch: path of a local directory of each node, with variables if needed, which is its
            ``HYPERRUNTIME_SCRATCH``; "" leaves the choice to the node.
        images: recipe names or references that each node must have before it gets work.
        runtime: the engine on the nodes; ``auto`` means the first that works there.
        address: of the head, as nodes reach it; "" means that of the interface with the default
            route.
        port: of the head; 0 means any free one.
        idle_s: seconds without work after which a node above ``min_nodes`` is given back.
        heartbeat_s: seconds between two heartbeats of a node.
        patience_s: seconds that a node may be away before it is lost.
        drain_s: seconds before the end of ``walltime`` at which a node takes no new work.
        parsl: ``module:name`` of a function without arguments that returns a provider of Parsl, or
            a ``parsl.config.Config`` with one, used in place of ``provider`` and what is asked for
            above; "" for none.

    Example:
        >>> config = hr.ClusterConfig(provider="slurm", partition="cpu", walltime="1-00:00:00")
        >>> config.walltime_s
        86400.0
    """

    provider: str = attrs.field(default="local", validator=_provider)
    partition: str = ""
    account: str = ""
    walltime: str = attrs.field(default="01:00:00", validator=_walltime)
    min_nodes: int = attrs.field(default=0, validator=AtLeast(0))
    max_nodes: int = attrs.field(default=1, validator=AtLeast(1))
    cores_per_node: int | None = attrs.field(default=None, validator=AtLeast(1))
    memory_gb_per_node: int | None = attrs.field(default=None, validator=AtLeast(1))
    gpus_per_node: int = attrs.field(default=0, validator=AtLeast(0))
    options: tuple[str, ...] = _lines("options")
    setup: tuple[str, ...] = _lines("setup")
    python: str = ""
    withhold: tuple[str, ...] = _lines("withhold")
    scratch: str = ""
    images: tuple[str, ...] = _lines("images")
    runtime: str = "auto"
    address: str = ""
    port: int = attrs.field(default=0, validator=AtLeast(0))
    idle_s: float = attrs.field(default=120.0, validator=NOT_NEGATIVE)
    heartbeat_s: float = attrs.field(default=5.0, validator=ABOVE_ZERO)
    patience_s: float = attrs.field(default=30.0, validator=ABOVE_ZERO)
    drain_s: float = attrs.field(default=300.0, validator=NOT_NEGATIVE)
    parsl: str = ""

    def __attrs_post_init__(self) -> None:
        """Check the fields together."""
        if self.min_nodes > self.max_nodes:
            raise SpecError(
                "min_nodes", self.min_nodes, f"at most max_nodes, which is {self.max_nodes}"
            )
        if not self.parsl and self.drain_s >= self.walltime_s:
            raise SpecError(
                "drain_s", self.drain_s, f"less than the walltime, which is {self.walltime}"
            )
        if self.parsl and not re.fullmatch(r"[\w.]+:\w+", self.parsl):
            raise SpecError("parsl", self.parsl, "a name such as 'mysite:make_config'")
        for name in ("partition", "account", "python", "scratch", "runtime", "address"):
            if not isinstance(value := getattr(self, name), str) or "\n" in value:
                raise SpecError(name, value, "a text of one line")

    @property
    def is_by_hand(self) -> bool:
        """Whether somebody starts the nodes."""
        return self.provider == _BY_HAND and not self.parsl

    @property
    def walltime_s(self) -> float:
        """The walltime in seconds."""
        return seconds_of_walltime(self.walltime)


def seconds_of_walltime(text: str) -> float:
    """Return the seconds of ``HH:MM:SS``, ``HH:MM`` or ``D-HH:MM:SS``.

    Raises:
        ValueError: the text has another form.
    """
    if not _WALLTIME.fullmatch(text):
        raise ValueError(f"{text!r} is not a time such as '01:30:00' or '2-00:00:00'")
    days, _, rest = text.rpartition("-")
    hours, minutes, seconds = (*map(int, rest.split(":")), 0)[:3]
    return int(days or 0) * 86400.0 + hours * 3600 + minutes * 60 + seconds


def read_config(path: Path, runtime: str | None = None) -> ClusterConfig:
    """Return the ``[cluster]`` table of a TOML file.

    Args:
        path: the file.
        runtime: the engine on the nodes, in place of the file's; None or "" means that of the file.

    Raises:
        ClusterConfigError: the file cannot be read, is not TOML, or has no such table.
        SpecError: a key is unknown or a value is invalid.
        DriverNotFoundError: no driver has the name of the engine.
    """
    table = read_table(path, _TABLE, ClusterConfigError, "add it, docs/cluster.md says how")
    config = read(
        ClusterConfig,
        {**table, **({"runtime": runtime} if runtime else {})},
        path=f"{path}: {_TABLE}",
    )
    known = registry.plugins(registry.RUNTIMES)
    if config.runtime not in ("auto", *known):
        raise DriverNotFoundError(config.runtime, list(known))
    return config
