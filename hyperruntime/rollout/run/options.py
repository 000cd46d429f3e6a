"""Options of a rollout run. A field is also the option on the command line and in TOML files."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.images.recipes import is_on_this_machine
from hyperruntime.network.egress import NETWORKS, network_of
from hyperruntime.option_fields import (
    ABOVE_ZERO,
    NOT_NEGATIVE,
    AtLeast,
    OneOf,
    Option,
    about,
    limit_options,
    names_no_code,
    option,
    option_fields,
    parts,
)
from hyperruntime.rollout.agent.agent import DEFAULT_TOOLS, AgentLimits
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.runs.retry import ATTEMPTS, attempts_in_a_row
from hyperruntime.spec import DEFAULT_PIDS, ContainerSpec

DEFAULT_IMAGE = "localhost/hyperruntime/base:latest"


def _names(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(value)


def _parts_of(kind: type) -> dict[str, Any]:
    """Return the metadata of a field of this class, whose fields have options of their own."""
    return parts({field.path[0]: field.option for field in option_fields(kind)})


_CONTAINER_PARTS = {
    "image": Option(
        kind="image",
        metavar="REF",
        written="base",
        harmless=is_on_this_machine,
        help="Recipe name or image reference, if the environment names none.",
    ),
    "network": Option(check=OneOf(NETWORKS), help="Network access of agents."),
    "env": Option(
        kind="env",
        harmless=True,
        help="Variable of the containers; NAME alone passes on ours, and its value is stored in "
        "no file.",
    ),
    "mounts": Option(flag="--mount", kind="mounts", help="Mount a host path; may be repeated."),
    "gpus": Option(kind="gpus", metavar="WHICH", help="GPUs: all, auto:N, indices or CDI names."),
    **{
        f"limits.{name}": one
        for name, one in limit_options(DEFAULT_PIDS).items()
        if name != "disk_bytes"
    },
}


@attrs.frozen(kw_only=True)
class PoolOptions:
    """Options of the pools in which agents work.

    Attributes:
        slots_per_container: agents per container; None means the environment's value, or 1. An
            agent that has its own container runs as the container's user, usually root; agents that
            share a container get separate users.
        min_containers: containers of one spec that are kept ready.
        max_containers: maximum containers of one spec; None means as many as ``parallel`` needs.
        acquire_timeout_s: how long a trajectory waits for a slot.
    """

    slots_per_container: int | None = option(
        None,
        "Slots in each container; default: the environment's choice, else 1.",
        check=AtLeast(1),
        changes=True,
        harmless=True,
    )
    min_containers: int = option(
        0, "Containers kept ready.", check=AtLeast(0), changes=True, harmless=True
    )
    max_containers: int | None = option(
        None,
        "Containers at once; default: as --parallel needs.",
        check=AtLeast(1),
        changes=True,
        harmless=True,
    )
    acquire_timeout_s: float = attrs.field(default=600.0, validator=ABOVE_ZERO)


@attrs.frozen(kw_only=True)
class RolloutOptions:
    """Rollout options; the text of each is in its field, as ``--help`` shows it.

    Attributes:
        environment: also ``path/file.py:Class``.
        environment_options: options of the environment, as text by name.
        model: None if the caller passes its own ``Model``.
        attempts: maximum; only infrastructure failures are retried.
        items: ids of the items to run, or patterns (``*``, ``?``, ``[``); empty means all.
        max_items: None means all.
        seed: each trajectory and turn gets its own seed from it; None draws a random seed.
        limits: limits of one conversation.
        agent: ``module:function`` or ``path/file.py:function``; None means the default agent.
        require_tokens: whether a turn without token ids and log probabilities is an infrastructure
            failure.
        container: the base spec that ``Environment.spec`` gets.
        allow: servers that its network reaches; see :class:`~hyperruntime.network.egress.Egress`.
        env_names: host variables that containers get; their values are read at the start of a run
            and never stored.
        give_up_after: every failed attempt counts; an attempt that does not fail resets the count.
        setup_s: timeout of ``Environment.setup``.
        verify_s: timeout of ``Environment.verify``.
        retry_failed: whether a resumed run retries trajectories that ended with an infrastructure
            failure.

    Example:
        >>> model = hr.ModelOptions(name="my-model", base_url="http://127.0.0.1:8000/v1")
        >>> options = hr.RolloutOptions(environment="swe", model=model, group_size=4, max_items=10)
        >>> options.group_size, options.attempts
        (4, 3)
    """

    environment: str = option(
        attrs.NOTHING,
        "Environment: a name, module:Class or FILE.py:Class.",
        metavar="NAME",
        harmless=names_no_code,
    )
    environment_options: Mapping[str, str] = attrs.field(
        factory=dict,
        hash=False,
        metadata=about(
            "Option of the environment; may be repeated.", flag="--option", kind="pairs"
        ),
    )
    model: ModelOptions | None = attrs.field(default=None, metadata=_parts_of(ModelOptions))
    group_size: int = option(1, "Trajectories per item.", check=AtLeast(1), harmless=True)
    parallel: int = option(
        8, "Trajectories at once.", check=AtLeast(1), changes=True, harmless=True
    )
    items: tuple[str, ...] = attrs.field(
        default=(),
        converter=_names,
        metadata=about(
            "Use only these items, by name or pattern such as 'git-*'.", kind="names", harmless=True
        ),
    )
    # Callers in Python may give any ``max_items`` and ``seed``: the range is only that of the
    # command line.
    max_items: int | None = attrs.field(
        default=None, metadata=about("Use only the first N items.", check=AtLeast(1), harmless=True)
    )
    attempts: int = option(
        ATTEMPTS,
        "Attempts of a trajectory if infrastructure fails.",
        check=AtLeast(1),
        changes=True,
        harmless=True,
    )
    give_up_after: int | None = attrs.field(
        default=None,
        metadata=about(
            "End the run after this many infrastructure failures in a row; default: the larger "
            "of 20 and twice --parallel.",
            check=AtLeast(1),
            changes=True,
            harmless=True,
        ),
    )
    seed: int | None = attrs.field(
        default=None,
        metadata=about(
            "Seed of the sampling; default: a random one, stored.", check=AtLeast(0), harmless=True
        ),
    )
    temperature: float = option(1.0, "Sampling temperature.", check=NOT_NEGATIVE, harmless=True)
    max_tokens: int = option(4096, "Tokens of one turn.", check=AtLeast(1), harmless=True)
    limits: AgentLimits = attrs.field(factory=AgentLimits, metadata=_parts_of(AgentLimits))
    search: str = option(
        "none",
        "Make the trajectories of an item by a search over forks: best (best-first) or beam.",
        check=OneOf(("none", "best", "beam")),
        harmless=True,
    )
    search_width: int = option(
        4, "Nodes from which a search goes on at once.", check=AtLeast(1), harmless=True
    )
    search_children: int = option(
        2, "Steps that a search tries from each node.", check=AtLeast(1), harmless=True
    )
    search_nodes: int = option(
        256, "Nodes of the search for one item.", check=AtLeast(1), harmless=True
    )
    tools: tuple[str, ...] = attrs.field(
        default=DEFAULT_TOOLS,
        converter=_names,
        metadata=about(
            "Tools of agents; default: bash and the file tools.", kind="names", harmless=True
        ),
    )
    agent: str | None = option(
        None, "Your own agent: module:function or FILE.py:function.", metavar="NAME"
    )
    require_tokens: bool = option(
        False, "Fail if a turn has no token ids and logprobs.", harmless=True
    )
    container: ContainerSpec = attrs.field(
        factory=lambda: ContainerSpec(image=DEFAULT_IMAGE), metadata=parts(_CONTAINER_PARTS)
    )
    allow: tuple[str, ...] = attrs.field(
        default=(),
        converter=_names,
        metadata=about(
            "Without another network: the servers that agents reach, such as pypi.org or "
            "'*.example.org'; may be repeated.",
            kind="names",
        ),
    )
    env_names: tuple[str, ...] = attrs.field(default=(), converter=_names)
    pool: PoolOptions = attrs.field(factory=PoolOptions, metadata=_parts_of(PoolOptions))
    setup_s: float = option(
        1800.0,
        "Time limit of a set-up.",
        flag="--timeout-setup",
        written="30m",
        check=ABOVE_ZERO,
        harmless=True,
    )
    verify_s: float = option(
        3600.0,
        "Time limit of a verification.",
        flag="--timeout-verify",
        written="1h",
        check=ABOVE_ZERO,
        harmless=True,
    )
    retry_failed: bool = option(
        False, "With --resume-from: retry infrastructure failures.", changes=True, harmless=True
    )

    def base_spec(self) -> ContainerSpec:
        """Return the base container spec with the values of ``env_names``, and with ``allow``.

        Raises:
            SpecError: a variable is not set, or ``allow`` is wrong.
        """
        for name in self.env_names:
            if name not in os.environ:
                raise SpecError(
                    "env_names",
                    name,
                    "the variable is not set here; set it, or remove it from the list",
                )
        named = {name: os.environ[name] for name in self.env_names}
        base = self.container
        if not named and not self.allow:
            return base
        network = network_of(base.network, self.allow)
        return attrs.evolve(base, env={**base.env, **named}, network=network)

    @property
    def failures_allowed(self) -> int:
        """How many infrastructure failures in a row end the run."""
        return self.give_up_after or attempts_in_a_row(self.parallel)

    def settled(self) -> RolloutOptions:
        """Return the options with a seed, drawn at random if it is None."""
        return self if self.seed is not None else attrs.evolve(self, seed=secrets.randbelow(2**31))


def new_run_id() -> str:
    """Return a default run id: the local time as ``YYYYmmdd_HHMMSS``."""
    return time.strftime("%Y%m%d_%H%M%S")
