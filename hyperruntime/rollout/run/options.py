"""What a run of rollouts is told. Values only."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.rollout.agent.agent import AgentLimits
from hyperruntime.rollout.agent.toolset import DEFAULT_TOOLS
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.spec import ContainerSpec

DEFAULT_IMAGE = "localhost/hyperruntime/base:latest"


def _at_least_one(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401 - checked here
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(attribute.name, value, "a whole number, one or more")


def _above_zero(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401 - checked here
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise SpecError(attribute.name, value, "a number above zero")


def _not_negative(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401 - checked here
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise SpecError(attribute.name, value, "a number, zero or more")


def _names(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(value)


@attrs.frozen(kw_only=True)
class PoolOptions:
    """Where agents work.

    Attributes:
        slots_per_container: None is what the environment says, else 1: agents that have a container of their own run
            as its user, usually root; those that share one have users of their own.
        min_containers: of one kind, kept ready.
        max_containers: of one kind; None is what ``parallel`` needs.
        acquire_timeout_s: how long a trajectory waits for a slot.
    """

    slots_per_container: int | None = None
    min_containers: int = 0
    max_containers: int | None = None
    acquire_timeout_s: float = attrs.field(default=600.0, validator=_above_zero)


@attrs.frozen(kw_only=True)
class RolloutOptions:
    """What a run is told.

    Attributes:
        environment: name of an installed environment, or ``module:Class``.
        environment_options: its own, as text.
        model: who is asked; None where a program hands in a model of its own.
        group_size: trajectories of each item.
        parallel: trajectories at once.
        attempts: of a trajectory while infrastructure fails.
        give_up_after: so many trajectories in a row that infrastructure kept from being scored end the run.
        items: ids of the items to take; all if empty.
        max_items: at most so many, from the first.
        seed: of the sampling; each trajectory and turn has one of its own, made of it. Drawn if not given.
        temperature: of the sampling.
        max_tokens: of one turn.
        limits: of one conversation.
        tools: of the slot, by name.
        agent: ``module:function`` or ``path/file.py:function`` of another agent than ours.
        require_tokens: whether a turn without token ids and log probabilities is a failure.
        container: what an environment begins from when it says which container an item needs.
        env_names: variables of the host that containers get too; their values are read when a run starts, and kept in
            no file.
        pool: where agents work.
        setup_s: how long a set-up may take.
        verify_s: how long a verification may take.
        retry_failed: whether a resumed run tries those again that infrastructure kept from being scored.
    """

    environment: str
    environment_options: Mapping[str, str] = attrs.field(factory=dict)
    model: ModelOptions | None = None
    group_size: int = attrs.field(default=1, validator=_at_least_one)
    parallel: int = attrs.field(default=8, validator=_at_least_one)
    attempts: int = attrs.field(default=3, validator=_at_least_one)
    give_up_after: int = attrs.field(default=20, validator=_at_least_one)
    items: tuple[str, ...] = attrs.field(default=(), converter=_names)
    max_items: int | None = None
    seed: int | None = None
    temperature: float = attrs.field(default=1.0, validator=_not_negative)
    max_tokens: int = attrs.field(default=4096, validator=_at_least_one)
    limits: AgentLimits = attrs.field(factory=AgentLimits)
    tools: tuple[str, ...] = attrs.field(default=DEFAULT_TOOLS, converter=_names)
    agent: str | None = None
    require_tokens: bool = False
    container: ContainerSpec = attrs.field(factory=lambda: ContainerSpec(image=DEFAULT_IMAGE))
    env_names: tuple[str, ...] = attrs.field(default=(), converter=_names)
    pool: PoolOptions = attrs.field(factory=PoolOptions)
    setup_s: float = attrs.field(default=1800.0, validator=_above_zero)
    verify_s: float = attrs.field(default=3600.0, validator=_above_zero)
    retry_failed: bool = False

    def base_spec(self) -> ContainerSpec:
        """Return the container that environments begin from, with the variables of the host.

        Raises:
            SpecError: one is not set.
        """
        for name in self.env_names:
            if name not in os.environ:
                raise SpecError("env_names", name, "a variable that is set here; set it, or leave it out")
        named = {name: os.environ[name] for name in self.env_names}
        return attrs.evolve(self.container, env={**self.container.env, **named}) if named else self.container

    def settled(self) -> RolloutOptions:
        """Return the options with a seed."""
        return self if self.seed is not None else attrs.evolve(self, seed=secrets.randbelow(2**31))


def new_run_id() -> str:
    """Return the id of a run that was given none: the time."""
    return time.strftime("%Y%m%d_%H%M%S")
