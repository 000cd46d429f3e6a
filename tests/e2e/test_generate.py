"""The generate loop on real containers: its records, its failures and its clean-up."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hyperruntime import Limits, Runtime
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.run.plan import plan_resume, plan_run
from hyperruntime.loop.run.run import RunSummary, resume_run, start_run
from hyperruntime.loop.run_files.archive import RunView, load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.testing import make_agent_repository

pytestmark = pytest.mark.engine


def run_name(tmp_path: Path) -> str:
    """Return the run id of a test; other tests may use the engine at the same time."""
    return f"{tmp_path.parent.name}.{tmp_path.name}"


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
        defaults: dict[str, Any] = {
            "domains": "circle_packing",
            "agent": str(agent),
            "image": base_image,
            "max_generation": 1,
            "seed": 3,
            "run_id": run_name(tmp_path),
            "output_dir_parent": str(tmp_path / "out"),
            "eval_samples": (1,),
        }
        return start_run(runtime, plan_run(GenerateOptions(**{**defaults, **options})), on_event)

    return start


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, runtime: Runtime) -> Any:
    """Fail a test that leaves a container of its runs."""

    def mine() -> set[str]:
        found = (owned.record for owned in runtime.containers())
        return {
            record.id
            for record in found
            if record.labels.get("io.hyperruntime.run") == run_name(tmp_path)
        }

    yield
    deadline = time.monotonic() + 60
    while left := mine():
        assert time.monotonic() < deadline, f"containers left: {left}"
        time.sleep(0.2)


def failures(summary: RunSummary | RunView) -> list[str | None]:
    return [record.failure for record in summary.generations]


def shape(generations: Sequence[GenerationRecord]) -> list[tuple[object, ...]]:
    return [(record.genid, record.parent, record.score, record.commit) for record in generations]


def check_whole(view: RunView) -> None:
    """Check that the files of a run agree with each other."""
    root = Path(view.run_dir)
    ids = [record.genid for record in view.generations]
    assert len(set(ids)) == len(ids)
    store = RepositoryStore(root / "repository.git")
    patches: dict[object, list[bytes]] = {"initial": []}
    for record in view.generations:
        folder = root / f"gen_{record.genid}"
        assert json.loads((folder / "metadata.json").read_text())["current_genid"] == record.genid
        if record.parent is not None:
            mine = (folder / "agent_output" / "model_patch.diff").read_bytes()
            patches[record.genid] = [*patches[record.parent], mine]
        assert store.replay(view.generations[0].commit, patches[record.genid]) == store.tree(
            record.commit
        )
        if record.score is not None:
            report = json.loads((folder / "circle_packing_eval_val" / "report.json").read_text())
            assert report["score"] == record.score


@pytest.mark.slow
def test_mutator_improves_on_circle_packing(run: Callable[..., RunSummary]) -> None:
    summary = run(agent="mutator", max_generation=3, eval_samples=None, seed=1)
    assert failures(summary) == [None] * 4
    assert summary.best is not None
    assert summary.best.score is not None
    assert summary.best.score > (summary.generations[0].score or 1)
    check_whole(load_run(summary.run_dir))
    said = (Path(summary.run_dir) / "gen_3/agent_output/meta_agent_chat_history.md").read_text()
    assert f"- parent: generation {summary.generations[3].parent}, training score " in said
    assert {line.split()[2] for line in said.splitlines() if " (from " in line} >= {
        "initial",
        "1",
        "2",
    }


@pytest.mark.slow
def test_each_failure_is_recorded_and_the_run_continues(
    run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    escape = (
        "text = 'diff --git a/../../escaped b/../../escaped\\nnew file mode 100644\\n--- "
        "/dev/null\\n+++ b/../../escaped\\n@@ -0,0 +1 "
        "@@\\n+out\\n'\nopen(f'{out}/model_patch.diff', 'w').write(text)"
    )
    actions = {
        1: "raise SystemExit(3)",
        2: "pass",
        3: escape,
        4: "open('task_agent.py', 'w').write('def')",
        5: "import time; subprocess.Popen(['setsid', 'sleep', '600']); time.sleep(600)",
        6: "# by_tree\nos.symlink('/etc', 'etc')\nos.mkfifo('pipe')\nimprove()",
    }
    summary = run(actions, max_generation=7, timeout_meta_s=15.0)
    assert failures(summary) == [
        None, "agent", "empty-diff", "refused-patch", "does-not-load", "timeout", None, None,
    ]  # fmt: skip
    assert {path for path, _ in summary.generations[6].dropped} == {"etc", "pipe"}
    assert not list(tmp_path.rglob("escaped"))
    assert list((Path(summary.run_dir) / "work").iterdir()) == []


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


def test_the_meta_agent_cannot_write_to_files_of_earlier_generations(
    run: Callable[..., RunSummary],
) -> None:
    action = "\n".join(
        [
            "try:",
            "    open(f'{evals}/gen_initial/metadata.json', 'w')",
            "except OSError:",
            "    improve()",
        ]
    )
    assert failures(run({1: action})) == [None, None]


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


@pytest.mark.slow
def test_three_parallel_generations_are_all_recorded(run: Callable[..., RunSummary]) -> None:
    summary = run(max_generation=6, parallel=3)
    assert failures(summary) == [None] * 7
    check_whole(load_run(summary.run_dir))


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
