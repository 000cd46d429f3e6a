"""``hyperrun rollout batch``: run an agent on every prompt of a file, without scoring."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.messages import Lines, note
from hyperruntime.cli.params import DURATION, NAMES, SIZE
from hyperruntime.cli.signals import run_until_signal
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.images.recipes import BASE, image_reference
from hyperruntime.rollout.agent.agent import DEFAULT_TOOLS, AgentLimits
from hyperruntime.rollout.batch.batch import DONE, BatchSummary, Prompts, run_batch
from hyperruntime.rollout.batch.prompts import read_rows, unknown_keys
from hyperruntime.rollout.models import WIRES, ModelOptions
from hyperruntime.rollout.run.options import PoolOptions, RolloutOptions
from hyperruntime.rollout.run.runner import Parts, check_model
from hyperruntime.rollout.run_files.run_dir import RESULTS
from hyperruntime.spec import NETWORKS, ContainerSpec, Limits
from hyperruntime.units import format_duration

_ERRORS_SHOWN = 5
_SAME = ("tools", "temperature", "max_tokens", "parallel", "attempts", "retry_failed")  # as in RolloutOptions
Settled = Callable[[Mapping[str, Any]], None]


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun rollout batch prompts.jsonl --model qwen --base-url http://gpu:8000/v1 --parallel 16",
        "hyperrun rollout batch prompts.jsonl --model qwen --base-url http://gpu:8000/v1 --retry-failed",
    ),
)
@click.argument("prompts", metavar="PROMPTS.jsonl", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--output-dir", type=click.Path(path_type=Path), help="[default: outputs/batch_<name of PROMPTS>]")
@click.option("--model", "name", required=True, help="Name of the model on its server.")
@click.option("--base-url", required=True, metavar="URL", help="Model server, such as http://127.0.0.1:8000/v1.")
@click.option("--wire", type=click.Choice(WIRES), default="chat", show_default=True, help="Protocol of the server.")
@click.option("--key-env", metavar="NAME", help="Environment variable that holds the server's key.")
@click.option("--tokenizer", metavar="DIR", help="Tokenizer of the model, for wires that take tokens.")
@click.option(
    "--image", default=BASE, show_default=True, help="Recipe name or image reference, for rows that name none."
)
@click.option(
    "--network", type=click.Choice(NETWORKS), default="none", show_default=True, help="Network access of agents."
)
@click.option("--memory", type=SIZE, help="Memory limit of each container, such as 2g.")
@click.option("--cpus", type=float, help="Limit of cores of each container.")
@click.option("--tools", type=NAMES, default=",".join(DEFAULT_TOOLS), show_default=True, help="Tools of agents.")
@click.option("--system", default="", help="System message for conversations that have none.")
@click.option(
    "--slots-per-container",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Rows at once in one container, each with its own user; with 1, the row runs as root.",
)
@click.option("--parallel", type=int, default=8, show_default=True, help="Rows at once.")
@click.option("--attempts", type=int, default=2, show_default=True, help="Attempts before a row counts as failed.")
@click.option("--retry-failed", is_flag=True, help="Retry rows that failed in an earlier call.")
@click.option("--max-turns", type=click.IntRange(min=1), default=30, show_default=True, help="Turns of a conversation.")
@click.option("--max-time", type=DURATION, help="Time limit of a conversation, such as 30m.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=4096, show_default=True, help="Tokens of one turn.")
@click.option("--temperature", type=float, default=1.0, show_default=True, help="Sampling temperature.")
@json_option
@click.pass_obj
def batch(state: State, /, as_json: bool, **values: Any) -> int:  # noqa: ANN401 - the options, by name
    """Run an agent on every prompt in PROMPTS.jsonl, each in its own slot, and write the results.

    A row is an object with "prompt" or "messages", and optionally "id", "image" and "cwd"; other keys are copied to
    its result. Results are in results.jsonl of the output directory; the same command again does the remaining rows.
    """
    prompts: Path = values["prompts"]
    rows, options = read_rows(prompts), _options(values)
    output: Path = values["output_dir"] or Path("outputs", f"batch_{prompts.stem}")
    if other := ", ".join(unknown_keys(rows)):
        note(f"{len(rows)} rows; other keys, copied to the results: {other}")
    with state.open_runtime() as runtime:
        if not runtime.images.exists(options.container.image):
            run_until_signal(check_model(options, Parts()), state)  # an image takes a minute
            runtime.images.ensure(values["image"], on_output=Lines())
        with _progress(len(rows)) as settled:
            work = run_batch(runtime, Prompts(rows, values["system"]), options, output, on_settled=settled)
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
    """
    return RolloutOptions(
        environment=Prompts.name,
        model=ModelOptions(**{name: values[name] for name in ("name", "base_url", "wire", "key_env", "tokenizer")}),
        container=ContainerSpec(
            image=image_reference(values["image"]),
            network=values["network"],
            limits=Limits(memory_bytes=values["memory"], cpus=values["cpus"]),
        ),
        limits=AgentLimits(turns=values["max_turns"], time_s=values["max_time"]),
        pool=PoolOptions(slots_per_container=values["slots_per_container"]),
        **{name: values[name] for name in _SAME},
    )


@contextmanager
def _progress(rows: int) -> Iterator[Settled]:
    """Show the progress of a batch: a bar on a terminal, a line for every 5 % of the rows elsewhere."""
    counts: Counter[str] = Counter()

    def count(line: Mapping[str, Any]) -> str:
        counts[line["status"]] += 1
        if line["status"] != DONE and counts[line["status"]] <= _ERRORS_SHOWN:
            note(f"row {line['id']} failed: {line['error']['kind']}: {line['error']['message'][:160]}")
        return f"{counts[DONE]} done, {counts.total() - counts[DONE]} failed of {rows}"

    if not sys.stderr.isatty():
        every = max(1, rows // 20)

        def say(line: Mapping[str, Any]) -> None:
            text = count(line)
            if counts.total() % every == 0:
                note(text)

        yield say
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as shown:
        bar = shown.add_task("rows", total=rows)
        yield lambda line: shown.update(bar, advance=1, description=count(line))


def _sentence(summary: BatchSummary) -> str:
    before = f", {summary.skipped} of them settled before" if summary.skipped else ""
    again = "; retry those with --retry-failed" if summary.failed else ""
    took = format_duration(summary.duration_s)
    return f"{summary.done} of {summary.rows} rows done, {summary.failed} failed{before}, in {took}{again}"
