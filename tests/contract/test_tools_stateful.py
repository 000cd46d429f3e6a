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


@pytest.mark.parametrize(
    ("command", "stdout", "code"),
    [
        ("cat <<'END'\nun'bal\"anced\nEND\n# a comment", "un'bal\"anced\n", 0),
        ("echo 'open", "", 2),
        ("exit 3", "", 3),
        ("set -e; false; echo no", "", 1),
        ("exec true", "", 0),
        ("kill -9 $$", "", 137),
        ("exec >/dev/null 2>&1; echo no", "", 0),
    ],
)
def test_no_command_ends_or_confuses_the_shell(
    say: Say, command: str, stdout: str, code: int
) -> None:
    """W27: the public system typed into a terminal and searched for a marker in the output."""
    say("x=kept; cd /usr")

    result = say(command)

    assert (result.stdout, result.metadata["returncode"]) == (stdout, code)
    assert say("echo $x $PWD").stdout == "kept /usr\n"


def test_large_output_is_neither_lost_nor_mixed(say: Say) -> None:
    """R18, W27: in the public system, a history of 20,000 lines truncated the output and made the
    exit code 0.
    """
    result = say("seq 2000000; echo err >&2; (exit 9)")

    assert (result.exit_code, result.stderr, result.truncated) == (9, "err\n", True)
    assert result.stdout.startswith("1\n2\n")
    assert result.stdout.endswith("1999999\n2000000\n")


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
