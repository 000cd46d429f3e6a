"""The tasks that a run submits to an executor: each runs here when called, or is sent to another
machine.

Sent tasks and results are JSON. A task contains no runtime, key or budget: each machine has its own
runtime, and the gateway stays with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.domain import DomainBase
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.generation.adapter import ContractAdapter, RunContext
from hyperruntime.loop.generation.generation import make_generation
from hyperruntime.loop.generation.parent_program import Question, Said
from hyperruntime.loop.run.contracts import contract_adapter, load_domains
from hyperruntime.loop.run.plan import absolute_references
from hyperruntime.loop.run_files.contract import Contract
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord, structured
from hyperruntime.loop.workbench.context import GenerationPlan
from hyperruntime.loop.workbench.events import Events
from hyperruntime.loop.workbench.model_access import Models
from hyperruntime.loop.workbench.open_containers import OpenContainers
from hyperruntime.option_fields import from_json, to_json

MakeExecutor = Callable[[int], Executor]


@attrs.frozen(kw_only=True, eq=False)
class GenerationTask:
    """Make one generation; its files are then in the run's ``work`` directory.

    Attributes:
        context: context of the run, with this machine's runtime.
        plan: plan of the generation.
        first: as for :func:`~hyperruntime.loop.generation.generation.make_generation`.
    """

    context: RunContext
    plan: GenerationPlan
    first: int = 1

    def __call__(self) -> GenerationRecord:
        """Make it with the context's runtime; the errors are those of ``make_generation``."""
        return make_generation(self.context, self.plan, self.first)


@attrs.frozen(kw_only=True, eq=False)
class QuestionTask:
    """Ask a generation's own program for a parent.

    Attributes:
        context: context of the run, with this machine's runtime.
        question: what is asked.
    """

    context: RunContext
    question: Question

    def __call__(self) -> Said:
        """Ask with the context's runtime; the errors are those of ``Question.ask``."""
        return self.question.ask(self.context)


def run_to_json(context: RunContext) -> dict[str, Any]:
    """Return what another machine must know of a run, as JSON."""
    options = context.options
    return {
        "run_dir": str(context.layout.root),
        "options": to_json(attrs.evolve(options, domains=absolute_references(options.domains))),
        "contract": attrs.asdict(context.contract),
        "root": context.root,
        "first": context.first,
        "image": context.image,
    }


@attrs.frozen(kw_only=True)
class SentRun:
    """A run as another machine knows it, without a runtime; the attributes are those of
    :class:`RunContext`.

    Attributes:
        image: reference of the image where the run is.
    """

    options: GenerateOptions
    layout: Layout
    contract: Contract
    adapter: ContractAdapter
    root: str
    first: str
    domains: tuple[DomainBase, ...]
    image: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SentRun:
        """Return the run of :func:`run_to_json`.

        Args:
            value: the JSON object.

        Raises:
            HyperRuntimeError: the value is invalid, or a domain of the run is not installed here.
        """
        try:
            options = from_json(GenerateOptions, value["options"], strict=False)
            contract = structured(Contract, value["contract"])
            texts = {name: str(value[name]) for name in ("root", "first", "image")}
            layout = Layout(Path(value["run_dir"]))
        except (KeyError, TypeError, ValueError) as error:
            raise HyperRuntimeError(
                f"the received run cannot be read: {error!r}; use one version of hyperruntime "
                "on all machines"
            ) from error
        adapter = contract_adapter(options.contract)
        domains = load_domains(options.domains, adapter, code=True)  # the sender has checked them
        return cls(
            options=options,
            layout=layout,
            contract=contract,
            adapter=adapter,
            domains=domains,
            **texts,
        )

    def context(
        self,
        work: Path,
        store: RepositoryStore,
        containers: OpenContainers,
        events: Events,
        models: Models,
        image: str,
    ) -> RunContext:
        """Return the context of work on this machine.

        Args:
            work: directory of this machine in which a generation is made.
            store: a repository that has the run's states, and takes new ones.
            containers: opens containers of this machine.
            events: receives events.
            models: access to models.
            image: reference of the image on this machine.
        """
        known = attrs.asdict(self, recurse=False) | {
            "image": image,
            "layout": Layout(self.layout.root, work),
        }
        return RunContext(store=store, containers=containers, events=events, models=models, **known)
