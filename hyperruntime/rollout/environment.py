"""The environment interface: it gives tasks to agents and scores their work.

An environment runs on the host and runs commands in containers through leases. It must not decide a
reward from files that the agent could write; ``verify`` gets fresh containers for this. Any class
with the members of ``Environment`` works; ``EnvironmentBase`` has those that it may leave out.
Users name it by an entry point of the group ``hyperruntime.environments``, or by ``module:Class``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from hyperruntime.images.store import ImageStore
    from hyperruntime.sandbox import Sandbox
    from hyperruntime.spec import ContainerSpec


@attrs.frozen(kw_only=True)
class Item:
    """One task for an agent.

    Attributes:
        id: unique in its environment; letters, digits, ``-``, ``_``, ``.``.
        data: JSON values for the environment's own use.
    """

    id: str
    data: Mapping[str, Any] = attrs.field(factory=dict, hash=False)


@attrs.frozen(kw_only=True)
class Outcome:
    """How an agent's conversation ended.

    Attributes:
        messages: the whole conversation.
        turns: number of assistant turns.
        tool_calls: number of tool calls that ran.
        stop_reason: same values as ``Trajectory.stop_reason``.
    """

    messages: Sequence[Mapping[str, Any]] = attrs.field(hash=False)
    turns: int
    tool_calls: int
    stop_reason: str


@attrs.frozen(kw_only=True)
class Verdict:
    """The score of a trajectory.

    Attributes:
        reward: usually in [0, 1].
        parts: the components of the reward, by name.
        phase: the phase that decided the reward: ``agent``, ``install``, ``tests``, ...
        detail: one sentence for people.
        facts: JSON values for reports.
    """

    reward: float
    parts: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    phase: str = ""
    detail: str = ""
    facts: Mapping[str, Any] = attrs.field(factory=dict, hash=False)


class Fresh(Protocol):
    """Provides unused containers: ``async with fresh() as judge: await judge.exec([...])``."""

    def __call__(self, spec: ContainerSpec | None = None) -> AbstractAsyncContextManager[Sandbox]:
        """Return a lease on an unused container; ``spec`` None means the item's own spec."""
        ...


class UnscoredEnvironment(Protocol):
    """The interface of an environment without a reward: the members of :class:`Environment` without
    ``verify``.

    Its trajectories end with the status ``unscored``. A program passes it as ``Parts.environment``;
    an environment that is loaded by name must have ``verify``, so a misspelled ``verify`` does not
    become a run without rewards.

    Attributes:
        name: name of the environment; if a package publishes it, the name of its entry point.
    """

    name: str

    @abstractmethod
    def items(self) -> Iterable[Item]:
        """Return the items, always in the same order.

        Raises:
            SpecError: an item is invalid; the message names the item and the reason.
        """
        ...

    @abstractmethod
    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        """Return the container spec of an item, and build its image if it is missing.

        It is called in a thread, so it may block.

        Args:
            item: the item.
            base: the run's container spec; change only the fields that the item needs.
            images: the store that builds and finds images.
        """
        ...

    @abstractmethod
    async def setup(self, item: Item, lease: Sandbox) -> Mapping[str, Any]:
        """Prepare the agent's workspace.

        Args:
            item: the item.
            lease: the agent's slot.

        Returns:
            Values that ``messages`` and ``verify`` get as ``meta``.
        """
        ...

    @abstractmethod
    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the opening messages, system and user.

        Args:
            item: the item.
            meta: the value that ``setup`` returned.
        """
        ...


class Environment(UnscoredEnvironment, Protocol):
    """The interface of an environment class; the user's options (``--option key=value``) are its
    keyword arguments.

    Any exception from ``setup`` or ``verify`` is recorded as an infrastructure failure and retried.
    It is never a reward.

    What it may leave out, with the defaults: :class:`EnvironmentBase`. ``interface_version`` of the
    class is the version of this interface for which it was written (docs/versions.md).
    """

    @abstractmethod
    async def verify(
        self, item: Item, outcome: Outcome, lease: Sandbox, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        """Score the agent's work.

        Args:
            item: the item.
            outcome: how the agent's conversation ended.
            lease: the agent's slot; its files are still there, its processes have been killed.
            fresh: provides unused containers.
            meta: the value that ``setup`` returned.
        """
        ...


class UnscoredEnvironmentBase(UnscoredEnvironment):
    """The members that an environment may leave out, with their defaults; for one without a reward.

    Attributes:
        slots_per_container: number of agents that may share a container, each with its own user;
            None is the pool's default. With 1, each agent has its own container and runs as that
            container's user.
        image_workdir: whether an agent with its own container begins in the working directory of
            its image, unless the spec names one; else it begins in ``/workspace``.
        setup_per_trajectory: whether ``setup`` must run for each trajectory, because it does not
            always do the same. Else one set-up is enough for a group where the engine has
            snapshots: the other trajectories begin with its files and a copy of its value.
    """

    slots_per_container: int | None = 1
    image_workdir: bool = False
    setup_per_trajectory: bool = False

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why ``items`` left items out, by name, so that one odd row does not make a data set
        unusable; see :class:`~hyperruntime.datasets.left_out.LeftOut`.
        """
        return {}

    def check_items(self, items: Sequence[Item], base: ContainerSpec) -> None:
        """Check that a run has what its items need; called in a thread before anything starts.

        Args:
            items: the items of the run.
            base: the run's container spec.

        Raises:
            SpecError: it lacks something, such as a network.
        """

    def time_limit_s(self, item: Item) -> float | None:
        """Return the maximum duration of a conversation in seconds, or None."""
        return None

    def cache_key(self, item: Item) -> str:
        """Return the name of what a machine keeps for the item, such as its repository: on a
        cluster, items with the same name go to the same node if it has room.
        """
        return item.id

    async def value(
        self, item: Item, outcome: Outcome, lease: Sandbox, meta: Mapping[str, Any]
    ) -> float:
        """Return how good a state on the way to the end is; only a search asks for it.

        Args:
            item: the item.
            outcome: the conversation so far.
            lease: a slot with the files of this state; its processes have been killed.
            meta: the value that ``setup`` returned.
        """
        raise NotImplementedError

    async def agent_lease(self, item: Item, lease: Sandbox, meta: Mapping[str, Any]) -> Sandbox:
        """Return the lease with which the agent's tools work, after ``setup``; ``verify`` gets the
        first one.

        Args:
            item: the item.
            lease: the agent's slot; :func:`~hyperruntime.pool.user_lease.lease_as` makes one of
                another user.
            meta: the value that ``setup`` returned.
        """
        return lease


class EnvironmentBase(UnscoredEnvironmentBase, Environment):
    """A base class for environments: what they may leave out, with the defaults.

    An environment needs no base class: one without it gets the same defaults when it is loaded.
    With it, type checkers know these members: they check their types, and refuse a misspelled one
    that is marked with ``typing.override``.
    """
