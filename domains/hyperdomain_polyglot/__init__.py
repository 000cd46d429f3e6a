"""The domain ``polyglot``: programming exercises; the agent writes files, and hidden tests score
them.

``polyglot`` has twelve Python exercises of its own. ``polyglot:DIRECTORY`` reads a directory in the
layout of the public polyglot benchmark, ``LANGUAGE/exercises/practice/NAME``;
``polyglot:DIRECTORY/LANGUAGE`` reads one language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from hyperdomain_polyglot.exercise import Exercise, read_directory, read_shipped
from hyperruntime.datasets.answered_files import parse_files
from hyperruntime.datasets.left_out import LeftOut
from hyperruntime.domain import DomainBase, Score, Split, Task, Trial, TrialResult, TriedDomain

__all__ = ["Polyglot"]

UNCHANGED = "the answer leaves the stub as it was"
_SHIPPED = (Split(name="train", staged_samples=3, staged_threshold=0.3), Split(name="val"))
_DIRECTORY = (Split(name="train", staged_samples=10, staged_threshold=0.4, staged_inclusive=True),)


class Polyglot(DomainBase, TriedDomain):
    """Write programs that pass tests which the agent does not see.

    Attributes:
        name: the name of the entry point.
        description: one line for ``hyperrun domains``.
        splits: ``train`` and ``val`` of our own exercises, or ``train`` with all exercises of a
            directory.
        image: the image recipe of the containers; it must have the toolchains of the languages.
        agent: the agent template.
        task_timeout_s: the agent's deadline for one exercise, in seconds.
        container_per_task: True: programs that an agent runs must leave nothing for the next
            exercise.
        parallel_tasks: True, because agents mostly wait for a model.
    """

    name: str = "polyglot"
    description: str = "programming exercises with hidden tests"
    agent: str = "llm"
    task_timeout_s: float = 600.0
    container_per_task: bool = True
    parallel_tasks: bool = True

    def __init__(self, directory: str | None = None) -> None:
        """Choose the exercises; they are read when they are first needed.

        Args:
            directory: a directory of exercises; None means our own exercises.
        """
        self._directory = directory
        self._left = LeftOut()
        self.splits: tuple[Split, ...] = _SHIPPED if directory is None else _DIRECTORY

    @cached_property
    def _exercises(self) -> Mapping[str, Mapping[str, Exercise]]:
        """The exercises of each split, by id.

        Raises:
            SpecError: the directory holds no exercise that can be read; others are left out.
        """
        if self._directory is None:
            return read_shipped()
        return {"train": read_directory(self._directory, self._left)}

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why exercises of the directory are not among the tasks, by name.

        Raises:
            SpecError: the directory holds no exercise that can be read.
        """
        assert self._exercises
        return self._left.reasons

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the exercises of a split, without their tests.

        Args:
            split: the name of the split.
            limit: the largest number of exercises; None means all.

        Raises:
            KeyError: the split is unknown.
            SpecError: the directory holds no exercise that can be read; others are left out.
        """
        exercises = self._exercises[split]
        return tuple(Task(id=name, inputs=exercise.inputs) for name, exercise in exercises.items())[
            :limit
        ]

    def trial(self, task: Task, prediction: Any) -> Trial | Score:  # noqa: ANN401 - any JSON value an agent may return
        """Return the trial that runs the hidden tests on an answer; a score of 0 for an invalid
        answer.
        """
        exercise = self._exercise(task)
        files, problem = parse_answer(prediction, exercise.files)
        if problem:
            facts = {
                "result": "empty_patch" if prediction is None or problem == UNCHANGED else "error"
            }
            return Score(task_id=task.id, value=0.0, valid=False, detail=problem, facts=facts)
        return exercise.tests.trial(files)

    def verdict(self, task: Task, prediction: Any, result: TrialResult) -> Score:  # noqa: ANN401
        """Return 1 if all tests passed, otherwise 0.

        Args:
            task: the exercise's task.
            prediction: the answer; unused.
            result: the result of the trial.
        """
        passed, total, detail = self._exercise(task).tests.count(result)
        resolved = total > 0 and passed == total
        facts = {
            "result": "resolved" if resolved else "unresolved",
            "passed": passed,
            "tests": total,
        }
        return Score(task_id=task.id, value=float(resolved), valid=True, detail=detail, facts=facts)

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401
        """Return 0: only a trial can score an exercise (:meth:`trial`, :meth:`verdict`)."""
        return Score(
            task_id=task.id, value=0.0, valid=False, detail="not tried", facts={"result": "error"}
        )

    def report(self, split: str, scores: Sequence[Score]) -> Mapping[str, Any]:
        """Return the share of resolved exercises, and the ids by result; the keys are this
        benchmark's usual ones.
        """
        ids = {
            kind: [score.task_id for score in scores if score.facts.get("result") == kind]
            for kind in ("resolved", "unresolved", "empty_patch", "error")
        }
        resolved = sum(score.value == 1.0 for score in scores)
        accuracy = resolved / len(scores) if scores else 0.0
        return {
            "domain": self.name,
            "split": split,
            "score": accuracy,
            "total": len(scores),
            "accuracy_score": accuracy,
            "total_resolved_instances": resolved,
            "total_submitted_instances": len(ids["resolved"]) + len(ids["unresolved"]),
            "total_instances": len(scores),
            # in the report's directory; holds each exercise's answer and score
            "files": ["predictions.jsonl"],
            "total_resolved_ids": ids["resolved"],
            "total_unresolved_ids": ids["unresolved"],
            "total_emptypatch_ids": ids["empty_patch"],
            "total_error_ids": ids["error"],
        }

    def _exercise(self, task: Task) -> Exercise:
        return next(items[task.id] for items in self._exercises.values() if task.id in items)


def parse_answer(prediction: object, stub: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the files of an answer and "", or no files and one sentence about the problem.

    An answer is as :func:`~hyperruntime.datasets.answered_files.parse_files` describes it, and
    changes something.

    Args:
        prediction: the answer, any JSON value.
        stub: the texts of the exercise's files, by path.
    """
    files, problem = parse_files(prediction, stub)
    return ({}, UNCHANGED) if files == dict(stub) else (files, problem)
