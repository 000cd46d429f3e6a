"""``hyperrun evaluate`` and ``hyperrun export``: evaluate one generation outside of its run, or
take it out.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.consent import trust_option, with_consent
from hyperruntime.cli.loop.machines import ensure_image
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.cli.params import ANY_RUN_DIRECTORY, GENERATION, RUN_DIRECTORY, is_rollout
from hyperruntime.cli.signals import EXIT_BY_SIGNAL, last_signal
from hyperruntime.cli.tables import json_option, plain_lines, print_json, print_table, printable
from hyperruntime.errors import unknown_name
from hyperruntime.loop.run.one_generation import (
    Evaluation,
    evaluate_generation,
    export_generation,
    image_to_evaluate,
)
from hyperruntime.loop.run_files.archive import best_generation, load_run, read_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.loop.workbench.failures import RunInterruptedError
from hyperruntime.units import format_duration


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun evaluate outputs/generate_1 best --split test",
        "hyperrun evaluate outputs/generate_1 7 --split val --samples 20 --repeat 3 --json",
    ),
)
@click.argument("run_dir", type=RUN_DIRECTORY)
@click.argument("generation", type=GENERATION)
@click.option(
    "--split", metavar="NAME", default="test", show_default=True, help="Split to evaluate on."
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="Maximum number of tasks of each domain; default: all.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of repetitions.",
)
@trust_option
@json_option
@click.pass_obj
def evaluate(
    state: State,
    /,
    run_dir: str,
    generation: GenId,
    as_json: bool,
    trust: bool,
    **chosen: Any,  # noqa: ANN401 - the options by name
) -> int:
    """Evaluate GENERATION (a number, initial, or best) of the run in RUN_DIR, outside of the run.

    Predictions and reports are written to evaluations/ in RUN_DIR, where agents do not see them.
    Nothing else of the run changes; it may still be running. Existing results are not computed
    again.
    """
    options = read_run(Layout(Path(run_dir)))[0]
    image = with_consent(lambda trust: image_to_evaluate(run_dir, trust=trust), trust=trust)
    with state.open_runtime(run_id=str(options.run_id)) as runtime:
        ensure_image(runtime, image)
        with last_signal(state) as number:
            try:
                made = evaluate_generation(
                    runtime, run_dir, generation, trust=True, on_event=_tell, **chosen
                )
            except RunInterruptedError as error:
                note(str(error))
                made = ()
    if not made:
        return EXIT_BY_SIGNAL + (number() or signal.SIGINT)
    if as_json:
        print_json(made)
    else:
        _print(made)
    return 0


def _tell(event: StepEvent) -> None:
    if event.state == "start" and event.step in ("load check", "evaluate"):
        note(f"generation {event.generation}: {event.step}")


def _print(made: Sequence[Evaluation]) -> None:
    """Print one row per repetition, then the mean if there are several."""
    more = tuple(made[0].scores) if len(made[0].scores) > 1 else ()
    rows = [
        (
            f"{one.genid}",
            one.split,
            f"{one.repeat}",
            f"{sum(one.tasks.values())}",
            f"{one.score:.4f}",
            *(f"{one.scores[name]:.4f}" for name in more),
            one.path,
        )
        for one in made
    ]
    print_table(
        ("generation", "split", "repeat", "tasks", "score", *more, "where"),
        rows,
        right=("tasks", "score", *more),
    )
    if len(made) > 1:
        note(f"mean {sum(one.score for one in made) / len(made):.4f}")


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun export outputs/generate_1 best ./agent",
        "hyperrun export outputs/generate_1 7 ./agent-7",
    ),
)
@click.argument("run_dir", type=RUN_DIRECTORY)
@click.argument("generation", type=GENERATION)
@click.argument("target", metavar="DIR")
@json_option
def export(run_dir: str, generation: GenId, target: str, as_json: bool) -> None:
    """Write GENERATION (a number, initial, or best) of the run in RUN_DIR to DIR, a runnable git
    repository.

    It has one commit per generation of the lineage; the messages contain the scores. DIR must be
    missing or empty.
    """
    made = export_generation(run_dir, generation, target)
    if as_json:
        print_json({"path": made.path, "commit": made.commit, "lineage": list(made.lineage)})
        return
    click.echo(made.path)
    note(f"{len(made.lineage)} generations: {' '.join(map(str, made.lineage))}")


_DIFF_COLOURS = (("+++", ""), ("---", ""), ("+", "blue"), ("-", "yellow"), ("@@", "cyan"))


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun show outputs/generate_1 best",
        "hyperrun show outputs/generate_1 7 | grep error",
        "hyperrun show outputs/rollout_1 item-3/0",
    ),
)
@click.argument("run_dir", type=ANY_RUN_DIRECTORY)
@click.argument("entry", metavar="GENERATION")
def show(run_dir: str, entry: str) -> None:
    """Show GENERATION (a number, initial, or best) of the run in RUN_DIR: its scores, change,
    transcripts and log.

    For a rollout run, give the id of a trajectory, as `hyperrun status --tail 10` prints it. On a
    terminal the text is paged. Keys are removed, and control characters become escapes.
    """
    facts, details, write = (
        _trajectory(run_dir, entry) if is_rollout(Path(run_dir)) else _generation(run_dir, entry)
    )
    text = "\n".join(write(facts, details)) + "\n"
    if sys.stdout.isatty():
        click.echo_via_pager(text)
    else:
        click.echo(click.unstyle(text), nl=False)


Writer = Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[str]]
Found = tuple[dict[str, Any], dict[str, Any], Writer]


def _generation(run_dir: str, entry: str) -> Found:
    from hyperruntime.report.page.generations import LoopRun
    from hyperruntime.secrets.known import Secrets

    view = load_run(run_dir)
    wanted: GenId = GENERATION.convert(entry, None, None)
    if str(wanted) == "best":
        best = best_generation(view.generations)
        if best is None:
            raise WrongUsageError(
                f"no generation of {run_dir!r} has a score yet; give a number, or initial"
            )
        wanted = best.genid
    records = [record for record in view.generations if record.genid == wanted]
    if not records:
        known = [str(record.genid) for record in view.generations]
        last = f"finished so far: {', '.join(known[-20:])}" if known else "none is finished yet"
        raise WrongUsageError(f"generation {wanted} of {run_dir!r} is not finished; {last}")
    run = LoopRun(view, Secrets())
    return _row(run.columns(records), 0), run.details_of(wanted) or {}, _generation_lines


def _trajectory(run_dir: str, entry: str) -> Found:
    from hyperruntime.report.page.trajectories import RolloutRun
    from hyperruntime.secrets.known import Secrets

    run = RolloutRun(Path(run_dir), Secrets())
    ids = run.columns(run.names)["ids"]
    if entry not in ids:
        raise WrongUsageError(unknown_name("trajectory", entry, ids[-1000:]))
    return (
        _row(run.columns([run.names[ids.index(entry)]]), 0),
        run.details_of(entry) or {},
        _trajectory_lines,
    )


def _row(columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return one row of columns; nested columns become mappings."""
    return {
        name: {key: inner[row] for key, inner in column.items()}
        if isinstance(column, dict)
        else column[row]
        for name, column in columns.items()
    }


