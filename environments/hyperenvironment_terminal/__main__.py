"""``python -P -m hyperenvironment_terminal TASKS``: check tasks before agents work on them.

The known solution of a task must get reward 1, and doing nothing must get less.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AbstractAsyncContextManager

from hyperenvironment_terminal.environment import Terminal
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.pool.manager import PoolManager
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.pool_values.profiles import Profiles
from hyperruntime.rollout.environment import Item, Outcome
from hyperruntime.rollout.loading import load_environment
from hyperruntime.runtime import Runtime, open_runtime
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ContainerSpec

_BEGINS = {None: "", True: ", starts as expected", False: ", does not start as expected"}


def main(argv: list[str] | None = None) -> int:
    """Check tasks and print one line per task; return 1 if a task is not good."""
    parser = argparse.ArgumentParser(
        prog="python -P -m hyperenvironment_terminal", description=__doc__
    )
    parser.add_argument(
        "tasks", help="a task directory, a directory of them, a .jsonl file, or 'builtin'"
    )
    parser.add_argument("--runtime", help="the engine; default: the first that works")
    parser.add_argument(
        "--network",
        default="none",
        choices=("none", "host", "bridge"),
        help="network of the containers",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the environment",
    )
    given = parser.parse_args(argv)
    try:
        options = dict(text.split("=", 1) for text in given.option)
    except ValueError:
        parser.error("--option needs NAME=VALUE")
    try:
        environment = load_environment(
            "terminal", {"tasks": given.tasks, "control": "no", **options}
        )
        with open_runtime(given.runtime) as runtime:
            return _check_all(runtime, environment, given.network)  # type: ignore[arg-type]
    except HyperRuntimeError as error:
        print(f"{error}", file=sys.stderr)
        return error.exit_code


def _check_all(runtime: Runtime, environment: Terminal, network: str) -> int:
    worst = 0
    base = ContainerSpec(image="localhost/none", network=network)  # type: ignore[arg-type]
    for item in environment.items():
        print(f"{item.id}: needs {environment.needs(item) or 'nothing special'}")
    for name, why in environment.left_out.items():
        print(f"{name}: left out: {why}")
        worst = 1
    for item in environment.items():
        try:
            good, line = asyncio.run(_check(runtime, environment, item, base))
        except HyperRuntimeError as error:
            good = False
            line = f"failed: {error}"
        print(f"{item.id}: {line}", flush=True)
        worst = worst or int(not good)
    return worst


async def _check(
    runtime: Runtime, environment: Terminal, item: Item, base: ContainerSpec
) -> tuple[bool, str]:
    """Return whether a task is good, and a line that says why.

    Raises:
        HyperRuntimeError: the image is not available, or the tests reach no verdict.
    """
    spec = await asyncio.to_thread(environment.spec, item, base, runtime.images)
    config = PoolConfig(
        spec=spec,
        slots_per_container=1,
        min_containers=0,
        max_containers=2,
        acquire_timeout_s=300,
        image_workdir=environment.image_workdir,
    )
    async with PoolManager(runtime, Profiles.of(config)) as pools:

        def fresh(spec: ContainerSpec | None = None) -> AbstractAsyncContextManager[Sandbox]:
            return pools.lease(item.id, spec=spec)

        async def reward(lease: Sandbox) -> float:
            meta = await environment.setup(item, lease)
            outcome = Outcome(messages=(), turns=1, tool_calls=1, stop_reason="finished")
            return (await environment.verify(item, outcome, lease, fresh, meta)).reward

        async with fresh() as lease:
            begins = await environment.begins_right(item, lease)
        async with fresh() as lease:
            nothing = await reward(lease)
        good = begins is not False and nothing < 1.0
        solved = "no known solution"
        if environment.has_solution(item):
            async with fresh() as lease:
                await environment.solve(item, lease)
                await lease.end_processes()
                solution = await reward(lease)
            good, solved = good and solution >= 1.0, f"solution {solution:g}"
    return good, f"{'good' if good else 'NOT GOOD'}: nothing {nothing:g}, {solved}{_BEGINS[begins]}"


if __name__ == "__main__":
    sys.exit(main())
