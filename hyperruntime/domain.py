"""The interface of domains: the tasks and scores against which agents evolve.

A domain runs on the host. Only ``Task.inputs`` enters a container; labels and the scoring code
never do. A class with the members of ``Domain`` is a domain; ``DomainBase`` has those that it may
leave out. It is also a ``TriedDomain`` if it runs the answers, a ``DialogueDomain`` if its
tasks have several turns, and a ``CertifiedDomain`` if it certifies records. Design:
docs/design/loop.md#domains. Guide: docs/writing-a-domain.md.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.json_values import is_number

SPLITS = ("train", "val", "test")
_METRIC = re.compile(r"[A-Za-z0-9_.-]{1,60}")


def is_metric_name(name: object) -> bool:
    """Return whether a metric may have this name."""
    return isinstance(name, str) and _METRIC.fullmatch(name) is not None


def _check_metrics(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401 - checked
    """Check metrics, as an attrs validator."""
    for name, number in value.items():
        if not is_metric_name(name):
            allowed = "names of 1 to 60 letters, digits, '_', '-' and '.'"
            raise SpecError(attribute.name, name, allowed)
        if not is_number(number):
            raise SpecError(f"{attribute.name}[{name!r}]", number, "a finite number")


@attrs.frozen(kw_only=True)
class Task:
    """One problem as the agent sees it, without its label.

    Attributes:
        id: unique within the domain and split; letters, digits, ``-``, ``_`` and ``.``.
        inputs: JSON values that ``TaskAgent.forward`` receives.

    Example:
        >>> hr.Task(id="circles-26", inputs={"n": 26}).inputs
        {'n': 26}
    """

    id: str
    inputs: Mapping[str, Any] = attrs.field(hash=False)


@attrs.frozen(kw_only=True)
class Score:
    """The verdict on one prediction.

    Attributes:
        task_id: id of the task.
        value: in [0, 1], unless the domain defines another range (a new record may exceed 1); 0.0
            if invalid.
        valid: whether the prediction was well formed and feasible.
        detail: one readable sentence: why it is invalid, or the raw value.
        facts: raw values for reports; JSON values.
        metrics: more figures of the answer by name, as finite numbers; they do not select parents,
            but rules such as ``map_elites`` use them. Their means over the tasks are in each
            generation's record.

    Example:
        >>> score = hr.Score(task_id="circles-26", value=0, valid=False, detail="they overlap")
        >>> score.valid, score.detail
        (False, 'they overlap')
    """

    task_id: str
    value: float
    valid: bool
    detail: str = ""
    facts: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    metrics: Mapping[str, float] = attrs.field(factory=dict, hash=False, validator=_check_metrics)


@attrs.frozen(kw_only=True)
class Split:
    """One part of a domain's tasks; every domain has ``train``.

    Attributes:
        name: one of ``SPLITS``.
        staged_samples: number of tasks in the first, cheap stage; 0 is no first stage.
        staged_threshold: the full stage runs if the mean score of the first stage is above this.
        staged_inclusive: whether a mean score equal to the threshold is enough.

    Example:
        >>> train = hr.Split(name="train", staged_samples=5, staged_threshold=0.2)
        >>> train.is_passed(0.3)
        True
    """

    name: str = attrs.field(validator=attrs.validators.in_(SPLITS))
    staged_samples: int = attrs.field(
        default=0, validator=(attrs.validators.instance_of(int), attrs.validators.ge(0))
    )
    staged_threshold: float = attrs.field(
        default=0.0, validator=attrs.validators.instance_of((int, float))
    )
    staged_inclusive: bool = attrs.field(
        default=False, validator=attrs.validators.instance_of(bool)
    )

    def is_passed(self, staged_mean: float) -> bool:
        """Return whether the full stage runs after a first stage with this mean score."""
        return staged_mean > self.staged_threshold or (
            self.staged_inclusive and staged_mean == self.staged_threshold
        )


@attrs.frozen(kw_only=True)
class Trial:
    """A command that tests an answer in a fresh container, which is removed afterwards.

    The answer may contain the code that runs, so output and exit code are not trusted. The domain
    compares them with expected values that stay on the host.

    Attributes:
        args: argv; runs in a directory that contains ``files``.
        files: contents by relative path; a path with ``/`` makes folders.
        input: standard input of the command.
        timeout_s: seconds it may take.
        output_limit_bytes: bytes kept of its standard output, and of its standard error.
        gpu: whether the container has the run's GPUs, if the domain needs one.
        then: gets the result and returns the trial that follows in another fresh container, or the
            score; never raises on a hostile result. None: :meth:`TriedDomain.verdict` gets it.
    """

    args: tuple[str, ...]
    files: Mapping[str, str | bytes] = attrs.field(factory=dict, hash=False)
    input: bytes = b""
    timeout_s: float = 60.0
    output_limit_bytes: int = 1024**2
    gpu: bool = False
    then: Callable[[TrialResult], Trial | Score] | None = None


@attrs.frozen(kw_only=True)
class TrialResult:
    """The result of a trial; none of it is trusted.

    Attributes:
        exit_code: exit code of the command.
        stdout: its standard output; of long output the head and the tail.
        stderr: its standard error, likewise.
        timed_out: whether it was killed at its deadline.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False