def _generation_lines(facts: Mapping[str, Any], details: Mapping[str, Any]) -> Iterator[str]:
    parent = "no parent" if facts["parent"] is None else f"parent {facts['parent']}"
    score = "no score" if facts["score"] is None else f"score {facts['score']:.4f}"
    yield _bold(
        f"generation {facts['ids']}: {score}, {parent}, {format_duration(facts['duration'] or 0)}"
    )
    yield from _failure(facts)
    for name, value in facts["scores"].items():
        if value is not None:
            yield f"{printable(name)}: {value:.4f}"
    if tasks := details.get("tasks"):
        yield from _title("scores by task")
        rows = [
            (one["domain"], one["split"], one["task"], "" if one["score"] is None else f"{one['score']:.4f}",
             one["detail"])
            for one in tasks
        ]  # fmt: skip
        cells = [[printable(" ".join(cell.split())) for cell in row] for row in rows]
        yield from plain_lines(
            ("domain", "split", "task", "score", "detail"), cells, right=("score",)
        )
    yield from _title("change of the parent")
    yield from map(_diff_line, printable(details.get("diff") or "none\n").rstrip("\n").split("\n"))
    for path, reason in details.get("dropped", ()):
        yield printable(f"left out: {path}: {reason}")
    for missing in details.get("left_out", ()):
        yield printable(missing)
    for transcript in details.get("transcripts", ()):
        yield from _title(f"transcript: {transcript['title']}")
        for title, body in transcript["parts"]:
            if title:
                yield _bold(printable(f"## {title}"))
            yield printable(body)
    if log := details.get("log"):
        yield from _title("log")
        yield printable(log).rstrip("\n")


def _trajectory_lines(facts: Mapping[str, Any], details: Mapping[str, Any]) -> Iterator[str]:
    reward = "no reward" if facts["score"] is None else f"reward {facts['score']:.4f}"
    turns = f"{facts['turns']} turns, {facts['calls']} tool calls"
    yield _bold(
        printable(
            f"trajectory {facts['ids']}: {reward}, {turns}, "
            f"{format_duration(facts['duration'] or 0)}"
        )
    )
    yield from _failure(facts)
    for name, value in facts["parts"].items():
        if value is not None:
            yield f"{printable(name)}: {value:.4f}"
    for name in ("verdict", "tool_errors", "error", "replay"):
        if details.get(name):
            yield from _title(name.replace("_", " "))
            yield printable(json.dumps(details[name], indent=1, ensure_ascii=False))
    for message in details.get("messages", ()):
        yield from _title(message["role"])
        if message["text"]:
            yield printable(message["text"])
        for call in message["calls"]:
            yield printable(f"calls {call['name']}: {call['arguments']}")
    segments: Sequence[Mapping[str, Any]] = details.get("segments", ())
    for segment in segments:
        yield f"{len(segment['ids'])} tokens, {sum(segment['mask'])} of them made by the model"


def _failure(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts["failure"]:
        yield click.style(printable(f"{facts['failure']}: {facts['detail']}"), fg="yellow")


def _title(text: str) -> Iterator[str]:
    yield ""
    yield _bold(printable(text).upper())


def _bold(text: str) -> str:
    return click.style(text, bold=True)


def _diff_line(line: str) -> str:
    colour = next((colour for start, colour in _DIFF_COLOURS if line.startswith(start)), "")
    return click.style(line, fg=colour) if colour else line
