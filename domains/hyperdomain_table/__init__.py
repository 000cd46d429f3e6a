"""The domain ``table``: questions with known answers, read from CSV or JSON lines; the agent answers with a label.

``table:FILE.toml`` names the definition of a data set, ``table:FILE.csv`` or ``.jsonl`` a file with the columns ``id``
and ``label``. ``table`` is a small sample. Labels stay on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hyperdomain_table.definition import Definition, load_definition
from hyperdomain_table.report import table_report
from hyperdomain_table.rows import Row, read_rows
from hyperdomain_table.score import score_label
from hyperruntime.domain import Domain, Score, Split, Task

__all__ = ["Table"]


class Table:
    """Answer each row of a table with its label.

    Attributes:
        name: the definition's name.
        description: the definition's description.
        splits: one split for each file of the definition.
        image: the image recipe of the containers.
        needs_gpu: always False.
        parallel_tasks: True, because agents mostly wait for a model.
        agent: the agent template of the definition.
        protected_paths: the contract file, and the usual directory of harness files.
        task_timeout_s: the deadline of one row, in seconds.
    """

    needs_gpu: bool = False
    parallel_tasks: bool = True
    protected_paths: tuple[str, ...] = ("hyperrun.toml", "domains/")

    def __init__(self, source: str | None = None) -> None:
        """Read the definition; the rows are read when they are first needed.

        Args:
            source: the path of a definition or of a table; None means the sample.

        Raises:
            SpecError: the definition is invalid or cannot be read.
        """
        self.definition: Definition = load_definition(source)
        self.name: str = self.definition.name
        self.description: str = self.definition.description
        self.splits: tuple[Split, ...] = tuple(file.split for file in self.definition.files)
        self.image: str = self.definition.image
        self.agent: str = self.definition.agent
        self.task_timeout_s: float = self.definition.task_timeout_s

    @cached_property
    def _rows(self) -> dict[str, dict[str, Row]]:
        """The rows of each split, by id, in the order of the file."""
        return {file.split.name: read_rows(self.definition, file.path) for file in self.definition.files}

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        """The definition's ordered labels, or all labels of the rows."""
        seen = {row.label for rows in self._rows.values() for row in rows.values()}
        return self.definition.ordered or tuple(sorted(seen))

    def _label(self, task: Task) -> str:
        """Return a task's label; splits may share ids, so the inputs are compared too."""
        found = (rows.get(task.id) for rows in self._rows.values())
        return next(row.label for row in found if row is not None and row.inputs == task.inputs)

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the rows of a split, without their labels, in the order of the file.

        Args:
            split: the name of the split.
            limit: the largest number of rows; None means all.

        Raises:
            KeyError: the split is unknown.
            SpecError: a file cannot be read, or a row is invalid.
        """
        rows = self._rows[split]
        return tuple(Task(id=task_id, inputs=row.inputs) for task_id, row in rows.items())[:limit]

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401 - any JSON value an agent may return
        """Return 1 for the row's label, ignoring case and surrounding space; the detail does not reveal the label."""
        return score_label(task.id, self._label(task), prediction, self._labels)

    def report(self, split: str, scores: Sequence[Score]) -> Mapping[str, Any]:
        """Return accuracy, precision and recall per label, distributions, and the ids of right and wrong answers."""
        return table_report(self.name, split, scores, self.definition.ordered)

    def picture(self, task: Task, prediction: Any) -> str | None:  # noqa: ANN401
        """Return None: this domain has no pictures."""
        return None


if TYPE_CHECKING:
    _conforms: type[Domain] = Table
