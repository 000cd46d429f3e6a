"""Run a task's tests in a container, read their reward, and find out whether they can run here.

``/tests`` and ``/logs`` are created again just before the tests, so that files of the agent in them
have no effect; both belong to the user of the tests. The tests get the environment of the image and
of the task, not of the agent's shell.

A ``test.sh`` that cannot download its test runner writes the same 0 as one whose tests failed. The
known solution tells the two apart: it must get more than 0.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import attrs

from hyperenvironment_terminal.task import (
    LOGS,
    SOLUTION,
    TEST_BEGINNING,
    TEST_SCRIPT,
    TEST_STATE,
    TESTS,
    TOOLS,
    Task,
)
from hyperenvironment_terminal.users import agents_lease, judges_lease, make_directory
from hyperruntime.errors import ExtraMissingError, HyperRuntimeError, SpecError
from hyperruntime.host.owner import owned_directory
from hyperruntime.pool.user_lease import UserLease
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ExecResult

REWARD_TEXT = f"{LOGS}/verifier/reward.txt"
REWARD_JSON = f"{LOGS}/verifier/reward.json"
_MAKE_ANEW = f"rm -rf {TESTS} {LOGS} {TOOLS} && mkdir -p {TESTS} {LOGS}/verifier {LOGS}/agent"
_SHOWN = 4000
_REWARD_LIMIT = 65536
_SHOWN_OF_CONTROL = 500
_REPORT = re.compile(rf"{LOGS}/verifier/(?!reward\.)[\w.-]+\.(?:json|xml)\b")
_OFFLINE = re.compile(
    r"Could not resolve|Temporary failure (?:in name resolution|resolving)|Name or service not known|Failed to fetch"
    r"|Unable to locate package|Network is unreachable|No route to host|dns error|Failed to download",
    re.IGNORECASE,
)
# by pytest's exit code; 2 includes a test file that cannot be imported
_REWARDS = {0: 1.0, 1: 0.0, 2: 0.0}
# Exit code 70 differs from those of pytest: without pytest there is no verdict.
_RUN_PYTEST = f"""\
import sys
sys.path.append({TOOLS!r})
try:
    import pytest
except BaseException as error:
    print(f"pytest cannot be imported: {{error!r}}", file=sys.stderr)
    sys.exit(70)
