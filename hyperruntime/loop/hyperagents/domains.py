"""The domains of repositories that have the HyperAgents layout, as data.

The harness and the report of a domain are in the repository (``domains/``). This module has the facts that the host
needs to run them and to read their results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from hyperruntime.loop.run_files.layout import REPORT, evaluation_name, read_json

TRAIN, VAL, TEST = "train", "val", "test"


@attrs.frozen(kw_only=True)
class OriginalDomain:
    """A domain of such a repository.

    Attributes:
        name: value of ``--domain``.
        score_key: key of the score in ``report.json``.
        scale: the score in the report is divided by this.
        needs: key of ``report.json`` that must not be empty, or the score does not count; "" for none.
        splits: splits of a run, in order; ``test`` is evaluated only if the option ``eval_test`` is set.
        subsets: value of ``--subset`` for each split; "" is the whole dataset.
        staged_samples: number of tasks in the cheap first stage.
        full_samples: number of tasks in the full evaluation; a first stage's score is multiplied by ``staged / full``.
        staged_threshold: the first stage of the train split must exceed this score.
        staged_inclusive: whether a score equal to the threshold is enough.
        ensemblable: whether an ensemble can combine the answers of several generations.
        folder: its directory below ``domains/``.
        datasets: file names of its tables below ``folder``, with ``{}`` for the subset; "" if it has no table.
        id_column: column that identifies a row of the tables.
        label_columns: columns of the tables that agents must not see; the first one is the label itself.
    """

    name: str
    score_key: str
    scale: float = 1.0
    needs: str = ""
    splits: tuple[str, ...] = (TRAIN,)
    subsets: Mapping[str, str] = MappingProxyType({TRAIN: ""})
    staged_samples: int = 10
    full_samples: int = 10
    staged_threshold: float = 0.0
    staged_inclusive: bool = False
    ensemblable: bool = False
    folder: str
    datasets: str = ""
    id_column: str = ""
    label_columns: tuple[str, ...] = ()

    @property
    def fraction(self) -> float:
        """The factor for the score of a first stage if the full evaluation was not run."""
        return self.staged_samples / self.full_samples

    @property
    def selected_split(self) -> str:
        """The split that decides about parents."""
        return VAL if VAL in self.splits else TRAIN

    def dataset(self, split: str) -> str:
        """Return the path of a split's table below ``domains/``; "" if the domain has no table."""
        return f"{self.folder}/{self.datasets.format(self.subsets[split])}" if self.datasets else ""

    def evaluation(self, split: str) -> str:
        """Return the name of the directory of a split's results."""
        return evaluation_name(self.name, split)

    def initial_outputs(self, split: str) -> str:
        """Return the directory of the initial agent's results of a split, below ``outputs/``."""
        return f"initial_{self.name}{self.subsets[split]}_0"

    def passes(self, score: float) -> bool:
        """Return whether a first stage's score is enough for the full evaluation."""
        return score >= self.staged_threshold if self.staged_inclusive else score > self.staged_threshold

    def score(self, report: Mapping[str, Any]) -> float | None:
        """Return the score in a report, not multiplied by ``fraction``; None if it has no valid score."""
        if self.needs and not report.get(self.needs):
            return None
        value = report.get(self.score_key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return None
        return float(value) / self.scale

    def read_score(self, folder: Path, name: str = REPORT) -> float | None:
        """Return the score in the report ``name`` of a directory; None if there is no report or no valid score."""
        return self.score(read_json(folder / name))


_FILTERED = MappingProxyType({split: f"_filtered_100_{split}" for split in (TRAIN, VAL, TEST)})
_TABLE: Mapping[str, Any] = {
    "score_key": "overall_accuracy",
    "splits": (TRAIN, VAL, TEST),
    "subsets": _FILTERED,
    "full_samples": 100,
    "ensemblable": True,
}


def _balrog(name: str, episodes: int) -> OriginalDomain:
    return OriginalDomain(
        name=f"balrog_{name}",
        score_key="average_progress",
        scale=100.0,
        needs="environments",
        staged_samples=1,
        full_samples=episodes,
        folder="balrog",
    )


def _genesis(name: str) -> OriginalDomain:
    return OriginalDomain(
        name=f"genesis_{name}", score_key="average_fitness", staged_samples=3, full_samples=6, folder="genesis"
    )


_DOMAINS = (
    OriginalDomain(
        name="search_arena",
        folder="search_arena",
        datasets="dataset{}.csv",
        id_column="question_id",
        label_columns=("winner",),
        **_TABLE,
    ),
    OriginalDomain(
        name="paper_review",
        folder="paper_review",
        datasets="dataset{}.csv",
        id_column="question_id",
        label_columns=("outcome",),
        **_TABLE,
    ),
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
        full_samples=60,
        staged_threshold=0.4,
        staged_inclusive=True,
        folder="polyglot",
    ),
    OriginalDomain(
        name="imo_grading",
        folder="imo",
        datasets="gradingbench{}.csv",
        id_column="Grading ID",
        label_columns=("Reward", "Points"),
        **_TABLE,
    ),
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
DOMAINS: Mapping[str, OriginalDomain] = MappingProxyType({domain.name: domain for domain in _DOMAINS})
