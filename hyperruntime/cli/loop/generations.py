"""A run's generations as a table or as JSON, and ``hyperrun status``, which shows them during the run or after it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from hyperruntime.cli.command import Command, example
from hyperruntime.cli.messages import note
from hyperruntime.cli.params import RUN_DIRECTORY
from hyperruntime.cli.tables import json_option, print_json, print_table
from hyperruntime.gateway.log.budget import Spent, total_spent
from hyperruntime.loop.run_files.archive import RunView, load_run
from hyperruntime.loop.run_files.record import FAILURES, GenerationRecord, record_to_json
from hyperruntime.units import format_duration

_DETAIL_CHARS = 90
_USAGE = ("requests", "tokens", "money")


def print_generations(
    records: Sequence[GenerationRecord], *, extra: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Print one row per generation: parent, scores, duration, failure; a star marks the best one.

    Args:
        records: the generations; printed in the order of their numbers.
        extra: more columns: heading -> generation id -> text.
    """
    more = extra or {}
    best = best_generation(records)
    many = len({domain for record in records for domain, splits in record.scores.items() if splits}) > 1
    scores = {record.genid: _split_scores(record, many=many) for record in records}
    splits = dict.fromkeys(name for found in scores.values() for name in found)
    failures = ("failure",) if any(record.failure for record in records) else ()
    usage = _USAGE if any(record.usage is not None for record in records) else ()
    columns = ("generation", "parent", "score", *splits, *more, *usage, "duration", *failures)
    rows = [
        (
            f"{record.genid}{' *' if record is best else ''}",
            "" if record.parent is None else str(record.parent),
            "" if record.score is None else f"{record.score:.4f}",
            *(f"{scores[record.genid][name]:.4f}" if name in scores[record.genid] else "" for name in splits),
            *(texts.get(str(record.genid), "") for texts in more.values()),
            *(_usage_texts(record.usage) if usage else ()),
            format_duration(sum(record.durations.values())),
            *(failure_text(record) for _ in failures),
        )
        for record in sorted(records, key=lambda record: -1 if isinstance(record.genid, str) else record.genid)
    ]
    print_table(columns, rows, right=("score", *splits, *more, *usage, "duration"))


def _usage_texts(usage: Spent | None) -> tuple[str, ...]:
    if usage is None:
        return ("",) * len(_USAGE)
    return f"{usage.requests}", f"{usage.input_tokens + usage.output_tokens}", f"{usage.money:.4g}"


def best_generation(records: Sequence[GenerationRecord]) -> GenerationRecord | None:
    """Return the generation with the highest score, the earlier one on a tie; None if no generation has a score."""
    scored = [record for record in records if record.score is not None]
    return max(scored, key=lambda record: record.score or 0.0, default=None)


def failure_text(record: GenerationRecord) -> str:
    """Return the failure and its reason in one short line, or ""."""
    if record.failure is None:
        return ""
    detail = " ".join(record.detail.split())
    short = detail if len(detail) <= _DETAIL_CHARS else detail[: _DETAIL_CHARS - 3] + "..."
    return f"{record.failure}: {short}" if short else record.failure


def failure_counts(records: Sequence[GenerationRecord]) -> dict[str, int]:
    """Return the number of failed generations for each class of failure."""
    counts: Counter[str] = Counter(record.failure for record in records if record.failure is not None)
    return {failure: counts[failure] for failure in FAILURES if failure in counts}


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
    """Return the split scores by heading: ``train``, or ``domain train`` if there are several domains."""
    return {
        f"{domain} {split}" if many else split: score
        for domain, splits in record.scores.items()
        for split, score in splits.items()
    }


@click.command(
    cls=Command,
    epilog=example("hyperrun status outputs/generate_1", "hyperrun status outputs/generate_1 --json"),
)
@click.argument("run_dir", type=RUN_DIRECTORY)
@json_option
def status(run_dir: str, as_json: bool) -> None:
    """Show the generations of the run in RUN_DIR, which may still run; damaged lines are reported and skipped."""
    view = load_run(run_dir)
    if as_json:
        facts = {"state": view.state, "seed": view.seed, "problems": list(view.problems)}
        print_json(run_to_json(view.run_dir, view.generations, **facts))
        return
    _print(view)


def _print(view: RunView) -> None:
    best = best_generation(view.generations)
    top = "no score yet" if best is None else f"best {best.score:.4f} (generation {best.genid})"
    total = view.options.max_generation + 1
    made = f"{len(view.generations)} of {total} generations"
    counts = ", ".join(f"{count} {name}" for name, count in failure_counts(view.generations).items())
    failed = f"; failed: {counts}" if counts else ""
    click.echo(f"{view.run_dir}: {view.state}, {made}, {top}, seed {view.seed}{failed}")
    if view.generations:
        print_generations(view.generations)
    if used := [record.usage for record in view.generations if record.usage is not None]:
        spent = total_spent(used)
        tokens = f"{spent.input_tokens} tokens read, {spent.output_tokens} written"
        click.echo(f"models: {spent.requests} requests, {tokens}, money {spent.money:.4g}")
    for problem in view.problems:
        note(f"problem: {problem}")
    if view.state == "interrupted":
        note(f"continue with: hyperrun resume {shlex.quote(view.run_dir)}")
