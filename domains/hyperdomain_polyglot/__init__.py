"""The domain ``polyglot``: programming exercises; the agent writes the files, hidden tests decide.

``polyglot`` alone has a dozen Python exercises of our own. ``polyglot:DIRECTORY`` reads a directory in the layout of
the public polyglot benchmark, ``LANGUAGE/exercises/practice/NAME``; ``polyglot:DIRECTORY/LANGUAGE`` one language of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hyperdomain_polyglot.answer import UNCHANGED, parse_answer
from hyperdomain_polyglot.exercise import Exercise
from hyperdomain_polyglot.layout import read_directory
from hyperdomain_polyglot.report import polyglot_report
from hyperdomain_polyglot.shipped import read_shipped
from hyperruntime.domain import Domain, Score, Split, Task, Trial, TrialResult, TriedDomain

__all__ = ["Polyglot"]

_SHIPPED = (Split(name="train", staged_samples=3, staged_threshold=0.3), Split(name="val"))
_DIRECTORY = (Split(name="train", staged_samples=10, staged_threshold=0.4, staged_inclusive=True),)


class Polyglot:
    """Write programs that pass tests which the agent does not see.

    Attributes:
        name: the entry point's name.
        description: one line for ``hyperrun domains``.
        splits: our own exercises in two parts, or all of a directory.
        image: the recipe its containers run; a language needs its toolchain there.
        needs_gpu: never.
        agent: the template that answers with files.
        protected_paths: the contract file, and where a repository would keep harness files.
        task_timeout_s: seconds one exercise may take the agent.
        container_per_task: an agent that tries its programs leaves nothing for the next exercise.
        parallel_tasks: agents mostly wait for a model.
    """

    name: str = "polyglot"
    description: str = "programming exercises with hidden tests"
    image: str = "base"
    needs_gpu: bool = False
    agent: str = "llm"
    protected_paths: tuple[str, ...] = ("hyperrun.toml", "domains/")
    task_timeout_s: float = 600.0
    container_per_task: bool = True
    parallel_tasks: bool = True

    def __init__(self, directory: str | None = None) -> None:
        """Take a directory of exercises, or our own; they are read when they are asked for."""
        self._directory = directory
        self.splits: tuple[Split, ...] = _SHIPPED if directory is None else _DIRECTORY

    @cached_property
    def _exercises(self) -> Mapping[str, Mapping[str, Exercise]]:
        """The exercises of each split by id.

        Raises:
            SpecError: the directory holds none, or one that cannot be read.
        """
        if self._directory is None:
            return read_shipped()
        return {"train": read_directory(self._directory)}

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the exercises of a split without their tests; at most ``limit`` of them.

        Raises:
            KeyError: no split has this name.
            SpecError: an exercise cannot be read.
        """
        exercises = self._exercises[split]
        return tuple(Task(id=name, inputs=exercise.inputs) for name, exercise in exercises.items())[:limit]

    def trial(self, task: Task, prediction: Any) -> Trial | Score:  # noqa: ANN401 - any JSON value an agent may return
        """Return the answer with its tests, to be run; or 0 for an answer that is none."""
        exercise = self._exercise(task)
        files, problem = parse_answer(prediction, exercise.files)
        if problem:
            facts = {"result": "empty_patch" if prediction is None or problem == UNCHANGED else "error"}
            return Score(task_id=task.id, value=0.0, valid=False, detail=problem, facts=facts)
        return exercise.tests.trial(files)

    def verdict(self, task: Task, prediction: Any, result: TrialResult) -> Score:  # noqa: ANN401
        """Return 1 where every test passed; what passed is compared on the host wherever the exercise allows it."""
        passed, total, detail = self._exercise(task).tests.count(result)
        resolved = total > 0 and passed == total
        facts = {"result": "resolved" if resolved else "unresolved", "passed": passed, "tests": total}
        return Score(task_id=task.id, value=float(resolved), valid=True, detail=detail, facts=facts)

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401
        """Return 0: an exercise is decided by a trial, and ``verdict`` says how."""
        return Score(task_id=task.id, value=0.0, valid=False, detail="not tried", facts={"result": "error"})

    def report(self, split: str, scores: Sequence[Score]) -> Mapping[str, Any]:
        """Return the part that is resolved, and which exercises are."""
        return polyglot_report(self.name, split, scores)

    def picture(self, task: Task, prediction: Any) -> str | None:  # noqa: ANN401
        """Return None: there is nothing to draw."""
        return None

    def _exercise(self, task: Task) -> Exercise:
        return next(items[task.id] for items in self._exercises.values() if task.id in items)


if TYPE_CHECKING:
    _conforms: type[Domain] = Polyglot
    _is_tried: type[TriedDomain] = Polyglot
