"""A table of problems whose answers are texts that graders read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from hyperdomain_original.graders import POINTS, Graders, load_graders
from hyperdomain_table import Table
from hyperruntime.domain import Score, Task

_GUIDELINES = "Grading guidelines"
_MAX_CHARACTERS = 60_000
_NO_GRADE = "none"


class ProofDomain(Table):
    """Rows with a problem, a reference solution and guidelines; the answer is a text.

    Attributes:
        graders_file: the file of the graders, which only the user names; None: the default grader.
    """

    graders_file: Path | None = None

    @cached_property
    def graders(self) -> Graders:
        """The graders.

        Raises:
            GatewayConfigError: the file is invalid, or there is no model server.
            SpecError: a field of the file is invalid.
        """
        return load_graders(self.graders_file)

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the problems, if their graders can be asked.

        Args:
            split: the name of the split.
            limit: the largest number of problems; None means all.

        Raises:
            GatewayConfigError: the file of the graders is invalid, or there is no model server.
            KeyError: the split is unknown.
            SpecError: the table, or a field of ``[graders]``, is invalid.
        """
        found = super().tasks(split, limit)
        self.graders  # noqa: B018 - read now, and not after the first answer
        return found

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401 - any JSON value an agent may return
        """Return the points of a proof, as a share of the most points.

        The detail does not quote the graders, because they read the reference solution.

        Raises:
            BudgetExceededError: the budget of the graders is used up.
            GatewayError: a grader cannot be asked.
        """
        if not _is_proof(prediction):
            return Score(
                task_id=task.id,
                value=0.0,
                valid=False,
                detail=f"no proof: the answer is not a text of 1 to {_MAX_CHARACTERS} characters",
                facts={"grade": _NO_GRADE, "agreement": None, "grades": {}},
            )
        row = self.row(task)
        verdict = self.graders.grade(
            str(task.inputs["problem"]), row.label, row.hidden[_GUIDELINES], prediction
        )
        said = len(verdict.grades)
        agree = f"{round(verdict.agreement * said)} of {said} graders agree"
        return Score(
            task_id=task.id,
            value=POINTS[verdict.grade] / max(POINTS.values()),
            valid=True,
            detail=f"{verdict.grade}, {POINTS[verdict.grade]} of {max(POINTS.values())} points"
            f" ({agree if said else 'no grader ended its answer with a grade'})",
            facts={
                "grade": verdict.grade,
                "agreement": verdict.agreement,
                "grades": dict(verdict.grades),
            },
        )

    def report(self, split: str, scores: Sequence[Score]) -> Mapping[str, Any]:
        """Return the share of points and of correct proofs, the grades, and how often graders
        agree.

        Source: HyperAgents' report.json (points_percentage and the other keys).
        """
        grades = Counter(str(score.facts["grade"]) for score in scores)
        graded = [score.facts["agreement"] for score in scores if score.facts["grades"]]
        points = sum(score.value for score in scores) / len(scores) if scores else 0.0
        right = [score.task_id for score in scores if score.value == 1]
        return {
            "domain": self.name,
            "split": split,
            "score": points,
            "points_percentage": points,
            "correct_percentage": len(right) / len(scores) if scores else 0.0,
            "total": len(scores),
            "valid": sum(score.valid for score in scores),
            "label_distribution": {
                "prediction": {grade: grades[grade] / len(scores) for grade in sorted(grades)}
            },
            "grader_agreement": sum(graded) / len(graded) if graded else None,
            "question_ids_failed": [score.task_id for score in scores if score.value != 1],
            "question_ids_passed": right,
        }


def _is_proof(prediction: object) -> bool:
    """Return whether an answer is a text that a grader can be sent."""
    return (
        type(prediction) is str
        and 0 < len(prediction.strip()) <= _MAX_CHARACTERS
        and not any(0xD800 <= ord(character) <= 0xDFFF for character in prediction)
    )
