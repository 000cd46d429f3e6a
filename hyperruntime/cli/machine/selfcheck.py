"""``hyperrun selfcheck``: check every promise of the library on one engine."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.machine.engines import usable_engines
from hyperruntime.cli.messages import configure_logging, note
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.host.inherited import raise_file_limit
from hyperruntime.registry import load_driver
from hyperruntime.runtime import AUTO, ENVIRONMENT_VARIABLE
from hyperruntime.testing.conformance import (
    Check,
    CheckResult,
    Context,
    open_context,
    run_checks,
    select_checks,
)

_WORDS = {
    "pass": ("pass", "green"),
    "refused": ("refused as declared", "cyan"),
    "fail": ("FAIL", "red"),
}
_WIDTH = max(len(word) for word, _ in _WORDS.values())


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun selfcheck",
        "hyperrun selfcheck podman --only 'timeout.*'",
        "hyperrun selfcheck --json",
    ),
)
@click.argument("name", required=False)
@click.option(
    "--only",
    metavar="PATTERN",
    default="*",
    help="Name of a check, a pattern ('exec.*') or a family.",
)
@click.option(
    "--image", metavar="REF", help="Image to check with; default: the base image, made if missing."
)
@json_option
@click.pass_obj
def selfcheck(state: State, name: str | None, only: str, image: str | None, as_json: bool) -> int:
    """Check that runtime NAME (default: --runtime, else the first usable one) keeps the promises of
    the library.

    The runtime must refuse each feature that it declares unsupported, by name; such a refusal is
    not a failure. Exits with 0 if every check passed or was refused as declared, with 1 if one
    failed, with 3 if the engine is unusable.
    """
    checks = select_checks(only)
    if state.log_level == "warning":  # several checks lose a container on purpose, which is logged
        configure_logging("error", as_json=state.log_json)
    chosen = name or state.runtime or os.environ.get(ENVIRONMENT_VARIABLE) or AUTO
    if chosen == AUTO:
        chosen = usable_engines()[0]
    raise_file_limit()
    with open_context(load_driver(chosen), image) as context:
        if not as_json:
            note(f"{chosen} {context.info.version}, image {context.image}, {len(checks)} checks")
        started = time.monotonic()
        results = _run(context, checks, as_json)
        if as_json:
            print_json(_to_json(context, results))
        else:
            click.echo(str(context.load))
            _print_summary(results, time.monotonic() - started)
    return 1 if any(result.outcome == "fail" for result in results) else 0


def _run(context: Context, checks: Sequence[Check], quiet: bool) -> list[CheckResult]:
    """Run the checks and print each result; a terminal also shows the name of the one that runs."""
    from rich.console import Console

    console = Console(quiet=quiet, force_terminal=sys.stdout.isatty())
    results: list[CheckResult] = []
    with closing(run_checks(context, checks)) as running:
        for one in checks:
            with console.status(one.name):
                results.append(next(running))
            if not quiet:
                _print_result(results[-1])
    return results


def _print_result(result: CheckResult) -> None:
    """Print a result in one line; below a failure or a refusal, print the reason."""
    word, colour = _WORDS[result.outcome]
    line = f"  {result.name}: {result.sentence} ({result.duration_s:.1f} s)"
    click.echo(click.style(f"{word:{_WIDTH}}", fg=colour) + line)
    if result.detail:
        refused = result.outcome == "refused"
        click.secho(
            f"{'':{_WIDTH}}    {result.detail}", fg=None if refused else colour, dim=refused
        )


def _print_summary(results: Sequence[CheckResult], took_s: float) -> None:
    counts = _counts(results)
    said = ", ".join(f"{counts[outcome]} {word.lower()}" for outcome, (word, _) in _WORDS.items())
    click.echo(f"{len(results)} checks in {took_s:.0f} s: {said}")
    failed = [result.name for result in results if result.outcome == "fail"]
    if failed:
        click.echo(f"failed: {', '.join(failed)}")


def _counts(results: Sequence[CheckResult]) -> dict[str, int]:
    found: Counter[str] = Counter(result.outcome for result in results)
    return {outcome: found[outcome] for outcome in _WORDS}


def _to_json(context: Context, results: Sequence[CheckResult]) -> dict[str, Any]:
    return {
        "runtime": context.info.engine,
        "version": context.info.version,
        "rootless": context.info.rootless,
        "image": context.image,
        "load_factor": context.load.factor,
        "counts": _counts(results),
        "checks": results,
    }
