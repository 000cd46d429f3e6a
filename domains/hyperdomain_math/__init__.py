"""The domain ``math``: open problems of mathematics, whose answers are verified exactly.

``math:NAME`` is one problem, such as ``math:golomb-16``; ``math`` has all of them. A score of 1.0
is the record; more is a new one, which is kept with a certificate for ``hyperrun certify``. The
list of the problems, with the sources of the records: docs/problems.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyperdomain_math.exact import kind
from hyperdomain_math.judge import Verdict, judge
from hyperdomain_math.picture import frame
from hyperdomain_math.problem import Problem
from hyperdomain_math.table import PROBLEMS
from hyperruntime.domain import CertifiedDomain, DomainBase, Score, Split, Task
from hyperruntime.errors import SpecError, name_hint
from hyperruntime.registry import OURS, package_version

__all__ = ["Math"]

NAME = "math"
CPU_S = 6.0
"""Processor seconds of an evaluation; an agent that asks a model does not need them."""


class Math(DomainBase, CertifiedDomain):
    """Improve the record of an open problem.

    Attributes:
        name: ``math``, or ``math_NAME`` for one problem.
        description: one line for ``hyperrun domains``.
        splits: one split with one task for each problem.
        agent: the agent template, which needs no model.
        task_timeout_s: the deadline of one task, in seconds.
        parallel_tasks: True; agents that ask a model mostly wait.
    """

    agent: str = "solver"
    task_timeout_s: float = 600.0
    parallel_tasks: bool = True
    splits: tuple[Split, ...] = (Split(name="train"),)

    def __init__(self, problem: str | None = None) -> None:
        """Choose a problem; None means all.

        Raises:
            SpecError: there is no such problem.
        """
        if problem is not None and problem not in PROBLEMS:
            raise SpecError("domains", f"{NAME}:{problem}", name_hint(problem, PROBLEMS))
        self._problems: Mapping[str, Problem] = (
            PROBLEMS if problem is None else {problem: PROBLEMS[problem]}
        )
        self.name: str = NAME if problem is None else f"{NAME}_{problem}"
        self.description: str = f"open problems, verified exactly; {NAME}:NAME is one of them"

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return one task for each problem.

        Its inputs are the text and the form of an answer; and for agents that search without a
        model the name, a seed, and the processor seconds of the search.

        Args:
            split: ``train``.
            limit: the largest number of tasks; None means all.

        Raises:
            KeyError: the split is unknown.
        """
        if split != self.splits[0].name:
            raise KeyError(split)
        return tuple(
            Task(
                id=name,
                inputs={
                    "problem": problem.text,
                    "answer": problem.form,
                    "goal": problem.goal,
                    "name": name,
                    "seed": 1,
                    "cpu_s": CPU_S,
                },
            )
            for name, problem in self._problems.items()
        )[:limit]

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401 - any JSON value an agent may return
        """Return the value of an answer, measured by the record; 0 for an invalid one."""
        return _score(PROBLEMS[task.id], judge(task.id, prediction))

    def picture(self, task: Task, prediction: Any) -> str | None:  # noqa: ANN401
        """Return a valid answer as SVG; None for an invalid one."""
        verdict = judge(task.id, prediction, draw=True)
        if verdict.value is None:
            return None
        score = _score(PROBLEMS[task.id], verdict)
        return frame(verdict.shapes, f"{task.id}: {score.detail.partition(';')[0]}")

    def certificate(self, score: Score, prediction: Any) -> Mapping[str, Any] | None:  # noqa: ANN401
        """Return the certificate of an answer that is better than the record; None for others.

        Args:
            score: of the answer.
            prediction: the answer.
        """
        if not score.facts.get("is_record"):
            return None
        return {
            "certificate": 1,
            "domain": NAME,
            "problem": score.task_id,
            "value": score.facts["value"],
            "record": score.facts["record"],
            "version": package_version(OURS),
            "answer": prediction,
        }

    def certify(self, certificate: Mapping[str, Any]) -> Score:
        """Return the score of a certificate's answer; it is invalid if the value is not the stated
        one.

        Args:
            certificate: any JSON object.

        Raises:
            SpecError: it does not name a problem of this domain.
        """
        name = certificate.get("problem")
        if type(name) is not str or name not in PROBLEMS:
            raise SpecError("problem", name, name_hint(str(name)[:80], PROBLEMS))
        score = _score(PROBLEMS[name], judge(name, certificate.get("answer")))
        stated = certificate.get("value")
        if score.valid and stated != score.facts["value"]:
            shown = repr(stated)[:80] if type(stated) is str else kind(stated)
            return Score(
                task_id=name,
                value=0.0,
                valid=False,
                detail=f"the certificate states the value {shown}, but it is {score.facts['value']}",
            )
        return score


def _score(problem: Problem, verdict: Verdict) -> Score:
    if verdict.value is None:
        return Score(task_id=problem.name, value=0.0, valid=False, detail=verdict.refused)
    is_record = problem.is_new(verdict.value)
    value = verdict.value
    shown = str(value) if value.denominator == 1 else f"{float(value):.12g}"
    word = "a new record" if is_record else "no new record"
    return Score(
        task_id=problem.name,
        value=problem.score(value),
        valid=True,
        detail=f"{problem.value_name} {shown}, the record is {problem.record}; {word} "
        f"({problem.source})",
        facts={"value": str(value), "record": problem.record, "is_record": is_record},
    )
