"""The domains of repositories that have the HyperAgents layout, as data.

The harness and the report of a domain are in the repository (``domains/``). This module has the
facts that the host needs to run them and to read their results. The host has no tasks of these
domains and gives no verdicts; see ``evaluation``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from hyperruntime.domain import DomainBase, Score, Split, Task
from hyperruntime.errors import DomainNotFoundError, SpecError
from hyperruntime.json_values import is_number
from hyperruntime.loop.run_files.layout import REPORT, evaluation_name, read_json

TRAIN = "train"
VAL = "val"
TEST = "test"
_HOST_ONLY = ("polyglot",)


@attrs.define(kw_only=True)
class OriginalDomain(DomainBase):
    """A domain of such a repository; the other attributes are those of a domain.

    Attributes:
        name: value of ``--domain``.
        score_key: key of the score in ``report.json``.
        scale: the score in the report is divided by this.
        needs: key of ``report.json`` that must not be empty, or the score does not count; "" for
            none.
        splits: splits of a run, in order, all with the same first stage; ``test`` is evaluated only
            if the option ``eval_test`` is set.
        subsets: value of ``--subset`` for each split; "" is the whole dataset.
        full_samples: number of tasks in the full evaluation; a first stage's score is multiplied by
            ``staged / full``.
        ensemblable: whether an ensemble can combine the answers of several generations.
        folder: its directory below ``domains/``.
        datasets: file names of its tables below ``folder``, with ``{}`` for the subset; "" if it
            has no table.
        id_column: column that identifies a row of the tables.
        label_columns: columns of the tables that agents must not see; the first one is the label
            itself.
    """

    name: str
    score_key: str
    scale: float = 1.0
    needs: str = ""
    splits: tuple[Split, ...] = (Split(name=TRAIN, staged_samples=10),)
    subsets: Mapping[str, str] = MappingProxyType({TRAIN: ""})
    full_samples: int = 10
    ensemblable: bool = False
    folder: str
    datasets: str = ""
    id_column: str = ""
    label_columns: tuple[str, ...] = ()
    description: str = "evaluated by the agent repository's own harness"
    image: str = "hyperagents:latest"
    needs_gpu: bool = False
    agent: str = "."
    protected_paths: tuple[str, ...] = ("domains/",)
    task_timeout_s: float = 0.0

    @property
    def first_stage(self) -> Split:
        """The rules of the first stage, which are the same for all splits."""
        return self.splits[0]

    @property
    def fraction(self) -> float:
        """The factor for the score of a first stage if the full evaluation was not run."""
        return self.first_stage.staged_samples / self.full_samples

    def dataset(self, split: str) -> str:
        """Return the path of a split's table below ``domains/``; "" if the domain has no table."""
        return f"{self.folder}/{self.datasets.format(self.subsets[split])}" if self.datasets else ""

    def evaluation(self, split: str) -> str:
        """Return the name of the directory of a split's results."""
        return evaluation_name(self.name, split)

    def initial_outputs(self, split: str) -> str:
        """Return the directory of the initial agent's results of a split, below ``outputs/``."""
        return f"initial_{self.name}{self.subsets[split]}_0"

    def score_in(self, report: Mapping[str, Any]) -> float | None:
        """Return the score in a report, not multiplied by ``fraction``; None if it has no valid
        score.
        """
        if self.needs and not report.get(self.needs):
            return None
        value = report.get(self.score_key)
        return float(value) / self.scale if is_number(value) else None

    def read_score(self, folder: Path, name: str = REPORT) -> float | None:
        """Return the score in the report ``name`` of a directory; None if there is no report or no
        valid score.
        """
        return self.score_in(read_json(folder / name, folder.parent))

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return no tasks: only the repository's harness knows them."""
        return ()

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401 - any JSON value
        """Return an invalid score: only the repository's report gives verdicts."""
        return Score(
            task_id=task.id, value=0.0, valid=False, detail="judged by the repository's own report"
        )


def _balrog(name: str, episodes: int) -> OriginalDomain:
    return OriginalDomain(
        name=f"balrog_{name}",
        score_key="average_progress",
        scale=100.0,
        needs="environments",
        splits=(Split(name=TRAIN, staged_samples=1),),
        full_samples=episodes,
        folder="balrog",
    )


def _genesis(name: str) -> OriginalDomain:
    return OriginalDomain(
        name=f"genesis_{name}",
        score_key="average_fitness",
        splits=(Split(name=TRAIN, staged_samples=3),),
        full_samples=6,
        folder="genesis",
        needs_gpu=True,
    )


def _table(
    name: str, folder: str, datasets: str, id_column: str, *label_columns: str
) -> OriginalDomain:
    splits = (TRAIN, VAL, TEST)
    return OriginalDomain(
        name=name,
        score_key="overall_accuracy",
        splits=tuple(Split(name=split, staged_samples=10) for split in splits),
        subsets=MappingProxyType({split: f"_filtered_100_{split}" for split in splits}),
        full_samples=100,
        ensemblable=True,
        folder=folder,
        datasets=datasets,
        id_column=id_column,
        label_columns=label_columns,
    )


_DOMAINS = (
    _table("search_arena", "search_arena", "dataset{}.csv", "question_id", "winner"),
    _table("paper_review", "paper_review", "dataset{}.csv", "question_id", "outcome"),
    _balrog("babyai", 10),
    _balrog("babaisai", 3),
    _balrog("minihack", 5),
    _balrog("nle", 5),
    _genesis("go2walking"),
    _genesis("go2walkback"),
    _genesis("go2hop"),
    OriginalDomain(
        name="polyglot",
        score_key="accuracy_score",
        splits=(Split(name=TRAIN, staged_samples=10, staged_threshold=0.4, staged_inclusive=True),),
        full_samples=60,
        folder="polyglot",
    ),
    _table("imo_grading", "imo", "gradingbench{}.csv", "Grading ID", "Reward", "Points"),
    OriginalDomain(
        name="imo_proof",
        score_key="points_percentage",
        full_samples=60,
        folder="imo",
        datasets="proofbench{}.csv",
        id_column="Problem ID",
        label_columns=("Solution", "Grading guidelines", "Short Answer"),
    ),
)
DOMAINS: Mapping[str, OriginalDomain] = MappingProxyType(
    {domain.name: domain for domain in _DOMAINS}
)


def repository_domain(name: str) -> OriginalDomain:
    """Return the domain with this name.

    Raises:
        DomainNotFoundError: the table has no such domain.
        SpecError: HyperAgents evaluates the domain on the host, where hyperruntime runs no agent
            code.
    """
    if name not in DOMAINS:
        raise DomainNotFoundError(name, list(DOMAINS))
    if name in _HOST_ONLY:
        allowed = (
            "its harness does not run in a container; use an agent of the default contract for "
            "this domain"
        )
        raise SpecError("domains", name, allowed)
    return DOMAINS[name]
