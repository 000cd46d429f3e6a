"""The whole loop, with commands on the host in place of containers: what is kept, what is refused, what is resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
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
    RunLockedError,
    StorageError,
)
from hyperruntime.git.command import git
from hyperruntime.git.store import RepositoryStore
from hyperruntime.host.owner import OwnerIdentity
from hyperruntime.loop.generation.generation import STEPS
from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run.run import RunSummary, resume_run, start_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.spec import ContainerSpec
from hyperruntime.storage.run_lock import RunLock
from hyperruntime.testing import FakeRuntime, make_agent_repository

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


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunSummary]:
    """Return a function that makes an agent with scripted generations and runs it."""

    def start(
        actions: dict[int, str] | None = None,
        *,
        runtime: FakeRuntime | None = None,
        on_event: Callable[[StepEvent], None] | None = None,
        **options: Any,
    ) -> RunSummary:
        agent = tmp_path / "an agent's repo"
        if not agent.exists():
            make_agent_repository(agent, actions)
        defaults: dict[str, Any] = {
            "domains": "circle_packing",
            "agent": str(agent),
            "max_generation": 2,
            "seed": 3,
            "run_id": "r",
            "output_dir_parent": str(tmp_path / "out"),
            "eval_samples": (1,),
        }
        chosen = GenerateOptions(**{**defaults, **options})
        return start_run(runtime or FakeRuntime(), plan_run(chosen), on_event)

    return start


def only_failure(summary: RunSummary) -> GenerationRecord:
    failed = [record for record in summary.generations if record.failure]
    assert len(failed) == 1
    assert not failed[0].valid_parent
    assert failed[0].score is None
    return failed[0]


def test_a_run_leaves_the_files_that_are_promised(run: Callable[..., RunSummary]) -> None:
    runtime = FakeRuntime()
    summary = run(runtime=runtime)
    root = Path(summary.run_dir)
    assert [record.genid for record in summary.generations] == ["initial", 1, 2]
    assert not summary.interrupted
    assert runtime.started == 1 + 2 * 2
    assert runtime.open == []
    for name in ("gen_initial", "gen_1", "gen_2"):
        metadata = json.loads((root / name / "metadata.json").read_text())
        assert metadata["gen_output_dir"] == name
        assert metadata["valid_parent"] is True
        assert metadata["run_full_eval"] is True
        for evaluation in ("circle_packing_eval", "circle_packing_eval_val"):
            assert json.loads((root / name / evaluation / "report.json").read_text())["total"] == 1
            line = json.loads((root / name / evaluation / "predictions.jsonl").read_text())
            assert line["error"] is None
            assert line["prediction"]
        assert (root / name / "circle_packing_eval" / "agent_evals" / "n08.md").read_text() == "asked for 8 circles"
    assert (root / "gen_1" / "agent_output" / "model_patch.diff").read_bytes().startswith(b"diff --git")
    assert "generation 1 saw" in (root / "gen_1" / "agent_output" / "meta_agent_chat_history.md").read_text()
    assert list((root / "work").iterdir()) == []
    assert str(root) not in (root / "gen_2" / "metadata.json").read_text()
    assert load_run(root).state == "finished"


def test_every_step_is_reported_once_and_in_order(run: Callable[..., RunSummary]) -> None:
    events: list[StepEvent] = []
    run(on_event=events.append, max_generation=1)
    done = [event.step for event in events if event.generation == "1" and event.state == "done"]
    assert done == [*STEPS, "generation"]
    assert events[-1].score is not None
    assert all(event.state != "failed" for event in events)


def test_a_callback_that_raises_does_not_end_the_run(run: Callable[..., RunSummary]) -> None:
    def broken(event: StepEvent) -> None:
        raise RuntimeError("mine")

    assert run(on_event=broken, max_generation=1).generations[-1].failure is None


def test_the_same_seed_makes_the_same_run(run: Callable[..., RunSummary]) -> None:
    one, two, other = run(run_id="a"), run(run_id="b"), run(run_id="c", seed=4)

    def shape(summary: RunSummary) -> list[tuple[object, ...]]:
        return [(record.genid, record.parent, record.score, record.commit) for record in summary.generations]

    assert shape(one) == shape(two)
    assert shape(one) != shape(other)


def test_the_state_equals_replaying_the_lineage(run: Callable[..., RunSummary]) -> None:
    summary = run(max_generation=4, parent_selection="latest")
    root = Path(summary.run_dir)
    store = RepositoryStore(root / "repository.git")
    patches = [(root / f"gen_{n}" / "agent_output" / "model_patch.diff").read_bytes() for n in range(1, 5)]
    first, last = summary.generations[0].commit, summary.generations[-1].commit
    assert store.replay(first, patches) == store.tree(last)
    assert [record.parent for record in summary.generations[1:]] == ["initial", 1, 2, 3]
    metadata = json.loads((root / "gen_4" / "metadata.json").read_text())
    assert metadata["prev_patch_files"] == [f"gen_{n}/agent_output/model_patch.diff" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("action", "failure", "said"),
    [
        ("raise SystemExit(3)", "agent", "exit code 3"),
        ("raise RuntimeError('no idea')", "agent", "no idea"),
        ("pass", "empty-diff", "changed nothing"),
        ("open('hyperrun.toml', 'w').write('x')", "empty-diff", "1 changes were left out"),
        ("open('task_agent.py', 'w').write('def')", "does-not-load", "SyntaxError"),
        ("import os; os.remove('meta_agent.py')", "does-not-load", "meta_agent"),
        (ESCAPE, "refused-patch", "escaped"),
        ("open(f'{out}/model_patch.diff', 'w').write('hello')", "refused-patch", "not a diff"),
        ("import os; os.mkfifo(f'{out}/model_patch.diff')", "refused-patch", "not a regular file"),
        ("import os; os.symlink('/etc/passwd', f'{out}/model_patch.diff')", "refused-patch", "cannot be read"),
    ],
)
def test_a_failure_is_recorded(
    run: Callable[..., RunSummary], tmp_path: Path, action: str, failure: str, said: str
) -> None:
    summary = run({1: action}, max_generation=1)
    record = only_failure(summary)
    assert (record.genid, record.failure) == (1, failure)
    assert said in record.detail
    assert summary.generations[0].valid_parent
    assert not list(tmp_path.rglob("escaped"))
    metadata = json.loads((Path(summary.run_dir) / "gen_1" / "metadata.json").read_text())
    assert metadata["valid_parent"] is False


def test_a_parent_is_not_blamed_for_its_child(run: Callable[..., RunSummary]) -> None:
    summary = run({1: "raise SystemExit(3)"})
    assert [record.valid_parent for record in summary.generations] == [True, False, True]
    assert summary.generations[2].parent == "initial"


def test_a_meta_agent_that_hangs_is_ended(run: Callable[..., RunSummary]) -> None:
    record = only_failure(run({1: "import time; time.sleep(600)"}, timeout_meta_s=1.0, max_generation=1))
    assert record.failure == "timeout"
    assert "1 s" in record.detail


def test_a_tree_is_taken_where_no_diff_was_written(run: Callable[..., RunSummary]) -> None:
    action = "# by_tree\nimprove()\nopen('blob.bin', 'wb').write(bytes(range(256)))"
    summary = run({1: action}, max_generation=1)
    assert summary.generations[1].failure is None
    store = RepositoryStore(Path(summary.run_dir) / "repository.git")
    assert store.read_file(summary.generations[1].commit, "blob.bin") == bytes(range(256))


def test_a_diff_with_a_binary_file_that_it_does_not_hold_is_made_again_from_the_tree(
    run: Callable[..., RunSummary],
) -> None:
    action = "\n".join(
        [
            "improve()",
            "open('blob.bin', 'wb').write(bytes(range(256)))",
            "subprocess.run(['git', '-C', repo, 'add', '--all'], check=True)",
            "done = subprocess.run(['git', '-C', repo, 'diff', '--cached'], check=True, capture_output=True)",
            "assert b'Binary files' in done.stdout",
            "open(f'{out}/model_patch.diff', 'wb').write(done.stdout)",
        ]
    )
    summary = run({1: action}, max_generation=1)
    store = RepositoryStore(Path(summary.run_dir) / "repository.git")
    assert store.read_file(summary.generations[1].commit, "blob.bin") == bytes(range(256))


def test_what_is_left_out_of_a_diff_is_named(run: Callable[..., RunSummary]) -> None:
    action = "improve()\nopen('hyperrun.toml', 'w').write('[commands]')\nopen('big', 'wb').write(bytes(2000))"
    record = run({1: action}, max_generation=1, max_file_bytes=1000).generations[1]
    assert record.failure is None
    assert {path for path, _ in record.dropped} == {"hyperrun.toml", "big"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('cannot')", "ValueError: cannot"),
        ("import os; os._exit(9)", "without an answer"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("return 'x' * 9_000_000, []", "more than"),
        ("return [[float('nan'), 0, 0]] * 11, []", "not a finite number"),
        ("return object(), []", "not JSON serializable"),
        ("import os, signal; os.kill(os.getppid(), signal.SIGKILL)", "ended before this task"),
    ],
)
def test_a_task_that_fails_scores_nothing_and_the_others_go_on(
    run: Callable[..., RunSummary], body: str, said: str
) -> None:
    patch = (
        "text = open('task_agent.py').read().replace('n = inputs[\"n\"]', "
        f"'n = inputs[\"n\"]\\n        if n == 11:\\n            ' + {body!r})\n"
        "open('task_agent.py', 'w').write(text)\nimprove()"
    )
    summary = run({1: patch}, max_generation=1, eval_samples=(2,))
    record = summary.generations[1]
    folder = Path(summary.run_dir) / "gen_1" / "circle_packing_eval"
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert record.failure is None
    assert [line["valid"] for line in lines] == [True, False]
    assert said in f"{lines[1]['error']} {lines[1]['detail']}"


def test_a_broken_task_agent_ends_after_the_first_stage(run: Callable[..., RunSummary]) -> None:
    action = "open('value.py', 'w').write('VALUE = 0.0\\n')"
    summary = run({1: action}, max_generation=1, eval_samples=(-1,))
    record = summary.generations[1]
    assert record.staged_only
    assert record.score == 0.0
    assert record.valid_parent
    root = Path(summary.run_dir) / "gen_1"
    assert json.loads((root / "circle_packing_eval" / "report.json").read_text())["hyperruntime"]["tasks_run"] == 2
    assert not (root / "circle_packing_eval_val").exists()
    assert "run_full_eval" not in json.loads((root / "metadata.json").read_text())


def test_the_first_stage_can_be_skipped(run: Callable[..., RunSummary]) -> None:
    action = "open('value.py', 'w').write('VALUE = 0.0\\n')"
    record = run({1: action}, max_generation=1, skip_staged_eval=True).generations[1]
    assert not record.staged_only
    assert set(record.scores["circle_packing"]) == {"train", "val"}


def test_meta_agents_see_training_results_of_earlier_generations_and_nothing_else(
    run: Callable[..., RunSummary],
) -> None:
    summary = run(
        {3: "assert open(f'{evals}/gen_1/circle_packing_eval/report.json').read()\nimprove()"}, max_generation=3
    )
    assert summary.generations[-1].failure is None
    view = Path(summary.run_dir) / "view"
    names = {path.name for path in view.rglob("*")}
    assert {"gen_initial", "gen_1", "model_patch.diff", "circle_packing_eval", "report.json"} <= names
    assert not any("val" in name for name in names - {"agent_evals", "circle_packing_eval"})
    val = summary.generations[1].scores["circle_packing"]["val"]
    text = "".join(path.read_text() for path in (view / "gen_1").rglob("*") if path.is_file())
    assert str(val) not in text
    metadata = json.loads((view / "gen_1" / "metadata.json").read_text())
    assert metadata["hyperruntime"]["score"] == summary.generations[1].scores["circle_packing"]["train"]


def test_three_generations_at_once_are_all_kept(run: Callable[..., RunSummary]) -> None:
    together = threading.Barrier(3, timeout=20)

    def wait(spec: ContainerSpec) -> None:
        if any(mount.target.endswith("evals") for mount in spec.mounts):
            together.wait()

    summary = run(runtime=FakeRuntime(before_start=wait), max_generation=6, parallel=3)
    assert sorted(record.genid for record in summary.generations if record.genid != "initial") == [1, 2, 3, 4, 5, 6]
    assert all(record.failure is None for record in summary.generations)


def test_the_infrastructure_is_tried_again(run: Callable[..., RunSummary]) -> None:
    failures = iter([EngineUnavailableError("fake", "flaky")] * 2)

    def flaky(spec: ContainerSpec) -> None:
        if any(mount.target.endswith("evals") for mount in spec.mounts) and (error := next(failures, None)):
            raise error

    record = run(runtime=FakeRuntime(before_start=flaky), max_generation=1).generations[1]
    assert record.failure is None
    assert record.attempts == 3


def test_an_engine_that_stays_broken_ends_the_run_and_blames_nobody(
    run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    def broken(spec: ContainerSpec) -> None:
        if any(mount.target.endswith("evals") for mount in spec.mounts):
            raise EngineUnavailableError("fake", "it is gone")

    with pytest.raises(RunError, match="it is gone"):
        run(runtime=FakeRuntime(before_start=broken), max_generation=9)
    view = load_run(tmp_path / "out" / "generate_r")
    assert [record.failure for record in view.generations] == [None, *["infrastructure"] * 3]
    assert view.generations[0].valid_parent
    assert view.state == "interrupted"


def test_an_initial_agent_that_the_engine_failed_is_made_again_by_a_resume(
    run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    def broken(spec: ContainerSpec) -> None:
        raise EngineUnavailableError("fake", "it is gone")

    with pytest.raises(RunError, match="resume"):
        run(runtime=FakeRuntime(before_start=broken))
    summary = resume_run(FakeRuntime(), tmp_path / "out" / "generate_r")
    assert [record.failure for record in summary.generations] == [None] * 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_that_can_be_resumed(run: Callable[..., RunSummary], tmp_path: Path, number: int) -> None:
    go_on = tmp_path / "go on"

    def interrupt(event: StepEvent) -> None:
        if (event.generation, event.step, event.state) == ("2", "meta agent", "start"):
            threading.Timer(0.3, os.kill, (os.getpid(), number)).start()

    hang = f"import time\nif not os.path.exists({str(go_on)!r}): time.sleep(600)\nimprove()"
    before, runtime = signal.getsignal(number), FakeRuntime()
    summary = run({2: hang}, runtime=runtime, on_event=interrupt)
    assert summary.interrupted
    assert [record.genid for record in summary.generations] == ["initial", 1]
    assert runtime.open == []
    assert signal.getsignal(number) is before
    assert load_run(summary.run_dir).state == "interrupted"
    go_on.touch()
    assert [record.failure for record in resume_run(runtime, summary.run_dir).generations] == [None] * 3


def test_a_finished_run_can_be_extended(run: Callable[..., RunSummary]) -> None:
    summary = run(max_generation=1)
    longer = resume_run(FakeRuntime(), summary.run_dir, max_generation=3, parallel=2)
    assert len(longer.generations) == 4
    assert load_run(summary.run_dir).options.max_generation == 3
    assert load_run(summary.run_dir).state == "finished"


def test_a_resumed_run_makes_what_the_whole_one_would_have(run: Callable[..., RunSummary]) -> None:
    whole = run(run_id="whole", max_generation=4)
    half = run(run_id="half", max_generation=2)
    resumed = resume_run(FakeRuntime(), half.run_dir, max_generation=4)
    assert [(r.genid, r.parent, r.commit) for r in resumed.generations] == [
        (r.genid, r.parent, r.commit) for r in whole.generations
    ]


def test_a_copied_run_can_be_resumed_elsewhere(run: Callable[..., RunSummary], tmp_path: Path) -> None:
    summary = run(max_generation=1)
    moved = tmp_path / "elsewhere"
    Path(summary.run_dir).rename(moved)
    assert len(resume_run(FakeRuntime(), moved, max_generation=2).generations) == 3


def test_what_a_kill_left_is_made_up_for(run: Callable[..., RunSummary]) -> None:
    summary = run()
    root = Path(summary.run_dir)
    lines = (root / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (root / "journal.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:30])
    for path in sorted((root / "view" / "gen_2").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (root / "view" / "gen_2").rmdir()
    (root / "work" / "gen_3").mkdir()
    resumed = resume_run(FakeRuntime(), root, max_generation=3)
    assert [record.genid for record in resumed.generations] == ["initial", 1, 2, 3]
    assert (root / "view" / "gen_2" / "metadata.json").is_file()
    assert resumed.generations[2].commit == summary.generations[2].commit


def test_a_state_that_was_lost_is_made_again_from_its_patches(run: Callable[..., RunSummary]) -> None:
    summary = run(parent_selection="latest")
    repository = Path(summary.run_dir) / "repository.git"
    shutil.rmtree(repository)
    store = RepositoryStore(repository)
    assert store.add_repository(json.loads((Path(summary.run_dir) / "run.json").read_text())["agent"])
    resumed = resume_run(FakeRuntime(), summary.run_dir, max_generation=3)
    assert resumed.generations[-1].failure is None
    assert resumed.generations[-1].parent == 2
    assert store.tree(resumed.generations[2].commit)


def test_a_shipped_template_can_be_the_agent(run: Callable[..., RunSummary]) -> None:
    summary = run(agent="mutator", max_generation=1)
    assert summary.generations[1].failure is None
    assert json.loads((Path(summary.run_dir) / "run.json").read_text())["agent"] == "mutator"


def test_the_default_agent_is_what_the_domain_names(run: Callable[..., RunSummary]) -> None:
    assert json.loads((Path(run(agent=None, max_generation=0).run_dir) / "run.json").read_text())["agent"] == "mutator"


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
def test_wrong_input_gets_one_sentence_and_makes_nothing(
    run: Callable[..., RunSummary], tmp_path: Path, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        run(**options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_directory_that_is_not_git_or_dirty_is_refused(run: Callable[..., RunSummary], tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    with pytest.raises(RepositoryError, match="git repository"):
        run(agent=str(plain))
    dirty = make_agent_repository(tmp_path / "dirty")
    (dirty / "new.py").write_text("")
    with pytest.raises(RepositoryError, match=r"new\.py"):
        run(agent=str(dirty))
    git(["-C", str(dirty), "add", "--all"])
    git(["-C", str(dirty), "commit", "-q", "-m", "clean"])
    assert run(agent=str(dirty), max_generation=0).generations[0].failure is None


def test_the_hosts_repository_is_never_written(run: Callable[..., RunSummary], tmp_path: Path) -> None:
    agent = make_agent_repository(tmp_path / "mine")
    before = {path: path.stat().st_mtime_ns for path in agent.rglob("*")}
    run(agent=str(agent), max_generation=1)
    assert {path: path.stat().st_mtime_ns for path in agent.rglob("*")} == before


def test_a_run_id_that_exists_is_refused(run: Callable[..., RunSummary]) -> None:
    run(max_generation=0)
    with pytest.raises(RunError, match="hyperrun resume"):
        run(max_generation=0)


def test_what_a_start_left_that_was_killed_is_in_nobodys_way(run: Callable[..., RunSummary], tmp_path: Path) -> None:
    left = tmp_path / "out" / "generate_r"
    left.mkdir(parents=True)
    owner = attrs.asdict(OwnerIdentity.current()) | {"pid": 2**22 + 1}
    (left / "owner.json").write_text(json.dumps(owner))
    (left / "repository.git").mkdir()
    assert run(max_generation=0).generations[0].failure is None


def test_what_git_left_that_was_killed_is_in_nobodys_way(run: Callable[..., RunSummary]) -> None:
    summary = run(max_generation=0)
    repository = Path(summary.run_dir) / "repository.git"
    left = [repository / "refs/hyperruntime/gen/1.lock", repository / "tmp" / "half", repository / "packed-refs.lock"]
    left[0].parent.mkdir(parents=True, exist_ok=True)
    for path in left:
        path.mkdir() if path.name == "half" else path.touch()
    resumed = resume_run(FakeRuntime(), summary.run_dir, max_generation=1)
    assert resumed.generations[1].failure is None
    assert not [path for path in left if path.exists()]


def test_a_directory_of_somebody_else_is_not_touched(run: Callable[..., RunSummary], tmp_path: Path) -> None:
    theirs = tmp_path / "out" / "generate_r"
    theirs.mkdir(parents=True)
    (theirs / "thesis.tex").write_text("")
    with pytest.raises(RunError, match="remove it"):
        run(max_generation=0)
    assert (theirs / "thesis.tex").exists()


def test_a_run_that_is_owned_cannot_be_resumed(run: Callable[..., RunSummary]) -> None:
    summary = run(max_generation=0)
    with RunLock(Path(summary.run_dir)), pytest.raises(RunLockedError):
        resume_run(FakeRuntime(), summary.run_dir)


def test_a_hyperrun_toml_states_other_commands(run: Callable[..., RunSummary], tmp_path: Path) -> None:
    agent = make_agent_repository(tmp_path / "an agent's repo", {1: "improve()"})
    (agent / "run_meta_agent.py").rename(agent / "evolve.py")
    (agent / "task_agent.py").rename(agent / "solver.py")
    toml = '[commands]\nmeta_agent = ["python3", "evolve.py"]\ntask_agent = "solver:TaskAgent"\n'
    (agent / "hyperrun.toml").write_text(toml)
    git(["-C", str(agent), "add", "--all"])
    git(["-C", str(agent), "commit", "-q", "-m", "other names"])
    assert [record.failure for record in run(max_generation=1).generations] == [None, None]


@pytest.mark.parametrize(
    "text", ["= x", "[commands]\nmeta_agent = 'python3'", "[commands]\ntask_agent = 'x'", "load = 3"]
)
def test_a_bad_hyperrun_toml_is_refused(run: Callable[..., RunSummary], tmp_path: Path, text: str) -> None:
    agent = make_agent_repository(tmp_path / "an agent's repo")
    (agent / "hyperrun.toml").write_text(text)
    git(["-C", str(agent), "add", "--all"])
    git(["-C", str(agent), "commit", "-q", "-m", "bad"])
    with pytest.raises(AgentError, match=r"hyperrun\.toml"):
        run()