sys.exit(pytest.main(sys.argv[1:]))
"""
# Explicit paths, so that pytest does not search the container for settings.
_PYTEST_ARGS = (
    "-c",
    "/dev/null",
    "--rootdir",
    TESTS,
    "--confcutdir",
    TESTS,
    "-p",
    "no:cacheprovider",
    "--color=no",
    "-rA",
    "-q",
)
# pytest and its dependencies, for images without them.
_NEEDED = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
# The parts of pygments that pytest imports without colours; the rest is ten times larger.
_FEW = {
    "lexers": ("__init__.py", "_mapping.py", "diff.py", "python.py"),
    "styles": ("__init__.py", "_mapping.py"),
}


class VerifierError(HyperRuntimeError):
    """The tests cannot reach a verdict, and the agent did not cause this."""


@attrs.frozen(kw_only=True)
class Finding:
    """The result of the tests.

    Attributes:
        rewards: rewards by name; ``reward`` is the one that counts; empty if there is no verdict.
        exit_code: exit code of the test command.
        timed_out: whether the test command was killed at its deadline.
        output: tail of its output.
        duration_s: duration of the test command in seconds.
    """

    rewards: Mapping[str, float]
    exit_code: int
    timed_out: bool
    output: str
    duration_s: float


async def run_tests(
    task: Task, container: Sandbox, env: Mapping[str, str], *, beginning: bool = False
) -> Finding:
    """Run a task's tests.

    Args:
        task: the task.
        container: the container whose state is tested.
        env: more environment variables of the tests.
        beginning: whether to run the test of the initial state instead.

    Raises:
        VerifierError: ``/tests`` and ``/logs`` cannot be created.
        TransferError: the tests cannot be copied.
    """
    made = await container.exec(["/bin/sh", "-c", _MAKE_ANEW], workdir="/")
    if made.exit_code != 0:
        why = made.stderr.decode(errors="replace").strip() or f"exit code {made.exit_code}"
        raise VerifierError(
            f"/tests and /logs cannot be created in the container: {why}; the tests need root, "
            "sh, rm and mkdir"
        )
    judge = await judges_lease(task, container)
    for directory in (TESTS, LOGS):
        await make_directory(directory, container, judge)
    await judge.put(str(task.tests), TESTS)
    if beginning or task.uses_pytest:
        return await _by_pytest(
            task, container, judge, env, TEST_BEGINNING if beginning else TEST_STATE
        )
    return await _by_script(task, container, judge, env)


async def _by_script(
    task: Task, container: Sandbox, judge: Sandbox, env: Mapping[str, str]
) -> Finding:
    path = f"{TESTS}/{TEST_SCRIPT}"
    own_line = (task.tests / TEST_SCRIPT).read_bytes().startswith(b"#!")
    begin = (
        f'chmod +x {path}; exec "$0"'
        if own_line
        else f'exec "$(command -v bash || command -v sh)" {path}'
    )
    result = await _run(task, judge, ["/bin/sh", "-c", begin, path], env)
    rewards = {} if result.timed_out else await _rewards(container)
    return _finding(result, rewards)


async def _by_pytest(
    task: Task, container: Sandbox, judge: Sandbox, env: Mapping[str, str], file: str
) -> Finding:
    if (await judge.exec(["python3", "-I", "-c", "import pytest"], workdir="/")).exit_code != 0:
        with owned_directory() as directory:
            folder = Path(directory) / "python"
            await asyncio.to_thread(_copy_pytest, folder)
            await make_directory(TOOLS, container, judge)
            await judge.put(str(folder), TOOLS)
    command = ["python3", "-I", "-c", _RUN_PYTEST, *_PYTEST_ARGS, f"{TESTS}/{file}"]
    result = await _run(task, judge, command, env)
    has_verdict = result.exit_code in _REWARDS and not result.timed_out
    return _finding(result, {"reward": _REWARDS[result.exit_code]} if has_verdict else {})


async def _run(task: Task, judge: Sandbox, args: list[str], env: Mapping[str, str]) -> ExecResult:
    home = {} if isinstance(judge, UserLease) else {"HOME": "/root"}
    return await judge.exec(
        args,
        timeout_s=task.verifier_timeout_s,
        env={**home, "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1", **env},
    )


async def _rewards(container: Sandbox) -> dict[str, float]:
    """Return the rewards that the tests wrote, or an empty dict if there is no valid reward.

    ``reward.json`` decides if it exists. If it has no number ``reward``, that of ``reward.txt`` is
    added to it.

    Raises:
        SpecError: ``reward.json`` has several numbers, and neither file says which one counts.

    Source: Harbor, ``src/harbor/verifier/verifier.py``: ``Verifier.verify`` and
    ``_parse_reward_json``.
    """
    found = await _read(container, REWARD_JSON)
    text = await _read(container, REWARD_TEXT)
    if found is None:
        return {} if text is None else _parse_text(text)
    numbers = (
        {**_parse_text(text or b""), **parsed} if (parsed := _parse_json(found)) is not None else {}
    )
    if not numbers or "reward" in numbers:
        return numbers
    if len(numbers) > 1:
        allowed = (
            "an object with a member 'reward', if it has more than one number and reward.txt "
            "has none"
        )
        raise SpecError(REWARD_JSON, sorted(numbers), allowed)
    return {**numbers, "reward": next(iter(numbers.values()))}


async def _read(container: Sandbox, path: str) -> bytes | None:
    """Return a file of the tests, or None if it does not exist."""
    script = f"[ -f {shlex.quote(path)} ] && exec cat {shlex.quote(path)}"
    result = await container.exec(
        ["/bin/sh", "-c", script], workdir="/", output_limit_bytes=_REWARD_LIMIT
    )
    return result.stdout if result.exit_code == 0 else None


def _parse_text(data: bytes) -> dict[str, float]:
    try:
        value = float(data.decode("ascii").strip())
    except ValueError:
        return {}
    return {"reward": value} if abs(value) <= sys.float_info.max else {}


def _parse_json(data: bytes) -> dict[str, float] | None:
    """Return the numbers of an object by name, or one number as ``reward``; None if the data is not
    JSON.
    """
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return None
    values = values if isinstance(values, dict) else {"reward": values}
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    }


def _finding(result: ExecResult, rewards: Mapping[str, float]) -> Finding:
    errors = b"\n[stderr]\n" + result.stderr if result.stderr.strip() else b""
    output = (result.stdout + errors).decode(errors="replace")
    return Finding(
        rewards=rewards,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        output=output[-_SHOWN:],
        duration_s=round(result.duration_s, 3),
    )


def _copy_pytest(folder: Path) -> None:
    """Create a directory from which Python on any machine can import pytest.

    Raises:
        ExtraMissingError: pytest or one of its dependencies is not installed.
    """
    folder.mkdir()
    for name in _NEEDED:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ExtraMissingError("tests of images without pytest", name, "terminal")
        if spec.submodule_search_locations:
            shutil.copytree(Path(spec.origin).parent, folder / name, ignore=_left_out)
        else:
            shutil.copy2(spec.origin, folder)


def _left_out(directory: str, names: list[str]) -> set[str]:
    few = _FEW.get(Path(directory).name) if Path(directory).parent.name == "pygments" else None
    return {
        name
        for name in names
        if name == "__pycache__" or name.endswith(".so") or (few is not None and name not in few)
    }


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
    """Return the reports that ``test.sh`` has its test runner write."""
    text = (task.tests / TEST_SCRIPT).read_text(errors="replace")
    return list(dict.fromkeys(_REPORT.findall(text)))


def _tail(finding: Finding) -> str:
    return finding.output[-_SHOWN_OF_CONTROL:].strip() or "no output"
