"""The programs of ``examples`` run unchanged, and print what they promise; the quick ones in
``make test-engines``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hyperruntime as hr

EXAMPLES = Path(__file__).parents[2] / "examples"
# Lines of each program's output, and whether it is quick.
PRINTED = {
    "copy_a_project": (
        ["exit code of the tests: 0", "came back: ['calc.py', 'test_calc.py']"],
        True,
    ),
    "evolve": (["exported: ["], False),
    "grade_programs": (
        ["right: 1.00", "wrong: 0.00", "endless: 0.00", "broken: 0.00", "cheats: 0.00"],
        False,
    ),
    "many_commands": (["1000 of 1000 outputs are right"], False),
    "model_with_budget": (
        [
            "1 hello from the model",
            "2 refused with 403",
            "spent: 2 requests",
            "BudgetExceededError",
        ],
        False,
    ),
    "rollouts_to_data": (["6 scored, mean reward 0.33", "6 rows with"], False),
    "run_untrusted": (
        ["network: OSError", "working", "timed out: True exit code: 124", "sleepers left: 0"],
        False,
    ),
    "search_over_forks": (["reward 1 after"], True),
    "shell_session": (
        [
            "hello from /tmp/work",
            "timed out: True",
            "the shell still knows: hello",
            "jobs: 1",
            "sleepers left: 0",
        ],
        False,
    ),
    "slots": (["20 of 20 tasks had a clean workspace of their own"], False),
    "tool_agent": (["bash: [2, 3, 5, 7, 11", "The primes below 30 are in primes.py."], True),
}
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]


def cases() -> list[object]:
    return [
        pytest.param(
            path,
            id=path.stem,
            marks=() if PRINTED.get(path.stem, ((), False))[1] else pytest.mark.slow,
        )
        for path in sorted(EXAMPLES.glob("*.py"))
    ]


@pytest.mark.parametrize("program", cases())
def test_an_example_prints_what_it_promises(
    program: Path, runtime: hr.Runtime, runtime_name: str, tmp_path: Path
) -> None:
    if "search" in program.stem and not runtime.info.snapshots:
        pytest.skip(f"{runtime_name} has no snapshots")
    env = {**os.environ, "HYPERRUNTIME_RUNTIME": runtime_name}
    args = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(
        args, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = iter(done.stdout.splitlines())
    for wanted in PRINTED[program.stem][0]:
        assert any(line.startswith(wanted) for line in lines), (
            f"{wanted!r} was not printed, in this order:\n{done.stdout}"
        )
    assert list(tmp_path.iterdir()) == []
