"""A run's generations as a table or as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hyperruntime.cli.tables import Column, print_columns
from hyperruntime.gateway.log.budget import Spent
from hyperruntime.loop.run_files.archive import best_generation
from hyperruntime.loop.run_files.parent_rules import number_of
from hyperruntime.loop.run_files.record import (
    ENSEMBLE,
    FAILURES,
    TASKS,
    GenerationRecord,
    record_to_json,
)
from hyperruntime.units import format_duration

_DETAIL_CHARS = 90


def print_generations(
    records: Sequence[GenerationRecord], *, extra: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Print one row per generation: parent, scores, duration, failure; a star marks the best one.

    Args:
        records: the generations; printed in the order of their numbers.
        extra: more columns: heading -> generation id -> text.
    """
    print_columns(generation_columns(records, extra=extra))


def generation_columns(
    records: Sequence[GenerationRecord], *, extra: Mapping[str, Mapping[str, str]] | None = None
) -> list[Column]:
    """Return the table of :func:`print_generations`, with a row for each generation in the order of
    their numbers.
    """
    ordered = sorted(records, key=lambda record: number_of(record.genid))
    best = best_generation(records)
    many = (
        len({domain for record in records for domain, splits in record.scores.items() if splits})
        > 1
    )
    scores = [_split_scores(record, many=many) for record in ordered]
    columns = [
        Column(
            name="generation",
            texts=[f"{record.genid}{' *' if record is best else ''}" for record in ordered],
            values=[number_of(record.genid) for record in ordered],
            is_right=False,
        ),
        Column(
            name="parent",
            texts=["" if record.parent is None else str(record.parent) for record in ordered],
            values=[
                None if record.parent is None else number_of(record.parent) for record in ordered
            ],
            is_right=False,
        ),
        _number_column("score", [record.score for record in ordered], "{:.4f}"),
    ]
    splits = dict.fromkeys(name for found in scores for name in found)
    columns += [
        _number_column(name, [found.get(name) for found in scores], "{:.4f}") for name in splits
    ]
    for name, found in (extra or {}).items():
        columns.append(
            Column(
                name=name, texts=[found.get(str(one.genid), "") for one in ordered], is_right=True
            )
        )
    if any(record.usage is not None for record in records):
        columns += _usage_columns([record.usage for record in ordered])
    seconds = [sum(record.durations.values()) for record in ordered]
    texts = [format_duration(value) for value in seconds]
    columns.append(Column(name="duration", texts=texts, values=seconds))
    if any(record.trouble[0] for record in records):
        classes = [record.trouble[0] for record in ordered]
        columns.append(
            Column(
                name="failure", texts=[failure_text(record) for record in ordered], words=classes
            )
        )
    return columns


def _number_column(name: str, values: Sequence[float | None], form: str) -> Column:
    return Column(
        name=name, texts=["" if one is None else form.format(one) for one in values], values=values
    )


def _usage_columns(used: Sequence[Spent | None]) -> list[Column]:
    return [
        _number_column("requests", [None if one is None else one.requests for one in used], "{}"),
        _number_column(
            "tokens",
            [None if one is None else one.input_tokens + one.output_tokens for one in used],
            "{}",
        ),
        _number_column("money", [None if one is None else one.money for one in used], "{:.4g}"),
    ]


def failure_text(record: GenerationRecord) -> str:
    """Return the failure of the generation, or else of its ensemble or tasks, and the reason in one
    short line.
    """
    failure, reason = record.trouble
    detail = " ".join(reason.split())
    short = detail if len(detail) <= _DETAIL_CHARS else detail[: _DETAIL_CHARS - 3] + "..."
    return f"{failure}: {short}" if short else failure


def failure_counts(records: Sequence[GenerationRecord]) -> dict[str, int]:
    """Return the number of generations for each class of failure; also those with failed ensembles
    or tasks.
    """
    counts = Counter(record.trouble[0] for record in records)
    return {
        failure: counts[failure] for failure in (*FAILURES, ENSEMBLE, TASKS) if failure in counts
    }


def ensembles_failed(records: Sequence[GenerationRecord]) -> str:
    """Return why the last ensemble failed if the ensembles of all new generations failed, else
    "".
    """
    evaluated = [record for record in records if record.failure is None]
    new = [record for record in evaluated if record.parent is not None] or evaluated
    return (
        new[-1].ensemble_failure if new and all(record.ensemble_failure for record in new) else ""
    )


def run_to_json(
    run_dir: str,
    records: Sequence[GenerationRecord],
    **facts: Any,  # noqa: ANN401 - JSON values
) -> dict[str, Any]:
    """Return a run as JSON values.

    Args:
        run_dir: the run directory.
        records: the generations.
        facts: more items of the JSON object.
    """
    best = best_generation(records)
    return {
        "run_dir": run_dir,
        **facts,
        "failures": failure_counts(records),
        "best": None if best is None else record_to_json(best),
        "generations": [record_to_json(record) for record in records],
    }


def _split_scores(record: GenerationRecord, *, many: bool) -> dict[str, float]:
    """Return the split scores by heading: ``train``, or ``domain train`` if there are several
    domains.
    """
    return {
        f"{domain} {split}" if many else split: score
        for domain, splits in record.scores.items()
        for split, score in splits.items()
    }
