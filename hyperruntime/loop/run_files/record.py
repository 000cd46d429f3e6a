"""What a run remembers of a generation."""

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
        genid: ``"initial"`` or its number.
        parent: id of the generation it was made from; None for the first.
        score: what parents are selected by: the mean over the domains; None where it has none.
        scores: per domain, the score of each split that was evaluated.
        valid_parent: whether it may become a parent.
        failure: the class of what went wrong, or None.
        detail: one sentence on what went wrong, or "".
        commit: its state in the run's repository; the parent's where it has none of its own.
        durations: seconds per step.
        started: when, ISO 8601 in UTC.
        dropped: ``(path, reason)`` of the changes that were left out of its diff.
        staged_only: whether it was stopped after the first, cheap stage of evaluation.
        attempts: how often it was tried because the infrastructure failed.
        archived: how many generations were archived when its parent was chosen; with the seed, its number and those
            generations that choice can be made again.
        usage: of models, with all attempts; None where the run has none.
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
    """Return the record of a line; fields that are missing have their defaults.

    Raises:
        ValueError: it is no record.
    """
    if not isinstance(value, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - it is the text that is wrong
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
    """Return the generation id that a JSON value is.

    Raises:
        ValueError: it is none.
    """
    if value == "initial" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        assert isinstance(value, (str, int))
        return value
    raise ValueError(f"no generation id: {value!r}")


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
