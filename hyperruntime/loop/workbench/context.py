"""Values: what a step of a generation may use, and the plan of one generation."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hyperruntime.domain import DomainBase
from hyperruntime.git.store import RepositoryStore
from hyperruntime.git.user_repository import ENV_FILE
from hyperruntime.loop.run_files.contract import CONTRACT_FILE, Contract
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.workbench.events import Events
from hyperruntime.loop.workbench.model_access import Models
from hyperruntime.loop.workbench.open_containers import LoopContainer, OpenContainers
from hyperruntime.spec import ContainerSpec, Mount

_LABEL = "io.hyperruntime"


def protected_paths(domains: Sequence[DomainBase]) -> tuple[str, ...]:
    """Return the paths of an agent repository that no patch may change."""
    paths = (path for domain in domains for path in domain.protected_paths)
    return tuple(dict.fromkeys((CONTRACT_FILE, ENV_FILE, *paths)))


@attrs.frozen(kw_only=True)
class StepContext:
    """What the steps of all generations of a run may use.

    Attributes:
        options: options of the run, with seed and run id.
        layout: paths of the run.
        store: repository with all states.
        contract: contract of the agent.
        root: commit of the initial agent.
        first: commit of the first generation, the initial agent with the diffs of
            ``meta_patch_files``.
        domains: domains of the evaluation, in order.
        image: reference of the containers' image.
        containers: opens containers.
        events: receives events.
        models: access to models.
    """

    options: GenerateOptions
    layout: Layout
    store: RepositoryStore
    contract: Contract
    root: str
    first: str
    domains: tuple[DomainBase, ...]
    image: str
    containers: OpenContainers
    events: Events
    models: Models

    @property
    def baseline(self) -> frozenset[str]:
        """Parts of the run's baseline, the loop without one of its features; empty if the run has
        none.
        """
        return frozenset((self.options.run_baseline or "").split("+")) - {""}

    def open_container(self, genid: GenId, *mounts: Mount, isolated: bool = False) -> LoopContainer:
        """Start a container of a generation, with the run's image and limits.

        Args:
            genid: id of the generation.
            mounts: mounts of the container.
            isolated: whether the container gets no network and no GPU.

        Raises:
            RunInterruptedError: the run is being interrupted.
            HyperRuntimeError: the container cannot be started.
        """
        options = self.options
        needs_gpu = any(domain.needs_gpu for domain in self.domains)
        spec = ContainerSpec(
            image=self.image,
            mounts=mounts,
            workdir="/",
            network="none" if isolated else options.network,
            gpus=options.gpus if needs_gpu and not isolated else None,
            limits=options.limits,
            limits_mode=options.limits_mode,
        )
        labels = {f"{_LABEL}.run": str(options.run_id), f"{_LABEL}.generation": str(genid)}
        return self.containers.open(spec, labels)


@attrs.frozen(kw_only=True)
class GenerationPlan:
    """The plan of one generation: its id, its parent and its start state.

    Attributes:
        genid: id of the generation.
        parent: id of its parent; None for the first generation, which is evaluated unchanged.
        commit: the state that it starts from.
        archived: number of archived generations when the parent was chosen.
        split: the only split to evaluate, in full; "": all splits, in stages.
    """

    genid: GenId
    parent: GenId | None
    commit: str
    archived: int = 0
    split: str = ""
