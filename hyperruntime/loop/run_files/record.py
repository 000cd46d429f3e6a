"""The record of a finished generation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import attrs

from hyperruntime.gateway.log.budget import Spent
from hyperruntime.loop.run_files.parent_rules import GenId

FailureClass = Literal[
    "agent", "empty-diff", "refused-patch", "does-not-load", "evaluation", "timeout", "budget", "infrastructure"
]
FAILURES: tuple[str, ...] = get_args(FailureClass)
SCHEMA = 1
_NUMBERS = (int, float)  # and not bool, which is an int


@attrs.frozen(kw_only=True)
class GenerationRecord:
    """A finished generation, failed or not.

    Attributes:
        genid: ``"initial"`` or the generation's number.
        parent: id of its parent; None for the first generation.
        score: mean over the domains, used to select parents; None if the generation has no score.
        scores: per domain, the score of each evaluated split.
        valid_parent: whether it may become a parent.
        failure: class of the failure, or None.
        detail: one sentence about the failure, or "".
        commit: its state in the run's repository; the parent's commit if it has no own state.
        durations: seconds per step.
        started: start time, ISO 8601 in UTC.
        dropped: ``(path, reason)`` of each change that is not in its diff.
        staged_only: whether the evaluation stopped after its first, cheap stage.
        attempts: number of attempts; there is more than one after infrastructure failures.
        archived: number of archived generations when its parent was chosen; needed to reproduce that choice.
        usage: use of models in all attempts; None if the run has no models.
    """

    genid: GenId
    parent: GenId | None = None
    score: float | None = None
    scores: Mapping[str, Mapping[str, float]] = attrs.field(factory=dict)
    valid_parent: bool = False
    failure: FailureClass | None = None
    detail: str = ""
    commit: str = ""
    durations: Mapping[str, float] = attrs.field(factory=dict)
    started: str = ""
    dropped: tuple[tuple[str, str], ...] = ()
    staged_only: bool = False
    attempts: int = 1
    archived: int = 0
    usage: Spent | None = None


def record_to_json(record: GenerationRecord) -> dict[str, Any]:
    """Return a record as a line of the journal."""
    value = attrs.asdict(record)
    return {
        "schema": SCHEMA,
        "current_genid": value.pop("genid"),
        "parent_genid": value.pop("parent"),
        **value,
    }


def record_from_json(value: object) -> GenerationRecord:
    """Return the record of a journal line; missing fields get their defaults.

    Raises:
        ValueError: the line is not a valid record.
    """
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the text is invalid, not the caller's type
    failure = value.get("failure")
    if failure is not None and failure not in FAILURES:
        raise ValueError(f"unknown failure class {failure!r}")
    return GenerationRecord(
        genid=genid_from_json(value.get("current_genid")),
        parent=None if value.get("parent_genid") is None else genid_from_json(value["parent_genid"]),
        score=_number(value.get("score")),
        scores=_scores(value.get("scores")),
        valid_parent=value.get("valid_parent") is True,
        failure=failure,
        detail=_text(value.get("detail")),
        commit=_text(value.get("commit")),
        durations=_numbers(value.get("durations")),
        started=_text(value.get("started")),
        dropped=_pairs(value.get("dropped")),
        staged_only=value.get("staged_only") is True,
        attempts=value["attempts"] if isinstance(value.get("attempts"), int) else 1,
        archived=value["archived"] if isinstance(value.get("archived"), int) else 0,
        usage=_usage(value.get("usage")),
    )


def genid_from_json(value: object) -> GenId:
    """Return a JSON value as a generation id.

    Raises:
        ValueError: the value is not a generation id.
    """
    if value == "initial" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        assert isinstance(value, (str, int))
        return value
    raise ValueError(f"not a generation id: {value!r}")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    return float(value) if type(value) in _NUMBERS and math.isfinite(value) else None  # type: ignore[arg-type]


def _numbers(value: object) -> dict[str, float]:
    items = value.items() if isinstance(value, dict) else ()
    return {str(name): float(number) for name, number in items if type(number) in _NUMBERS and math.isfinite(number)}


def _usage(value: object) -> Spent | None:
    if not isinstance(value, dict):
        return None
    counts = {name: int(_number(value.get(name)) or 0) for name in ("requests", "input_tokens", "output_tokens")}
    return Spent(**counts, money=_number(value.get("money")) or 0.0)


def _scores(value: object) -> dict[str, dict[str, float]]:
    return {str(name): _numbers(splits) for name, splits in value.items()} if isinstance(value, dict) else {}


def _pairs(value: object) -> tuple[tuple[str, str], ...]:
    items = value if isinstance(value, list) else []
    return tuple((str(item[0]), str(item[1])) for item in items if isinstance(item, list) and len(item) == 2)
