"""A domain whose harness and report are in the agent repository; it provides only the data that the loop needs.

It has no tasks and gives no verdicts; see ``evaluation``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperruntime.domain import Domain, Score, Split, Task
from hyperruntime.errors import AgentError, DomainNotFoundError, SpecError
from hyperruntime.loop.generation.publish import link_or_copy
from hyperruntime.loop.hyperagents.domains import DOMAINS, OriginalDomain
from hyperruntime.loop.hyperagents.labels import blank

IMAGE = "hyperagents:latest"
PROTECTED = ("domains/",)
_HOST_ONLY = ("polyglot",)


class RepositoryDomain:
    """A domain of the table in ``domains``.

    Attributes:
        original: the row of the table; the other attributes are those of :class:`~hyperruntime.domain.Domain`.
    """

    def __init__(self, original: OriginalDomain) -> None:
        """Take a row of the table of domains."""
        self.original = original
        self.name = original.name
        self.description = f"{original.name}, by the agent repository's own harness"
        self.splits = tuple(
            Split(
                name=name,
                staged_samples=original.staged_samples,
                staged_threshold=original.staged_threshold,
                staged_inclusive=original.staged_inclusive,
            )
            for name in original.splits
        )
        self.image = IMAGE
        self.needs_gpu = "genesis" in original.name
        self.agent = "."
        self.protected_paths: tuple[str, ...] = PROTECTED
        self.task_timeout_s = 0.0

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return no tasks: only the repository's harness knows them."""
        return ()

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401 - any JSON value
        """Return an invalid score: only the repository's report gives verdicts."""
        return Score(task_id=task.id, value=0.0, valid=False, detail="judged by the repository's own report")

    def report(self, split: str, scores: Sequence[Score]) -> Mapping[str, Any]:
        """Return the mean of the scores that the repository's report gave."""
        values = [score.value for score in scores]
        return {"score": sum(values) / len(values) if values else 0.0, "total": len(values)}

    def picture(self, task: Task, prediction: Any) -> str | None:  # noqa: ANN401 - any JSON value
        """Return None: there are no pictures."""
        return None


def repository_domain(name: str) -> RepositoryDomain:
    """Return the domain with this name.

    Raises:
        DomainNotFoundError: the table has no such domain.
        SpecError: HyperAgents evaluates the domain on the host, where hyperruntime runs no agent code.
    """
    if name not in DOMAINS:
        raise DomainNotFoundError(name, list(DOMAINS))
    if name in _HOST_ONLY:
        allowed = "its harness does not run in a container; use an agent of the default contract for this domain"
        raise SpecError("domains", name, allowed)
    return RepositoryDomain(DOMAINS[name])


def original_of(domain: Domain) -> OriginalDomain:
    """Return the row of the table for a :class:`RepositoryDomain`."""
    assert isinstance(domain, RepositoryDomain)
    return domain.original


def publish_tables(domain: Domain, source: Path, target: Path) -> None:
    """Copy the directory of an evaluation for agents, without the labels of its tables; do nothing if it is missing.

    Args:
        domain: the domain.
        source: directory of the evaluation.
        target: directory that agents see.

    Raises:
        OSError: a file cannot be read or written.
    """
    if not source.is_dir():
        return  # nothing was evaluated
    shutil.copytree(source, target, copy_function=link_or_copy, ignore=_tables)
    for path in sorted(source.rglob("*.csv")):
        place = target / path.relative_to(source)
        try:
            data = blank(path.read_bytes(), original_of(domain).label_columns, path.name)
        except AgentError:
            continue
        place.write_bytes(data)


def _tables(folder: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if name.endswith(".csv") and os.path.isfile(os.path.join(folder, name))]


_: type[Domain] = RepositoryDomain
