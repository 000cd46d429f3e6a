"""A reward 0 counts only if a task's tests can run here; the network of each phase is the
task's.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperenvironment_terminal import Terminal
from hyperenvironment_terminal.judge import VerifierError
from hyperruntime.network.egress import Network
from hyperruntime.rollout.environment import Verdict
from hyperruntime.sandbox import Sandbox
from tests.contract.terminals import attempt, idle, make_task

# The form of a Terminal-Bench 2 test.sh: it installs its test runner, writes a CTRF report, and
# always writes a reward.
DOWNLOADS = """#!/bin/bash
apt-get update
apt-get install --yes curl
curl -LsSf https://astral.example/uv/install.sh | sh
. "$HOME/.local/bin/env"
if uvx --python 3.13 --with pytest-json-ctrf pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""
SOLUTION = "echo 42 > answer"
ONLY_WORKDIR = "WORKDIR /only/here\n"


async def solve(lease: Sandbox) -> None:
    """Solve the task, in the working directory of its image."""
    result = await lease.exec(["/bin/sh", "-c", f"pwd; {SOLUTION}"])
    assert result.stdout == b"/only/here\n", result.stderr


def judge(
    runtime: hr.Runtime, folder: Path, *, network: Network = "none", **options: object
) -> Verdict:
    """Return the verdict on an agent that solves the task."""
    environment = Terminal(tasks=str(folder), **options)  # type: ignore[arg-type]
    return asyncio.run(attempt(runtime, environment, folder.name, solve, network=network))


@pytest.fixture(autouse=True)
def needs_images(runtime: hr.Runtime, base_image: str) -> None:
    if runtime.name == "bubblewrap":
        pytest.skip("bubblewrap refuses the images of tasks; test_terminal.py checks this")


@pytest.mark.slow
def test_a_reward_0_of_tests_that_cannot_run_is_a_failure_of_infrastructure(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    """Its test.sh cannot download pytest here, so it writes 0 for the known solution too."""
    folder = make_task(
        tmp_path / "downloads",
        DOWNLOADS,
        solution=SOLUTION,
        settings="version = '1.0'",
        image=ONLY_WORKDIR,
    )
    with pytest.raises(
        VerifierError,
        match=r"(?s)cannot run here: its known solution has the reward 0 too.*internet \(",
    ):
        judge(runtime, folder, internet="base")
    assert judge(runtime, folder, internet="base", control=False).reward == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "report", ["--ctrf /logs/verifier/ctrf.json", "; echo 'Could not resolve host: x'"]
)
def test_without_a_known_solution_the_tests_themselves_show_that_they_cannot_run(
    runtime: hr.Runtime, tmp_path: Path, report: str
) -> None:
    """A failed download, or a missing report of the test runner."""
    test = f"no-test-runner {report}\necho 0 > /logs/verifier/reward.txt"
    with pytest.raises(VerifierError, match="cannot run here: they"):
        judge(runtime, make_task(tmp_path / "none", test, image=ONLY_WORKDIR))


@pytest.mark.slow
def test_one_control_run_is_enough_for_a_task(runtime: hr.Runtime, tmp_path: Path) -> None:
    """The known solution has a reward, so that of idle agents counts; a slow solution leaves the
    question open.
    """
    test = '[ "$(cat answer)" = 42 ]\necho $((! $?)) > /logs/verifier/reward.txt'
    folder = make_task(tmp_path / "honest", test, solution=SOLUTION, image=ONLY_WORKDIR)
    environment = Terminal(tasks=str(folder))
    for _ in range(2):
        verdict = asyncio.run(attempt(runtime, environment, "honest", idle))
        assert (verdict.reward, verdict.facts["control"]) == (
            0.0,
            "the known solution has the reward 1",
        )
        (folder / "solution" / "solve.sh").write_text("exit 1")
    assert judge(runtime, folder).reward == 1.0
    (folder / "solution" / "solve.sh").write_text("sleep 1000")
    slow = Terminal(tasks=str(folder), control_timeout_s=1.0)
    assert (
        "did not end in 1 s" in asyncio.run(attempt(runtime, slow, "honest", idle)).facts["control"]
    )


@pytest.mark.slow
def test_tests_may_have_a_network_that_agents_do_not_have(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    """The task.toml of Harbor sets it for each phase; the agent's file has its interfaces."""
    settings = '[environment]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n'
    test = 'ls /sys/class/net > all; [ "$(cat seen)" = lo ] && ! cmp -s all seen\n'
    test += "echo $((! $?)) > /logs/verifier/reward.txt"
    folder = make_task(tmp_path / "phases", test, settings=settings, image=ONLY_WORKDIR)

    async def look(lease: Sandbox) -> None:
        await lease.exec(["/bin/sh", "-c", "ls /sys/class/net > seen"])

    environment = Terminal(tasks=str(folder))
    assert asyncio.run(attempt(runtime, environment, "phases", look, network="host")).reward == 1.0


@pytest.mark.slow
def test_an_agent_that_leaves_too_many_files_has_the_reward_0(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    folder = make_task(tmp_path / "many", "echo 1 > /logs/verifier/reward.txt", image=ONLY_WORKDIR)

    async def fill(lease: Sandbox) -> None:
        await lease.exec(["/bin/sh", "-c", "for n in $(seq 30); do : > $n; done"])

    verdict = asyncio.run(
        attempt(runtime, Terminal(tasks=str(folder), limit_files=20), "many", fill)
    )
    assert (verdict.reward, verdict.phase) == (0.0, "state")
    assert "changed 30 files, but at most 20 are allowed (limit_files)" in verdict.detail
