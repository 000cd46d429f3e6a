"""The generate loop on real containers: its records, its failures and its clean-up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyperruntime import Limits, Runtime
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import RunSummary, resume_run
from hyperruntime.loop.workbench.events import StepEvent
from tests.doubles.fake_runtime import make_agent_repository
from tests.runs import check_no_container_is_left, failures, run_name
from tests.runs import start as start_run

pytestmark = pytest.mark.engine


@pytest.fixture
def run(tmp_path: Path, runtime: Runtime, base_image: str) -> Callable[..., RunSummary]:
    """Return a function that makes an agent with scripted generations and runs it on the engine."""

    def start(
        actions: dict[int, str] | None = None,
        *,
        on_event: Callable[[StepEvent], None] | None = None,
        **options: Any,
    ) -> RunSummary:
        agent = tmp_path / "an agent's repo"
        if not agent.exists():
            make_agent_repository(agent, actions)
        chosen = {"max_generation": 1, **options}
        return start_run(runtime, tmp_path, on_event, agent=str(agent), image=base_image, **chosen)

    return start


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, runtime: Runtime) -> Any:
    """Fail a test that leaves a container of its runs."""
    yield
    check_no_container_is_left(runtime, run_name(tmp_path))


def test_changes_after_the_meta_agent_handed_in_do_not_reach_the_evaluation(
    run: Callable[..., RunSummary],
) -> None:
    action = "\n".join(
        [
            "improve()",
            "hand_in()",
            "open(f'{repo}/value.py', 'w').write('VALUE = 1.0')",
            "import site",
            "subprocess.run('echo VALUE=1.0 > /usr/lib/python3/value.py; echo 3 > "
            "/etc/marker', shell=True)",
            "loop = f'while :; do echo VALUE=1.0 > {repo}/value.py; sleep 0.05; done'",
            "subprocess.Popen(['setsid', 'sh', '-c', loop], stdout=-3, stderr=-3)",
        ]
    )
    summary = run({1: action})
    store = RepositoryStore(Path(summary.run_dir) / "repository.git")
    value = store.read_file(summary.generations[1].commit, "value.py")
    assert value is not None
    assert b"1.0" not in value
    assert 0.41 < (summary.generations[1].score or 0) < 0.5


@pytest.mark.slow
def test_files_of_other_container_users_are_recorded_and_removed(
    run: Callable[..., RunSummary],
) -> None:
    action = "\n".join(
        [
            "# by_tree",
            "improve()",
            "os.mkdir('deep')",
            "open('deep/secret', 'w').write('x')",
            "os.chmod('deep/secret', 0)",
            "subprocess.run(['chown', '-R', '1234:1234', 'deep', out])",
            "os.chmod('deep', 0)",
        ]
    )
    summary = run({1: action})
    assert failures(summary) == [None, None]
    store = RepositoryStore(Path(summary.run_dir) / "repository.git")
    assert store.read_file(summary.generations[1].commit, "deep/secret") == b"x"
    assert list((Path(summary.run_dir) / "work").iterdir()) == []


def test_an_agent_over_its_memory_limit_has_the_failure_agent(
    run: Callable[..., RunSummary], runtime: Runtime
) -> None:
    if runtime.info.limits["memory_bytes"] == "no":
        with pytest.raises(UnsupportedOptionError, match=r"cannot honour limits\.memory_bytes"):
            run({}, limits=Limits(memory_bytes=192 << 20))
        return
    summary = run({1: "x = bytearray(1 << 30)"}, limits=Limits(memory_bytes=192 << 20))
    assert summary.generations[1].failure == "agent"


@pytest.mark.slow
def test_an_agent_that_kills_its_container_has_the_failure_agent_after_three_attempts(
    run: Callable[..., RunSummary],
) -> None:
    summary = run({1: "os.kill(-1, 9)"}, max_generation=2)
    assert failures(summary) == [None, "agent", None]
    assert summary.generations[1].attempts == 3
    assert summary.generations[2].parent == "initial"


@pytest.mark.slow
def test_a_task_agent_that_kills_its_container_has_the_failure_evaluation(
    run: Callable[..., RunSummary],
) -> None:
    action = "\n".join(
        [
            "text = open('task_agent.py').read()",
            "kill = 'n = inputs[\"n\"]\\n        import os; os.kill(-1, 9)'",
            "open('task_agent.py', 'w').write(text.replace('n = inputs[\"n\"]', kill))",
        ]
    )
    assert failures(run({1: action})) == [None, "evaluation"]


def test_an_interrupt_ends_the_containers_and_the_run_can_be_resumed(
    run: Callable[..., RunSummary], runtime: Runtime
) -> None:
    def interrupt(event: StepEvent) -> None:
        if (event.generation, event.step, event.state) == ("2", "meta agent", "start"):
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.kill(os.getpid(), signal.SIGTERM)

    slow = "import time\ntime.sleep(5)\nimprove()"
    summary = run({2: slow}, max_generation=2, on_event=interrupt)
    assert summary.interrupted
    assert [record.genid for record in summary.generations] == ["initial", 1]
    assert failures(resume_run(runtime, plan_resume(summary.run_dir))) == [None] * 3
