"""``journal.jsonl``: the append-only journal of the finished generations.

A line is the record of a generation, or a *mark*: a fact about an earlier generation, for example
that it may no longer become a parent. So written lines never change.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import attrs

from hyperruntime.errors import ArchiveError
from hyperruntime.gateway.log.budget import Spent
from hyperruntime.json_values import is_integer, parse_json
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.settings.reader import read
from hyperruntime.storage.run_files import read_run_lines
from hyperruntime.units import MIB

FailureClass = Literal[
    "agent",
    "empty-diff",
    "refused-patch",
    "does-not-load",
    "evaluation",
    "timeout",
    "budget",
    "infrastructure",
]
MarkKind = Literal["no-parent", "no-selection"]
FAILURES: tuple[str, ...] = get_args(FailureClass)
# What may fail in a generation that has not failed itself.
ENSEMBLE = "ensemble"
TASKS = "tasks"
SCHEMA = 1
_MOST_LINE_BYTES = 16 * MIB  # a record has no text of an agent but a short detail
_MOST_GENID = 10**9
_MOST_NAME = 200
_GENIDS = ("genid", "parent", "by", "asked")  # fields that are generation ids
_Kind = TypeVar("_Kind")


@attrs.frozen(kw_only=True)
class GenerationRecord:
    """A finished generation, failed or not.

    Attributes:
        genid: ``"initial"`` or the generation's number.
        parent: id of its parent; None for the first generation.
        score: mean over the domains, used to select parents; None if the generation has no score.
        scores: per domain, the score of each evaluated split.
        metrics: per domain and evaluated split, the mean of each metric over the tasks that have
            it; empty for domains without metrics.
        valid_parent: whether it may become a parent.
        failure: class of the failure, or None.
        detail: one sentence about the failure, or "".
        ensemble_failure: one sentence if its ensemble could not be evaluated, or ""; its scores are
            then the agent's.
        unanswered: how many tasks have no answer, and the most common reason; "" if all have one.
        commit: its state in the run's repository; the parent's commit if it has no own state.
        durations: seconds per step.
        started: start time, ISO 8601 in UTC.
        dropped: ``(path, reason)`` of each change that is not in its diff.
        staged_only: whether the evaluation stopped after its first, cheap stage.
        attempts: number of attempts; there is more than one after infrastructure failures.
        archived: number of archived generations when its parent was chosen; needed to reproduce
            that choice.
        usage: use of models in all attempts; None if the run has no models.
        settings: the options at its time that may change scores and that a resume may change; empty
            if it was made by an earlier version.
    """

    genid: GenId
    parent: GenId | None = None
    score: float | None = None
    scores: Mapping[str, Mapping[str, float]] = attrs.field(factory=dict, hash=False)
    metrics: Mapping[str, Mapping[str, Mapping[str, float]]] = attrs.field(factory=dict, hash=False)
    valid_parent: bool = False
    failure: FailureClass | None = None
    detail: str = ""
    ensemble_failure: str = ""
    unanswered: str = ""
    commit: str = ""
    durations: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    started: str = ""
    dropped: tuple[tuple[str, str], ...] = ()
    staged_only: bool = False
    attempts: int = 1
    archived: int = 0
    usage: Spent | None = None
    settings: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    @property
    def trouble(self) -> tuple[str, str]:
        """Class and sentence of the failure: of the generation, else its ensemble, else its tasks.

        The first value is a class of ``FAILURES``, ``ENSEMBLE`` or ``TASKS``; it is "" if all went
        well.
        """
        if self.failure is not None:
            return self.failure, self.detail
        if self.ensemble_failure:
            return ENSEMBLE, self.ensemble_failure
        return (TASKS, self.unanswered) if self.unanswered else ("", self.detail)


@attrs.frozen(kw_only=True)
class GenerationMark:
    """A fact about a generation that was learned after it had finished.

    Attributes:
        kind: ``no-parent``: it may no longer become a parent; ``no-selection``: its own parent
            selection failed.
        genid: the generation.
        by: the later generation that showed the fact, or None.
        detail: one sentence for people, or "".
    """

    kind: MarkKind
    genid: GenId
    by: GenId | None = None
    detail: str = ""


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
    fields = _json_object(value)
    record = structured(
        GenerationRecord,
        {**fields, "genid": fields.get("current_genid"), "parent": fields.get("parent_genid")},
    )
    for figures in (record.scores, record.metrics):
        for name in (name for domain, splits in figures.items() for name in (domain, *splits)):
            if not _is_file_name(name):
                raise ValueError(f"the name {name[:100]!r} of a domain or split is not a file name")
    return record


def parent_problem(record: GenerationRecord, known: Container[object]) -> str:
    """Return why a generation cannot have its parent, as the end of a sentence; "" if it can.

    A parent was finished before its child. So records that pass this check have no cycles.

    Args:
        record: the generation.
        known: ids of the generations before it.
    """
    if record.parent is None or record.parent in known:
        return ""
    return f"its parent {record.parent} is not a generation before it"


def _is_file_name(name: str) -> bool:
    return (
        name not in ("", ".", "..")
        and "/" not in name
        and name.isprintable()
        and len(name) <= _MOST_NAME
    )


def mark_to_json(mark: GenerationMark) -> dict[str, Any]:
    """Return a mark as a line of the journal."""
    value = attrs.asdict(mark)
    return {"schema": SCHEMA, "mark": value.pop("kind"), **value}


def read_journal(
    path: Path, problems: list[str]
) -> Iterator[tuple[int, GenerationRecord | GenerationMark]]:
    """Yield the number and the content of each readable line.

    Args:
        path: the journal; it may be missing.
        problems: receives one sentence for each line that cannot be read.

    Raises:
        ArchiveError: the file cannot be read.
    """
    try:
        for number, line in enumerate(
            read_run_lines(path, below=path.parent, most_bytes=_MOST_LINE_BYTES), 1
        ):
            if (entry := entry_of_line(line, number, path.name, problems)) is not None:
                yield number, entry
    except FileNotFoundError:
        return
    except OSError as error:
        raise ArchiveError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def entry_of_line(
    line: bytes, number: int, name: str, problems: list[str]
) -> GenerationRecord | GenerationMark | None:
    """Return the content of a line of the journal; None if it is blank or damaged.

    Args:
        line: the line.
        number: its number.
        name: of the journal.
        problems: receives one sentence about a damaged line.
    """
    if not line.strip():
        return None
    try:
        value = parse_json(line, finite=True)
        if isinstance(value, dict) and "mark" in value:
            return structured(GenerationMark, {**value, "kind": value["mark"]})
        return record_from_json(value)
    except (ValueError, OverflowError, RecursionError) as error:
        problems.append(f"line {number} of {name} is damaged and was skipped: {error}")
        return None


def structured(kind: type[_Kind], value: Mapping[str, Any]) -> _Kind:
    """Return an object of an attrs class from its fields as JSON values; unknown fields are
    ignored.

    Raises:
        ValueError: a field is missing or not valid.
    """
    made = read(kind, value, f"the {kind.__name__}", strict=False)
    for name in _GENIDS:
        if (genid := getattr(made, name, None)) is not None:
            genid_from_json(genid)
    return made


def _json_object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        kind = type(value).__name__  # not the value, which may be long
        raise ValueError(f"not a JSON object but a {kind}")  # noqa: TRY004 - the text is invalid, not an argument
    return value


def genid_from_json(value: object) -> GenId:
    """Return a JSON value as a generation id.

    Raises:
        ValueError: the value is not a generation id.
    """
    if value == "initial":
        return "initial"
    if is_integer(value) and 0 <= value <= _MOST_GENID:
        return value
    raise ValueError(f"not a generation id: {str(value)[:100]!r}")
