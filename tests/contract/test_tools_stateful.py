"""The tool bash_stateful, in a real container (R18)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.pool.tools import call_tool
from hyperruntime.pool_values.results import ExecutionResult
from tests.contract.toolplace import make_desk

pytestmark = pytest.mark.engine

Say = Callable[..., ExecutionResult]


@pytest.fixture
def say(container: hr.Container) -> Iterator[Say]:
    """Return a function that calls the tool, always in the same slot."""
    desk = make_desk(container)

    def call(command: str, **args: Any) -> ExecutionResult:
        return desk("bash_stateful", command=command, **args)

    yield call
    asyncio.run(desk.slot_exec.close())


def test_the_next_call_finds_the_state_of_the_last_one(say: Say) -> None:
    """R18: directory, variables, functions, options and jobs are kept."""
    say("mkdir 'd e'; cd 'd e'; x=5; f() { echo f$1; }; set -o pipefail; sleep 1234 &")

    result = say('basename "$PWD"; echo $x; f 7; jobs -r | wc -l; false | true')

    assert (result.stdout, result.exit_code) == ("d e\n5\nf7\n1\n", 1)


def test_a_timeout_ends_the_command_but_not_the_shell_or_earlier_jobs(say: Say) -> None:
    """R18, W27."""
    say("x=before; sleep 1235 &")

    late = say("x=after; sleep 1236 & sleep 1237", timeout=1)
    then = say("echo $x; ps -axo args= | grep '[s]leep 123[567]'")

    assert (late.timed_out, late.exit_code) == (True, 124)
    assert then.stdout == "before\nsleep 1235\n"


def test_standard_input_is_the_given_text_or_empty(say: Say) -> None:
    assert say("read a; cat", stdin="one\ntwo\n").stdout == "two\n"
    assert say("cat; echo $a").stdout == "one\n"


def test_closing_a_slot_ends_its_shell_and_its_jobs(container: hr.Container) -> None:
    """R11: a reset leaves nothing of the shell."""
    desk = make_desk(container)

    async def run() -> tuple[ExecutionResult, ExecutionResult]:
        await call_tool(desk.slot_exec, "terminal_stateful", {"command": "x=5; sleep 1238 &"})
        await desk.slot_exec.close()
        after = await call_tool(
            desk.slot_exec, "bash", {"command": "ps -axo args= | grep '[s]leep 1238'"}
        )
        again = await call_tool(desk.slot_exec, "terminal_stateful", {"command": "echo x$x"})
        await desk.slot_exec.close()
        return after, again

    after, again = asyncio.run(run())

    assert (after.stdout, again.stdout) == ("", "x\n")
