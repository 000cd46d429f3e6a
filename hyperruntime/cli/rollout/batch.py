"""``hyperrun rollout batch``: run an agent on every prompt of a file, without scoring."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.field_options import add_options, click_option, field_value
from hyperruntime.cli.messages import Lines, note
from hyperruntime.cli.progress import Line, Running, shown_progress
from hyperruntime.cli.rollout.models import make_model
from hyperruntime.cli.signals import run_until_signal
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.datasets.left_out import FAIL, SKIP, LeftOut, shown
from hyperruntime.option_fields import changed, option_fields
from hyperruntime.rollout.batch import (
    DONE,
    BatchSummary,
    Prompts,
    read_rows,
    run_batch,
    unknown_keys,
)
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import Parts, check_model
from hyperruntime.rollout.run_files.run_dir import RESULTS
from hyperruntime.units import format_duration

_ERRORS_SHOWN = 5
# The options of a rollout that a batch has, and what differs.
_SAME = frozenset(
    (
        "model",
        "base_url",
        "wire",
        "key_env",
        "tokenizer",
        "image",
        "network",
        "allow",
        "memory",
        "cpus",
        "slots_per_container",
        "parallel",
        "attempts",
        "retry_failed",
        "max_turns",
        "time_limit",
        "max_tokens",
        "temperature",
        "tools",
    )
)
_DEFAULTS = {"attempts": 2, "slots_per_container": 1}
_FLAGS = {"time_limit": "--max-time"}
_HELP = {
    "image": "Recipe name or image reference, for rows that name none.",
    "slots_per_container": "Rows at once in one container, each with its own user; with 1, the row runs as root.",
    "parallel": "Rows at once.",
    "attempts": "Attempts before a row counts as failed.",
    "retry_failed": "Retry rows that failed in an earlier call.",
}
_FIELDS = tuple(
    attrs.evolve(
        field,
        default=_DEFAULTS.get(field.name, field.default),
        option=attrs.evolve(field.option, flag=_FLAGS.get(field.name, field.flag)),
    )
    for field in option_fields(RolloutOptions)
    if field.name in _SAME
)


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun rollout batch prompts.jsonl --model qwen --base-url http://gpu:8000/v1 "
        "--parallel 16",
        "hyperrun rollout batch prompts.jsonl --model qwen --base-url http://gpu:8000/v1 "
        "--retry-failed",
    ),
)
@click.argument("prompts", metavar="PROMPTS.jsonl", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    help="Directory of the results; default: outputs/batch_<name of PROMPTS>.",
)
@add_options(click_option(field, _HELP.get(field.name, "")) for field in _FIELDS)
@click.option(
    "--unsupported",
    type=click.Choice((SKIP, FAIL)),
    default=SKIP,
    show_default=True,
    help="skip: leave out lines that are no valid row, and name them; fail: refuse the file.",
)
@click.option("--system", default="", help="System message for conversations that have none.")
@json_option
@click.pass_obj
def batch(state: State, /, as_json: bool, **values: Any) -> int:  # noqa: ANN401 - the options, by name
    """Run an agent on every prompt in PROMPTS.jsonl, each in its own slot, and write the results.

    A row is an object with "prompt" or "messages", and optionally "id", "image" and "cwd"; other
    keys are copied to its result. Results are in results.jsonl of the output directory; the same
    command again does the remaining rows.
    """
    prompts = values["prompts"]
    left = LeftOut(values["unsupported"])
    rows = read_rows(prompts, left)
    options = _options(values)
    output: Path = values["output_dir"] or Path("outputs", f"batch_{prompts.stem}")
    if other := ", ".join(unknown_keys(rows)):
        note(f"{len(rows)} rows; other keys, copied to the results: {other}")
    if left.reasons:
        note(f"lines left out: {shown(left.reasons)}")
    with state.open_runtime() as runtime:
        if not runtime.images.exists(options.container.image):
            run_until_signal(check_model(options, Parts()), state)  # an image takes a minute
            runtime.images.ensure(options.container.image, on_output=Lines())
        with shown_progress(_Tracker(len(rows))) as settled:
            work = run_batch(
                runtime,
                Prompts(rows, values["system"], left.reasons),
                options,
                output,
                on_settled=settled,
            )
            summary = run_until_signal(work, state)
    if as_json:
        print_json({**attrs.asdict(summary), "results": str(output / RESULTS)})
    else:
        click.echo(str(output / RESULTS))
        note(_sentence(summary))
    return 1 if summary.failed else 0


def _options(values: Mapping[str, Any]) -> RolloutOptions:
    """Return the checked values of the command line; no engine is used.

    Raises:
        SpecError: an option is invalid.
        WrongUsageError: the model is missing.
    """
    found = {
        field.path: field_value(field, values[field.name])
        for field in _FIELDS
        if field.path[0] != "model"
    }
    return changed(RolloutOptions(environment=Prompts.name, model=make_model(values)), found)


class _Tracker:
    """The progress of a batch, computed from its lines: a line for each of the first failures, and
    for every 5 % of the rows.
    """

    unit = "rows"

    def __init__(self, rows: int) -> None:
        self.total = rows
        self.done = 0
        self.running: Mapping[str, Running] = {}
        self._failed = 0

    def take(self, line: Mapping[str, Any]) -> Line | None:
        self.done += 1
        self._failed += line["status"] != DONE
        if line["status"] != DONE and self._failed <= _ERRORS_SHOWN:
            error = line["error"]
            message = f"{error['kind']}: {error['message'][:160]}"
            return Line(f"row {line['id']} failed: {message}", is_bad=True)
        is_due = self.done % max(1, self.total // 20) == 0
        return Line(f"{self.summary()} of {self.total}", is_minor=True) if is_due else None

    def summary(self) -> str:
        return f"{self.done - self._failed} done, {self._failed} failed"


def _sentence(summary: BatchSummary) -> str:
    before = f", {summary.skipped} of them settled before" if summary.skipped else ""
    again = "; retry those with --retry-failed" if summary.failed else ""
    took = format_duration(summary.duration_s)
    left = f", {len(summary.left_out)} lines left out" if summary.left_out else ""
    return (
        f"{summary.done} of {summary.rows} rows done, {summary.failed} failed{before}{left}, in "
        f"{took}{again}"
    )
