"""Options of a rollout run."""

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
    """Options of the pools in which agents work.

    Attributes:
        slots_per_container: agents per container; None means the environment's value, or 1. An agent that has its own
            container runs as the container's user, usually root; agents that share a container get separate users.
        min_containers: containers of one spec that are kept ready.
        max_containers: maximum containers of one spec; None means as many as ``parallel`` needs.
        acquire_timeout_s: how long a trajectory waits for a slot.
    """

    slots_per_container: int | None = None
    min_containers: int = 0
    max_containers: int | None = None
    acquire_timeout_s: float = attrs.field(default=600.0, validator=_above_zero)


@attrs.frozen(kw_only=True)
class RolloutOptions:
    """Rollout options.

    Attributes:
        environment: name of an installed environment, ``module:Class`` or ``path/file.py:Class``.
        environment_options: options of the environment, as text by name.
        model: the model; None if the caller passes its own ``Model``.
        group_size: trajectories per item.
        parallel: maximum trajectories at the same time.
        attempts: maximum attempts of a trajectory whose infrastructure fails.
        give_up_after: the run ends after this many infrastructure failures in a row.
        items: ids of the items to run; empty means all.
        max_items: run at most this many items, from the first; None means all.
        seed: seed of the run, from which each trajectory and turn gets its own seed; None draws a random seed.
        temperature: sampling temperature.
        max_tokens: maximum tokens of one turn.
        limits: limits of one conversation.
        tools: names of the slot tools.
        agent: ``module:function`` or ``path/file.py:function``; None means the default agent.
        require_tokens: whether a turn without token ids and log probabilities is an infrastructure failure.
        container: the base spec that ``Environment.spec`` gets.
        env_names: host variables that containers get; their values are read at the start of a run and never stored.
        pool: options of the pools.
        setup_s: timeout of ``Environment.setup``.
        verify_s: timeout of ``Environment.verify``.
        retry_failed: whether a resumed run retries trajectories that ended with an infrastructure failure.
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
        """Return the base container spec with the values of ``env_names``.

        Raises:
            SpecError: a variable is not set.
        """
        for name in self.env_names:
            if name not in os.environ:
                raise SpecError("env_names", name, "the variable is not set here; set it, or remove it from the list")
        named = {name: os.environ[name] for name in self.env_names}
        return attrs.evolve(self.container, env={**self.container.env, **named}) if named else self.container

    def settled(self) -> RolloutOptions:
        """Return the options with a seed, drawn at random if it is None."""
        return self if self.seed is not None else attrs.evolve(self, seed=secrets.randbelow(2**31))


def new_run_id() -> str:
    """Return a default run id: the local time as ``YYYYmmdd_HHMMSS``."""
    return time.strftime("%Y%m%d_%H%M%S")