class Dialogue(Protocol):
    """One task in progress, on the host; the agent in its container receives only the inputs of
    each turn.
    """

    def begin(self) -> Mapping[str, Any]:
        """Return the inputs of the agent's first turn, as JSON values."""
        ...

    def reply(self, prediction: Any) -> Mapping[str, Any] | None:  # noqa: ANN401 - any JSON value
        """Return the inputs of the next turn, or None when the task is over; never raises on a
        hostile prediction.
        """
        ...

    def outcome(self, problem: str | None) -> Any:  # noqa: ANN401 - any JSON value
        """Return the value that is scored and stored as the task's prediction; called once, at the
        end.

        Args:
            problem: why the agent did not continue; None if the task ended normally.
        """
        ...

    def close(self) -> None:
        """Release the resources of the task."""
        ...


class Domain(Protocol):
    """A domain; its class is loaded from the entry-point group ``hyperruntime.domains``.

    The class is called without arguments, or with ``ARGUMENT`` if the user writes
    ``NAME:ARGUMENT``.

    Attributes:
        name: the entry point's name, or a name made with the argument; letters, digits, ``-``,
            ``_`` and ``.``.
        description: one line for ``hyperrun domains``.
        splits: the splits in the order of evaluation; parents are selected by the last one named
            ``val``, else by ``train``.
        image: name of the recipe in ``containers/`` for its containers.
        needs_gpu: whether its tasks need a GPU.
        agent: name of the agent template for it; the domain's package may publish one
            (``hyperruntime.agents``).
        protected_paths: paths of an agent repository that no patch may change (directories end with
            ``/``); ``PATH#MARKER`` protects the lines of a file that are not between one with
            ``MARKER-START`` and one with ``MARKER-END``.
        task_timeout_s: seconds that one task may take, all turns together.

    What it may leave out, with the defaults: :class:`DomainBase`. ``interface_version`` of the
    class is the version of this interface for which it was written (docs/versions.md).

    Example:
        >>> from hyperdomain_math.packing import CirclePacking
        >>> domain: hr.Domain = CirclePacking()
        >>> domain.name, domain.splits[0].name
        ('circle_packing', 'train')
    """

    name: str
    description: str
    splits: tuple[Split, ...]
    image: str
    needs_gpu: bool
    agent: str
    protected_paths: tuple[str, ...]
    task_timeout_s: float

    @abstractmethod
    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the tasks of a split, always in the same order.

        Args:
            split: name of the split.
            limit: maximum number of tasks; None means all.

        Raises:
            KeyError: the split does not exist.
        """
        ...

    @abstractmethod
    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401 - any JSON value an agent may return
        """Return the score of a prediction; never raises on a malformed or hostile one.

        For a task without an answer the prediction is None; the score then only supplies ``facts``,
        and the task counts as invalid with value 0.

        Args:
            task: a task of this domain.
            prediction: the agent's answer, any JSON value.
        """
        ...

    @abstractmethod
    def report(self, split: str, scores: Sequence[Score]) -> Mapping[str, Any]:
        """Return the JSON summary of a split, with at least ``score`` (usually the mean) and
        ``total``.

        Args:
            split: name of the split.
            scores: the scores of its tasks, in their order.
        """
        ...

    @abstractmethod
    def picture(self, task: Task, prediction: Any) -> str | None:  # noqa: ANN401
        """Return an SVG document that shows a prediction, or None if it cannot be drawn.

        Args:
            task: a task of this domain.
            prediction: the agent's answer, any JSON value.
        """
        ...


@runtime_checkable
class TriedDomain(Protocol):
    """A domain that runs answers before it scores them; its ``score`` is not called."""

    def trial(self, task: Task, prediction: Any) -> Trial | Score:  # noqa: ANN401
        """Return the trial to run, or the score if no trial is needed; never raises on a malformed
        prediction.

        Args:
            task: a task of this domain.
            prediction: the agent's answer, any JSON value.
        """
        ...

    def verdict(self, task: Task, prediction: Any, result: TrialResult) -> Score:  # noqa: ANN401
        """Return the score for the result of a trial; never raises on a hostile result.

        Args:
            task: a task of this domain.
            prediction: the agent's answer, any JSON value.
            result: output and end of the trial.
        """
        ...


@runtime_checkable
class DialogueDomain(Protocol):
    """A domain whose tasks have several turns; ``score`` receives the outcome of the dialogue."""

    def dialogue(self, task: Task) -> Dialogue:
        """Return a new dialogue for a task."""
        ...


@runtime_checkable
class CertifiedDomain(Protocol):
    """A domain that knows records, and keeps better answers with certificates that
    ``hyperrun certify`` checks from their file alone.
    """

    def certificate(self, score: Score, prediction: Any) -> Mapping[str, Any] | None:  # noqa: ANN401
        """Return the certificate of an answer that is a new record, or None.

        Its key ``domain`` is the name of the domain's entry point. The other keys are the domain's
        own; all values are JSON.

        Args:
            score: the score of the answer.
            prediction: the answer, any JSON value.
        """
        ...

    def certify(self, certificate: Mapping[str, Any]) -> Score:
        """Return the score of the answer in a certificate; invalid if the certificate is wrong.

        Args:
            certificate: a JSON object, of which nothing is trusted.

        Raises:
            SpecError: it is not a certificate of this domain.
        """
        ...


def mean_metrics(scores: Sequence[Score]) -> dict[str, float]:
    """Return the mean of each metric over the tasks that have it; names in alphabetical order."""
    names = sorted({name for score in scores for name in score.metrics})
    found = {n: [one.metrics[n] for one in scores if n in one.metrics] for n in names}
    # divided first: a sum may be above all floats
    return {n: math.fsum(x / len(values) for x in values) for n, values in found.items()}


def mean_report(domain: str, split: str, scores: Sequence[Score]) -> dict[str, Any]:
    """Return the standard report of a split: the mean score, the counts, the means of the metrics
    if there are any, and the facts and metrics of every task.

    Args:
        domain: name of the domain.
        split: name of the split.
        scores: one score for each task; their values may lie outside of [0, 1].
    """
    means = mean_metrics(scores)
    return {
        "domain": domain,
        "split": split,
        "score": math.fsum(score.value for score in scores) / len(scores) if scores else 0.0,
        **({"metrics": means} if means else {}),
        "total": len(scores),
        "valid": sum(score.valid for score in scores),
        "tasks": {
            score.task_id: {
                "score": score.value,
                "valid": score.valid,
                "detail": score.detail,
                **({"metrics": dict(score.metrics)} if score.metrics else {}),
                **score.facts,
            }
            for score in scores
        },
    }


class DomainBase(Domain):
    """A base class for domains: what they may leave out, and usual values of what they may not.

    A domain needs no base class: one without it gets the same defaults when it is loaded. With it,
    type checkers know these members: they check their types, and refuse a misspelled one that is
    marked with ``typing.override``.

    Attributes:
        container_per_task: whether each task runs in a fresh container.
        parallel_tasks: whether ``--eval-workers`` tasks run at once, and dialogues are called from
            several threads; for agents that mostly wait for a model or a simulation.
        needs: key of a report that agents may see for each split; "" for none.
    """

    image: str = "base"
    needs_gpu: bool = False
    protected_paths: tuple[str, ...] = ("hyperrun.toml", "domains/")
    container_per_task: bool = False
    parallel_tasks: bool = False
    needs: str = ""

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why rows of a data set are not among the tasks, by name; see
        :class:`~hyperruntime.datasets.left_out.LeftOut`.
        """
        return {}

    def report(self, split: str, scores: Sequence[Score]) -> Mapping[str, Any]:
        """Return :func:`mean_report`."""
        return mean_report(self.name, split, scores)

    def picture(self, task: Task, prediction: Any) -> str | None:  # noqa: ANN401 - any JSON value
        """Return None: there is no picture."""
        return None

    def picture_png(self, task: Task, prediction: Any) -> bytes | None:  # noqa: ANN401
        """Return a PNG image that shows a prediction, or None."""
        return None
