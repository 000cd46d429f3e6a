"""Run a task's tests in a container, and read their reward.

``/tests`` and ``/logs`` are created again just before the tests, so that files of the agent in them
have no effect; both belong to the user of the tests. The tests get the environment of the image and
of the task, not of the agent's shell.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import attrs

from hyperenvironment_terminal.task import (
    LOGS,
    TEST_BEGINNING,
    TEST_SCRIPT,
    TEST_STATE,
    TESTS,
    TOOLS,
    Task,
)
from hyperenvironment_terminal.users import judges_lease, make_directory
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
