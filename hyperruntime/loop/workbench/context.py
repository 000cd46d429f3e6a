"""What all generations of a run share, and which one is to be made; values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from hyperruntime.domain import Domain
from hyperruntime.git.secret_filter import ENV_FILE
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.run_files.contract import CONTRACT_FILE, Contract
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.workbench.model_access import ModelAccess
from hyperruntime.loop.workbench.open_containers import OpenContainers
from hyperruntime.loop.workbench.step_log import Events

if TYPE_CHECKING:
    from hyperruntime.loop.generation.adapter import ContractAdapter


def protected_paths(domains: Sequence[Domain]) -> tuple[str, ...]:
    """Return the paths of an agent repository that no patch may change."""
    paths = (path for domain in domains for path in domain.protected_paths)
    return tuple(dict.fromkeys((CONTRACT_FILE, ENV_FILE, *paths)))


@attrs.frozen(kw_only=True)
class RunContext:
    """What all generations of a run share.

    Attributes:
        options: what the user asked for, with seed and run id.
        layout: where the files are.
        store: the states.
        contract: what the agent offers.
        adapter: what its kind of contract decides.
        root: the commit of the initial agent.
        first: the state of the first generation, which diffs may have changed; "" where no generation is made.
        domains: what it is evaluated on, in order.
        image: reference of the image its containers run.
        containers: opens them.
        events: who watches.
        models: what agents may ask.
    """

    options: GenerateOptions
    layout: Layout
    store: RepositoryStore
    contract: Contract
    adapter: ContractAdapter
    root: str
    first: str = ""
    domains: tuple[Domain, ...]
    image: str
    containers: OpenContainers
    events: Events
    models: ModelAccess = attrs.field(factory=ModelAccess)

    @property
    def protected(self) -> tuple[str, ...]:
        """Paths of the agent repository that no patch may change."""
        return protected_paths(self.domains)

    @property
    def needs_gpu(self) -> bool:
        """Whether the containers need a GPU."""
        return any(domain.needs_gpu for domain in self.domains)


@attrs.frozen(kw_only=True)
class GenerationPlan:
    """Which generation is to be made, and from what.

    Attributes:
        genid: its id.
        parent: its parent's; None for the first, which is evaluated as it is.
        commit: the state it starts from.
        archived: how many generations were archived when its parent was chosen.
    """

    genid: GenId
    parent: GenId | None
    commit: str
    archived: int = 0
