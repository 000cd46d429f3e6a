"""A run's generations as a table or as JSON, and ``hyperrun status``, which shows them during the run or after it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hyperruntime.cli.command import Command, example
from hyperruntime.cli.loop.progress import ENSEMBLE
from hyperruntime.cli.messages import note
from hyperruntime.cli.params import ANY_RUN_DIRECTORY, is_rollout
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
    failures = ("failure",) if any(record.failure or record.ensemble_failure for record in records) else ()
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
    """Return the failure of the generation, or else of its ensemble, and the reason in one short line, or ""."""
    failure = record.failure or (ENSEMBLE if record.ensemble_failure else "")
    detail = " ".join((record.detail if record.failure else record.ensemble_failure).split())
    short = detail if len(detail) <= _DETAIL_CHARS else detail[: _DETAIL_CHARS - 3] + "..."
    return f"{failure}: {short}" if short else failure


def failure_counts(records: Sequence[GenerationRecord]) -> dict[str, int]:
    """Return the number of failed generations for each class of failure, and of failed ensembles."""
    counts: Counter[str] = Counter(record.failure for record in records if record.failure is not None)
    counts += Counter({ENSEMBLE: sum(bool(record.ensemble_failure) for record in records)})
    return {failure: counts[failure] for failure in (*FAILURES, ENSEMBLE) if failure in counts}


def ensembles_failed(records: Sequence[GenerationRecord]) -> str:
    """Return why the last ensemble failed, if no new generation has one that could be evaluated; else ""."""
    evaluated = [record for record in records if record.failure is None]
    new = [record for record in evaluated if record.parent is not None] or evaluated
    return new[-1].ensemble_failure if new and all(record.ensemble_failure for record in new) else ""


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
@click.argument("run_dir", type=ANY_RUN_DIRECTORY)
@json_option
def status(run_dir: str, as_json: bool) -> None:
    """Show the generations of the run in RUN_DIR, which may still run; damaged lines are reported and skipped.

    The directory of a rollout run is shown as one line.
    """
    if is_rollout(Path(run_dir)):
        _print_rollout(run_dir, as_json=as_json)
        return
    view = load_run(run_dir)
    if as_json:
        facts = {"state": view.state, "seed": view.seed, "problems": list(view.problems)}
        print_json(run_to_json(view.run_dir, view.generations, **facts))
        return
    _print(view)


def _print_rollout(run_dir: str, *, as_json: bool) -> None:
    """Print what the files of a rollout run say about it."""
    from hyperruntime.rollout.run.store import RunStore, stored_options
    from hyperruntime.rollout.run.summary import Tally
    from hyperruntime.rollout.run_files.run_dir import read_groups
    from hyperruntime.storage.run_lock import owner_state

    path, tally = Path(run_dir), Tally()
    options, state = stored_options(path), "running" if owner_state(path) == "alive" else "not running"
    tally.before = list(RunStore(path).recorded())
    done = tally.summary(run_dir, len(tally.before), sum(group.complete for group in read_groups(path)))
    if as_json:
        names = ("scored", "infrastructure", "mean_reward", "groups", "errors", "last_errors")
        counts = {"trajectories": done.resumed, **{name: getattr(done, name) for name in names}}
        print_json({"run_dir": run_dir, "rollout": True, "state": state, "environment": options.environment, **counts})
        return
    mean = "no reward yet" if done.mean_reward is None else f"mean reward {done.mean_reward:.4f}"
    failed = f"; failed: {', '.join(f'{n} {kind}' for kind, n in sorted(done.errors.items()))}" if done.errors else ""
    counts_text = f"{done.resumed} trajectories, {done.scored} scored, {mean}, {done.groups} full groups"
    click.echo(f"{run_dir}: a rollout run of {options.environment}, {state}, {counts_text}{failed}")
    if state != "running":
        note(f"continue with: hyperrun rollout run --resume-from {shlex.quote(run_dir)}")


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
