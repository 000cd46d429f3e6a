"""``python -m hyperenvironment_terminal TASKS``: check tasks before agents work on them."""

from __future__ import annotations

import argparse
import asyncio
import sys

from hyperenvironment_terminal.check import Check, check_task
from hyperenvironment_terminal.environment import Terminal
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.rollout.loading import load_environment
from hyperruntime.runtime import Runtime, open_runtime
from hyperruntime.spec import ContainerSpec


def main(argv: list[str] | None = None) -> int:
    """Check tasks and print one line per task; return 1 if a task is not good."""
    parser = argparse.ArgumentParser(prog="python -m hyperenvironment_terminal", description=__doc__)
    parser.add_argument("tasks", help="a task directory, a directory of them, a .jsonl file, or 'builtin'")
    parser.add_argument("--runtime", help="the engine; default: the first that works")
    parser.add_argument(
        "--network", default="none", choices=("none", "host", "bridge"), help="network of the containers"
    )
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="option of the environment")
    given = parser.parse_args(argv)
    try:
        options = dict(text.split("=", 1) for text in given.option)
    except ValueError:
        parser.error("--option needs NAME=VALUE")
    try:
        environment = load_environment("terminal", {"tasks": given.tasks, **options})
        with open_runtime(given.runtime) as runtime:
            return _check_all(runtime, environment, given.network)  # type: ignore[arg-type]
    except HyperRuntimeError as error:
        print(f"{error}", file=sys.stderr)
        return error.exit_code


def _check_all(runtime: Runtime, environment: Terminal, network: str) -> int:
    worst = 0
    for item in environment.items():
        try:
            base = ContainerSpec(image="localhost/none", network=network)  # type: ignore[arg-type]
            check = asyncio.run(check_task(runtime, environment, item, base))
        except HyperRuntimeError as error:
            print(f"{item.id}: failed: {error}", flush=True)
            worst = 1
            continue
        print(_line(check), flush=True)
        worst = worst or int(not check.good)
    return worst


def _line(check: Check) -> str:
    begins = {None: "", True: ", starts as expected", False: ", does not start as expected"}[check.begins]
    solution = "no known solution" if check.solution is None else f"solution {check.solution.reward:g}"
    return f"{check.task}: {'good' if check.good else 'NOT GOOD'}: nothing {check.nothing.reward:g}, {solution}{begins}"


if __name__ == "__main__":
    sys.exit(main())
