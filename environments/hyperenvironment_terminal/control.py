"""Find out whether a task's tests can run here at all, so that their reward 0 says something about
an agent.

A ``test.sh`` that cannot download its test runner writes the same 0 as one whose tests failed. The
known solution tells the two apart: it must get more than 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from hyperenvironment_terminal.judge import Finding, run_tests
from hyperenvironment_terminal.task import LOGS, SOLUTION, TEST_SCRIPT, Task
from hyperenvironment_terminal.users import agents_lease, make_directory
from hyperruntime.errors import SpecError
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ExecResult

_SHOWN = 500
_REPORT = re.compile(rf"{LOGS}/verifier/(?!reward\.)[\w.-]+\.(?:json|xml)\b")
_OFFLINE = re.compile(
    r"Could not resolve|Temporary failure (?:in name resolution|resolving)|Name or service not known|Failed to fetch"
    r"|Unable to locate package|Network is unreachable|No route to host|dns error|Failed to download",
    re.IGNORECASE,
)


@attrs.frozen(kw_only=True)
class Control:
    """The result of a control run.

    Attributes:
        works: False if the tests cannot run here.
        detail: what was seen.
    """

    works: bool
    detail: str


async def solve(
    task: Task, container: Sandbox, env: Mapping[str, str], timeout_s: float | None
) -> ExecResult:
    """Run a task's known solution as the task's agent.

    Args:
        task: the task.
        container: where it runs.
        env: more environment variables of the solution.
        timeout_s: its timeout; None means no timeout.

    Raises:
        SpecError: the task has no known solution.
        TransferError: the solution cannot be copied.
    """
    if task.solution is None:
        raise SpecError("task", task.id, "a task with solution/solve.sh")
    agent = await agents_lease(task, container)
    await make_directory(SOLUTION, container, agent)
    await agent.put(str(task.solution), SOLUTION)
    args = ["/bin/sh", "-c", f'exec "$(command -v bash || command -v sh)" {SOLUTION}/solve.sh']
    return await agent.exec(args, env=env, timeout_s=timeout_s)


async def control_run(
    task: Task,
    container: Sandbox,
    env: Mapping[str, str],
    solution_env: Mapping[str, str],
    timeout_s: float,
) -> Control:
    """Run a task's tests with its known solution; without a solution, look for signs that they did
    not run.

    Args:
        task: the task.
        container: an unused container.
        env: more environment variables of the tests.
        solution_env: more environment variables of the solution.
        timeout_s: timeout of the solution.

    Raises:
        VerifierError, TransferError: the container cannot be prepared.
    """
    if task.solution is None:
        return await _without_work(task, container, env)
    solved = await solve(task, container, solution_env, timeout_s)
    if solved.timed_out:
        return Control(
            works=True, detail=f"unknown: the known solution did not end in {timeout_s:g} s"
        )
    await container.end_processes()
    finding = await run_tests(task, container, env)
    reward = finding.rewards.get("reward")
    if reward is not None and reward > 0:
        return Control(works=True, detail=f"the known solution has the reward {reward:g}")
    given = "no reward" if reward is None else f"the reward {reward:g}"
    ended = f"exit code {solved.exit_code} of the solution, {finding.exit_code} of the tests"
    return Control(
        works=False, detail=f"its known solution has {given} too ({ended}): {_tail(finding)}"
    )


async def _without_work(task: Task, container: Sandbox, env: Mapping[str, str]) -> Control:
    """Run the tests in an untouched container; a failed download or a missing report says that they
    did not run.
    """
    finding = await run_tests(task, container, env)
    if offline := _OFFLINE.search(finding.output):
        return Control(
            works=False, detail=f"they failed to download ({offline[0]!r}): {_tail(finding)}"
        )
    for path in () if task.uses_pytest else _reports(task):
        if (await container.exec(["test", "-s", path], workdir="/")).exit_code != 0:
            return Control(
                works=False, detail=f"they did not write their report {path}: {_tail(finding)}"
            )
    return Control(works=True, detail="no known solution; the tests ran without the agent's work")


def _reports(task: Task) -> list[str]:
    """Return the reports that ``test.sh`` tells its test runner to write."""
    text = (task.tests / TEST_SCRIPT).read_text(errors="replace")
    return list(dict.fromkeys(_REPORT.findall(text)))


def _tail(finding: Finding) -> str:
    return finding.output[-_SHOWN:].strip() or "no output"
