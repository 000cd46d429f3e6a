"""The environment seam: what agents are given to do, and what it was worth.

An environment runs on the host. What it runs in a container it runs through the lease it is handed; nothing that
decides a reward is read from where the agent could write: ``verify`` gets fresh containers for that. A class with these
members is enough; entry point group ``hyperruntime.environments``, or ``module:Class``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from hyperruntime.images.store import ImageStore
    from hyperruntime.pool.lease import Lease
    from hyperruntime.spec import ContainerSpec


@attrs.frozen(kw_only=True)
class Item:
    """One thing to do.

    Attributes:
        id: unique in its environment; letters, digits, ``-``, ``_``, ``.``.
        data: JSON values, the environment's own.
    """

    id: str
    data: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Outcome:
    """How an agent ended.

    Attributes:
        messages: the conversation.
        turns: assistant turns.
        tool_calls: calls that were carried out.
        stop_reason: as in a trajectory.
    """

    messages: Sequence[Mapping[str, Any]]
    turns: int
    tool_calls: int
    stop_reason: str


@attrs.frozen(kw_only=True)
class Verdict:
    """What a trajectory was worth.

    Attributes:
        reward: usually in [0, 1].
        parts: what it is made of, by name.
        phase: where it was decided: ``agent``, ``install``, ``tests``, ...
        detail: one sentence for people.
        facts: JSON values for reports.
    """

    reward: float
    parts: Mapping[str, float] = attrs.field(factory=dict)
    phase: str = ""
    detail: str = ""
    facts: Mapping[str, Any] = attrs.field(factory=dict)


class Fresh(Protocol):
    """Hands out containers that nobody has used: ``async with fresh() as judge: await judge.exec([...])``."""

    def __call__(self, spec: ContainerSpec | None = None) -> AbstractAsyncContextManager[Lease]:
        """Return one; ``spec`` is the item's own unless another is given."""
        ...


class Environment(Protocol):
    """What a package provides; made with the keyword arguments that the user wrote (``--option key=value``).

    Whatever ``setup`` and ``verify`` raise is an infrastructure failure: recorded as such, tried again, never a reward.

    It may also have ``slots_per_container`` (how many agents may share a container, as users of their own; without it
    each has a container of its own, as that container's user), and ``time_limit_s(item)``: seconds that a conversation
    may take, or None.

    Attributes:
        name: of the entry point.
    """

    name: str

    def items(self) -> Iterable[Item]:
        """Return the items, always in the same order.

        Raises:
            SpecError: one is malformed; says which and why.
        """
        ...

    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        """Return the container that an item needs, its image made if need be; may take long, is called in a thread."""
        ...

    async def setup(self, item: Item, lease: Lease) -> Mapping[str, Any]:
        """Make the workspace ready for the agent; what is returned comes back in ``messages`` and ``verify``."""
        ...

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the opening messages, system and user."""
        ...

    async def verify(
        self, item: Item, outcome: Outcome, lease: Lease, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        """Return what it was worth; the agent's processes have been ended, its files are in ``lease``."""
        ...
