"""Whole runs with commands on the host in place of containers: their files, and the inputs that are
rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from hyperruntime.errors import (
    AgentError,
    DomainNotFoundError,
    EngineUnavailableError,
    ImageNotFoundError,
    RepositoryError,
    RunError,
    StorageError,
)
from hyperruntime.git.command import git
from hyperruntime.git.store import RepositoryStore
from hyperruntime.host.owner import OwnerIdentity
from hyperruntime.loop.generation.generation import STEPS
from hyperruntime.loop.run.plan import plan_resume, plan_run
from hyperruntime.loop.run.run import RunSummary, resume_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.spec import ContainerSpec
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository
from tests.machine.loop.conftest import WholeRun, times_of

ESCAPE = "\n".join(
    [
        "text = '''diff --git a/../../escaped b/../../escaped",
        "new file mode 100644",
        "--- /dev/null",
        "+++ b/../../escaped",
        "@@ -0,0 +1 @@",
        "+out",
        "'''",
        "open(f'{out}/model_patch.diff', 'w').write(text)",
    ]
)
TOO_MUCH = "for n in range(13):\n    open(f'data_{n}', 'wb').write(bytes(4_000_000))"
AS_DIFF = "\n".join(
    [
        "subprocess.run(['git', '-C', repo, 'add', '--all'], check=True)",
        "done = subprocess.run(['git', '-C', repo, 'diff', '--cached', '--binary'], "
        "check=True, capture_output=True)",
        "open(f'{out}/model_patch.diff', 'wb').write(done.stdout)",
    ]
)
FAILURES = [
    ("raise SystemExit(3)", "agent", "exit code 3"),
    ("raise RuntimeError('no idea')", "agent", "no idea"),
    ("pass", "empty-diff", "changed nothing"),
    ("open('hyperrun.toml', 'w').write('x')", "empty-diff", "1 changes were left out"),
    ("open('task_agent.py', 'w').write('def')", "does-not-load", "SyntaxError"),
    ("import os; os.remove('meta_agent.py')", "does-not-load", "meta_agent"),
    (ESCAPE, "refused-patch", "escaped"),
    (
        TOO_MUCH,
        "refused-patch",
        "more than 16777216 (max_change_bytes); the largest are 'data_0' (4000000 bytes), ",
    ),
    (
        f"{TOO_MUCH}\n{AS_DIFF}",
        "refused-patch",
        "52000000 bytes in all, more than 16777216 (max_change_bytes)",
    ),
    ("open(f'{out}/model_patch.diff', 'w').write('hello')", "refused-patch", "not a diff"),
    ("import os; os.mkfifo(f'{out}/model_patch.diff')", "refused-patch", "not a regular file"),
    (
        "import os; os.symlink('/etc/passwd', f'{out}/model_patch.diff')",
        "refused-patch",
        "cannot be read",
    ),
]
BINARY_BY_NAME = "\n".join(
    [
        "improve()",
        "open('named.bin', 'wb').write(bytes(range(256)))",
        "subprocess.run(['git', '-C', repo, 'add', '--all'], check=True)",
        "done = subprocess.run(['git', '-C', repo, 'diff', '--cached'], check=True, "
        "capture_output=True)",
        "assert b'Binary files' in done.stdout",
        "open(f'{out}/model_patch.diff', 'wb').write(done.stdout)",
    ]
)


def metadata(root: Path, genid: object) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((root / f"gen_{genid}" / "metadata.json").read_text())
    return value


def test_a_run_writes_all_documented_files(whole_run: WholeRun) -> None:
    summary, runtime, root = whole_run.summary, whole_run.runtime, whole_run.root
    assert [record.genid for record in summary.generations] == ["initial", 1, 2, 3]
    assert not summary.interrupted
    assert runtime.started == 1 + 2 * 2 + 1, "generation 3 fails before it is evaluated"
    assert runtime.open == []
    for name in ("gen_initial", "gen_1", "gen_2"):
        known = json.loads((root / name / "metadata.json").read_text())
        assert known["gen_output_dir"] == name
        assert known["valid_parent"] is True
        assert known["run_full_eval"] is True
        for evaluation in ("circle_packing_eval", "circle_packing_eval_val"):
            assert json.loads((root / name / evaluation / "report.json").read_text())["total"] == 1
            line = json.loads((root / name / evaluation / "predictions.jsonl").read_text())
            assert line["error"] is None
            assert line["prediction"]
        assert (
            root / name / "circle_packing_eval" / "agent_evals" / "n08.md"
        ).read_text() == "asked for 8 circles"
    assert (
        (root / "gen_1" / "agent_output" / "model_patch.diff")
        .read_bytes()
        .startswith(b"diff --git")
    )
    assert (
        "generation 1 saw"
        in (root / "gen_1" / "agent_output" / "meta_agent_chat_history.md").read_text()
    )
    assert list((root / "work").iterdir()) == []
    assert str(root) not in (root / "gen_2" / "metadata.json").read_text()
    assert load_run(root).state == "finished"


def test_each_step_is_reported_once_and_in_order_even_if_the_callback_raises(
    whole_run: WholeRun,
) -> None:
    of_one = [event for event in whole_run.events if event.generation == "1"]
    assert [event.step for event in of_one if event.state == "done"] == [*STEPS, "generation"]
    assert of_one[-1].score is not None
    assert all(event.state != "failed" for event in of_one)


def test_meta_agents_see_only_training_results_of_earlier_generations(whole_run: WholeRun) -> None:
    view, one = whole_run.root / "view", whole_run.summary.generations[1]
    said = (whole_run.root / "gen_2" / "agent_output" / "meta_agent_chat_history.md").read_text()
    assert said == "generation 2 saw ['gen_1', 'gen_initial']\n"
    names = {path.name for path in view.rglob("*")}
    assert {
        "gen_initial",
        "gen_1",
        "model_patch.diff",
        "circle_packing_eval",
        "report.json",
    } <= names
    assert not any(
        "val" in name for name in names - {"agent_evals", "circle_packing_eval", "value.py"}
    )
    text = "".join(path.read_text() for path in (view / "gen_1").rglob("*") if path.is_file())
    assert str(one.scores["circle_packing"]["val"]) not in text
    shown = json.loads((view / "gen_1" / "metadata.json").read_text())
    assert shown["hyperruntime"]["score"] == one.scores["circle_packing"]["train"]


def test_the_repository_of_the_initial_agent_is_never_changed(whole_run: WholeRun) -> None:
    assert times_of(whole_run.agent) == whole_run.agent_files


def test_failures_are_recorded_and_their_parents_stay_valid(
    run: Callable[..., RunSummary], tmp_path: Path, hangs: str
) -> None:
    expected = [*FAILURES, (hangs, "timeout", "5000 s")]
    reads = "assert open(f'{evals}/gen_initial/circle_packing_eval/report.json').read()\nimprove()"
    summary = run(
        {number: action for number, (action, _, _) in enumerate(expected, 1)}
        | {len(expected) + 1: reads},
        max_generation=len(expected) + 1,
        parent_selection="latest",
        timeout_meta_s=5000.0,
    )
    first, *failed, last = summary.generations
    for number, (record, (_, failure, said)) in enumerate(zip(failed, expected, strict=True), 1):
        assert (record.genid, record.parent, record.failure) == (number, "initial", failure)
        assert said in record.detail
        assert (record.valid_parent, record.score) == (False, None)
        assert metadata(Path(summary.run_dir), number)["valid_parent"] is False
    assert first.valid_parent
    assert (last.parent, last.failure, last.valid_parent) == ("initial", None, True)
    assert not list(tmp_path.rglob("escaped"))


def test_a_state_is_read_from_the_tree_if_the_diff_is_incomplete_and_left_out_files_are_named(
    run: Callable[..., RunSummary],
) -> None:
    actions = {
        1: "# by_tree\nimprove()\nopen('blob.bin', 'wb').write(bytes(range(256)))",
        2: BINARY_BY_NAME,
        3: "improve()\nopen('hyperrun.toml', 'w').write('[commands]')\nopen('big', "
        "'wb').write(bytes(2000))",
    }
    summary = run(actions, max_generation=3, parent_selection="latest", max_file_bytes=1000)
    assert [record.failure for record in summary.generations] == [None] * 4
    store = RepositoryStore(Path(summary.run_dir) / "repository.git")
    assert store.read_file(summary.generations[1].commit, "blob.bin") == bytes(range(256))
    assert store.read_file(summary.generations[2].commit, "named.bin") == bytes(range(256))
    assert {path for path, _ in summary.generations[3].dropped} == {"hyperrun.toml", "big"}


def failing(bodies: dict[int, str]) -> str:
    """Return code that makes the tasks of these sizes fail."""
    lines = "".join(f"\n        if n == {n}:\n            {body}" for n, body in bodies.items())
    return (
        "text = open('task_agent.py').read()\nopen('task_agent.py', 'w').write(text.replace('n "
        f'= inputs["n"]\', \'n = inputs["n"]\' + {lines!r}))\nimprove()'
    )


def test_a_failed_task_does_not_stop_the_others_and_a_bad_agent_stops_after_the_first_stage(
    run: Callable[..., RunSummary],
) -> None:
    one = {
        11: ("raise ValueError('cannot')", "ValueError: cannot"),
        14: ("import os; os._exit(9)", "without an answer"),
        17: ("import sys; sys.exit(0)", "SystemExit"),
        26: ("return 'x' * 9_000_000, []", "more than"),
    }
    two = {
        11: ("return [[float('nan'), 0, 0]] * 11, []", "not finite"),
        17: ("import os, signal; os.kill(os.getppid(), signal.SIGKILL)", "ended before this task"),
        32: ("return object(), []", "not JSON serializable"),
    }
    actions = {
        number: failing({n: body for n, (body, _) in tasks.items()})
        for number, tasks in ((1, one), (2, two))
    }
    actions[3] = "open('value.py', 'w').write('VALUE = 0.0\\n')"
    summary = run(actions, max_generation=3, eval_samples=(-1,), parent_selection="latest")
    root = Path(summary.run_dir)
    for number, expected in ((1, one), (2, two)):
        assert summary.generations[number].failure is None
        folders = [root / f"gen_{number}" / f"circle_packing_eval{split}" for split in ("", "_val")]
        lines = [
            json.loads(line)
            for folder in folders
            for line in (folder / "predictions.jsonl").read_text().splitlines()
        ]
        found = {int(line["task_id"].removeprefix("n")): line for line in lines}
        assert list(found) == [8, 11, 14, 17, 26, 32]
        assert found[8]["valid"]
        for n, (_, said) in expected.items():
            assert not found[n]["valid"]
            assert said in f"{found[n]['error']} {found[n]['detail']}"
    assert re.match(
        r"4 of 6 tasks failed, the most common reason: \S", summary.generations[1].unanswered
    )
    assert summary.generations[2].unanswered.startswith(
        "4 of 6 tasks failed, the most common reason: "
    )
    record = summary.generations[3]
    assert record.unanswered == ""
    assert record.staged_only
    assert record.score == 0.0
    assert record.valid_parent
    report = json.loads((root / "gen_3" / "circle_packing_eval" / "report.json").read_text())
    assert report["hyperruntime"]["tasks_run"] == 2
    assert not (root / "gen_3" / "circle_packing_eval_val").exists()
    assert "run_full_eval" not in metadata(root, 3)


def test_a_resume_repeats_an_initial_agent_that_the_engine_failed(
    run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    def broken(spec: ContainerSpec) -> None:
        raise EngineUnavailableError("fake", "it is gone")

    with pytest.raises(RunError, match="resume"):
        run(runtime=FakeRuntime(before_start=broken), max_generation=1)
    summary = resume_run(FakeRuntime(), plan_resume(tmp_path / "out" / "generate_r"))
    assert [record.failure for record in summary.generations] == [None] * 2


def test_the_default_agent_is_the_template_of_the_domain(run: Callable[..., RunSummary]) -> None:
    summary = run(agent=None, max_generation=1)
    assert summary.generations[1].failure is None
    assert json.loads((Path(summary.run_dir) / "run.json").read_text())["agent"] == "mutator"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"domains": "circle_packin"}, DomainNotFoundError, "did you mean 'circle_packing'"),
        ({"agent": "mutater"}, AgentError, "did you mean 'mutator'"),
        ({"agent": "./nowhere"}, AgentError, "not a directory"),
        ({"image": "bse"}, ImageNotFoundError, "bse"),
        ({"output_dir_parent": "/proc/nowhere"}, StorageError, "/proc/nowhere"),
        ({"output_dir_parent": "/dev/null/x"}, StorageError, "is a file"),
    ],
)
def test_invalid_input_raises_a_one_line_error_and_creates_nothing(
    run: Callable[..., RunSummary],
    tmp_path: Path,
    options: dict[str, Any],
    error: type[Exception],
    said: str,
) -> None:
    with pytest.raises(error, match=said) as caught:
        run(**options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_directory_without_git_or_with_uncommitted_files_is_rejected(
    options_of: Callable[..., GenerateOptions], tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    with pytest.raises(RepositoryError, match="git repository"):
        plan_run(options_of(agent=str(plain)))
    dirty = make_agent_repository(tmp_path / "dirty")
    (dirty / "new.py").write_text("")
    with pytest.raises(RepositoryError, match=r"new\.py"):
        plan_run(options_of(agent=str(dirty)))
    git(["-C", str(dirty), "add", "--all"])
    git(["-C", str(dirty), "commit", "-q", "-m", "clean"])
    assert plan_run(options_of(agent=str(dirty))).agent == str(dirty)


def test_an_existing_run_id_is_rejected(
    options_of: Callable[..., GenerateOptions], finished: Path
) -> None:
    assert finished.name == "generate_r"
    with pytest.raises(RunError, match="hyperrun resume"):
        plan_run(options_of())


def test_files_left_by_a_killed_start_do_not_block_a_run(
    run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    left = tmp_path / "out" / "generate_r"
    left.mkdir(parents=True)
    owner = attrs.asdict(OwnerIdentity.current()) | {"pid": 2**22 + 1}
    (left / "owner.json").write_text(json.dumps(owner))
    (left / "repository.git").mkdir()
    assert run(max_generation=0).generations[0].failure is None


def test_a_hyperrun_toml_can_name_other_commands(
    run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    agent = make_agent_repository(tmp_path / "an agent's repo", {1: "improve()"})
    (agent / "run_meta_agent.py").rename(agent / "evolve.py")
    (agent / "task_agent.py").rename(agent / "solver.py")
    toml = '[commands]\nmeta_agent = ["python3", "evolve.py"]\ntask_agent = "solver:TaskAgent"\n'
    (agent / "hyperrun.toml").write_text(toml)
    git(["-C", str(agent), "add", "--all"])
    git(["-C", str(agent), "commit", "-q", "-m", "other names"])
    assert [record.failure for record in run(max_generation=1).generations] == [None, None]
