"""The seam of loggers, entry points in the group ``hyperruntime.loggers``.

An entry point names a function or a class that is called with the text after the colon of
``NAME:ARGUMENT``, or with "", and returns a :class:`RunLogger`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from hyperruntime.loop.run_files.record import GenerationRecord

# printed by the process of a logger whose library has begun the run
STARTED = "the logger has started"


@attrs.frozen(kw_only=True)
class LoggedRun:
    """A run that is logged.

    Attributes:
        name: of its directory.
        path: of its directory.
        study: name of its study's directory; "" for a run of no study.
        options: its options, as in ``run.json``.
        done: number of generations that an earlier process made and that are not logged again.
    """

    name: str
    path: str
    study: str
    options: Mapping[str, Any] = attrs.field(hash=False)
    done: int


class RunLogger(Protocol):
    """A receiver of a run. It is called in a process of its own, by one thread, in order.

    It may block and raise: the run goes on, and after an exception it is called no more.
    """

    def started(self, run: LoggedRun) -> None:
        """Begin with a run, new or resumed."""
        ...

    def archived(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the figures of a finished generation.

        Args:
            step: its place in the archive; 0 is the first generation.
            figures: see :func:`figures_of`.
        """
        ...

    def ended(self, state: str, reason: str) -> None:
        """End with the run.

        Args:
            state: ``finished`` or ``interrupted``.
            reason: why it was interrupted, or "".
        """
        ...


def figures_of(record: GenerationRecord, best: float | None) -> dict[str, float]:
    """Return the figures of a generation, without those that it does not have.

    ``score``, ``best`` (so far), ``failed`` (0 or 1), ``seconds``, ``requests``, ``tokens``,
    ``money``, ``DOMAIN/SPLIT`` for each score, and ``DOMAIN/SPLIT/METRIC`` for each metric.

    Args:
        record: the generation.
        best: the best score up to it, or None.
    """
    used = record.usage
    known: dict[str, float | None] = {
        "score": None if record.failure else record.score,
        "best": best,
        "failed": int(record.failure is not None),
        "seconds": sum(record.durations.values()),
        "requests": None if used is None else used.requests,
        "tokens": None if used is None else used.input_tokens + used.output_tokens,
        "money": None if used is None else used.money,
    }
    for domain, splits in record.scores.items():
        known.update({f"{domain}/{split}": score for split, score in splits.items()})
    for domain, found in record.metrics.items():
        for split, metrics in found.items():
            known.update({f"{domain}/{split}/{name}": one for name, one in metrics.items()})
    return {name: value for name, value in known.items() if value is not None}
