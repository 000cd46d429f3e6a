"""The domain ``table``: questions with known answers, read from CSV or JSON lines; the agent
answers with a label.

``table:FILE.toml`` names the definition of a data set, ``table:FILE.csv`` or ``.jsonl`` a file with
the columns ``id`` and ``label``. ``table`` is a small sample. Labels stay on the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from hyperdomain_table.definition import Definition, load_definition
from hyperdomain_table.rows import Row, read_rows
from hyperruntime.datasets.left_out import LeftOut
from hyperruntime.domain import DomainBase, Score, Split, Task

__all__ = ["Table"]

NO_ANSWER = "none"
_MAX_CHARACTERS = 1000


class Table(DomainBase):
    """Answer each row of a table with its label.

    Attributes:
        name: the definition's name.
        description: the definition's description.
        splits: one split for each file of the definition.
        image: the image recipe of the containers.
        parallel_tasks: True, because agents mostly wait for a model.
        agent: the agent template of the definition.
        task_timeout_s: the deadline of one row, in seconds.
    """

    parallel_tasks: bool = True

    def __init__(self, source: str | None = None, *, folder: Path | None = None) -> None:
        """Read the definition; the rows are read when they are first needed.

        Args:
            source: the path of a definition or of a table; None means the sample.
            folder: the directory of the tables; None means that of the definition.

        Raises:
            SpecError: the definition is invalid or cannot be read.
        """
        self.definition: Definition = load_definition(source, folder)
        self.name: str = self.definition.name
        self.description: str = self.definition.description
        self.splits: tuple[Split, ...] = tuple(self.definition.files)
        self.image: str = self.definition.image
        self.agent: str = self.definition.agent
        self.task_timeout_s: float = self.definition.task_timeout_s
        self._left = LeftOut()

    @cached_property
    def _rows(self) -> dict[str, dict[str, Row]]:
        """The rows of each split, by id, in the order of the file."""
        several = len(self.definition.files) > 1
        return {
            split.name: read_rows(
                self.definition, path, self._left, f"{split.name}, " if several else ""
            )
            for split, path in self.definition.files.items()
        }

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why rows are not among the tasks, by name.

        Raises:
            SpecError: a file cannot be read or has no valid row.
        """
        assert self._rows
        return self._left.reasons

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        """The definition's ordered labels, or all labels of the rows."""
        seen = {row.label for rows in self._rows.values() for row in rows.values()}
        return self.definition.ordered or tuple(sorted(seen))

    def row(self, task: Task) -> Row:
        """Return a task's row; splits may share ids, so the inputs are compared too."""
        found = (rows.get(task.id) for rows in self._rows.values())
        return next(row for row in found if row is not None and row.inputs == task.inputs)

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the rows of a split, without their labels, in the order of the file.

        Args:
            split: the name of the split.
            limit: the largest number of rows; None means all.

        Raises:
            KeyError: the split is unknown.
            SpecError: a file cannot be read, or has no valid row; others are left out.
        """
        rows = self._rows[split]
        return tuple(Task(id=task_id, inputs=row.inputs) for task_id, row in rows.items())[:limit]

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401 - any JSON value an agent may return
        """Return 1 for the row's label, 0 for another label, and an invalid 0 for any other answer.

        The facts hold the right label; they stay on the host. The detail does not, because later
        agents may read it.
        """
        label = self.row(task).label
        said = _as_label(prediction, self._labels)
        detail = "right" if said == label else "wrong"
        if said is None:
            detail = f"the answer is not one of the {len(self._labels)} labels"
        facts = {"label": label, "said": said}
        return Score(
            task_id=task.id,
            value=float(said == label),
            valid=said is not None,
            detail=detail,
            facts=facts,
        )

    def report(self, split: str, scores: Sequence[Score]) -> Mapping[str, Any]:
        """Return accuracy, precision and recall per label, distributions, and the ids of right and
        wrong answers.

        It does not name the label of any row, because agents may read it.

        Source: HyperAgents' report.json (overall_accuracy and the other keys).
        """
        pairs = [(score.facts["label"], score.facts["said"]) for score in scores]
        correct = sum(label == said for label, said in pairs)
        accuracy = correct / len(pairs) if pairs else 0.0
        truth = Counter(label for label, _ in pairs)
        report: dict[str, Any] = {
            "domain": self.name,
            "split": split,
            "score": accuracy,
            "overall_accuracy": accuracy,
            "total_correct": correct,
            "total": len(pairs),
            "valid": sum(score.valid for score in scores),
            "accuracy_by_ground_truth": {label: _of_label(label, pairs) for label in sorted(truth)},
            "label_distribution": _distributions(pairs),
            "random_guess_accuracy": 1 / len(truth) if truth else 0.0,
            "question_ids_failed": [score.task_id for score in scores if not score.value],
            "question_ids_passed": [score.task_id for score in scores if score.value],
        }
        if ordered := self.definition.ordered:
            points = self.definition.points or tuple(range(len(ordered)))
            report["normalized_mean_absolute_error"] = _mean_distance(
                pairs, dict(zip(ordered, points, strict=True))
            )
        return report


def _as_label(prediction: object, labels: Sequence[str]) -> str | None:
    """Return the label that an answer names, ignoring case and surrounding space; None if there is
    no single one.
    """
    if type(prediction) not in (str, int, float, bool):
        return None
    text = str(prediction).strip()
    if len(text) > _MAX_CHARACTERS:
        return None
    if text in labels:
        return text
    alike = [label for label in labels if label.casefold() == text.casefold()]
    return alike[0] if len(alike) == 1 else None


def _of_label(label: str, pairs: Sequence[tuple[str, str | None]]) -> Mapping[str, float | int]:
    total = sum(right == label for right, _ in pairs)
    said = sum(answer == label for _, answer in pairs)
    correct = sum(right == label and answer == label for right, answer in pairs)
    return {
        "precision": correct / said if said else 0.0,
        "recall": correct / total if total else 0.0,
        "correct": correct,
        "total": total,
    }


def _distributions(pairs: Sequence[tuple[str, str | None]]) -> Mapping[str, Mapping[str, float]]:
    """Return the share of each label among the rows and among the answers."""
    truth = Counter(label for label, _ in pairs)
    said = Counter(NO_ANSWER if answer is None else answer for _, answer in pairs)
    return {
        "ground_truth": {label: truth[label] / len(pairs) for label in sorted(truth)},
        "prediction": {label: said[label] / len(pairs) for label in sorted(said)},
    }


def _mean_distance(pairs: Sequence[tuple[str, str | None]], points: Mapping[str, float]) -> float:
    """Return the mean distance of the answers in points, as a share of the largest distance; a
    missing answer counts as 1.
    """
    most = max(points.values()) - min(points.values())
    away = [
        1.0 if said is None else abs(points[label] - points[said]) / most for label, said in pairs
    ]
    return sum(away) / len(away) if away else 0.0
