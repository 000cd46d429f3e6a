"""Runs that resume after an end, an interruption, a kill or an engine failure, or in another
directory.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from hyperruntime import registry
from hyperruntime.domain import Domain
from hyperruntime.driver import PostMortem
from hyperruntime.errors import (
    ContainerLostError,
    EngineUnavailableError,
    RunError,
    RunLockedError,
    SpecError,
    StorageError,
)
from hyperruntime.git.store import RepositoryStore
from hyperruntime.host.process import wait_until
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import resume_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.runs.lock import RunLock
from hyperruntime.spec import ContainerSpec
from tests.doubles.fake_runtime import FakeRuntime
from tests.machine.loop.conftest import WholeRun


def is_of_a_meta_agent(spec: ContainerSpec) -> bool:
    return any(mount.target.endswith("evals") for mount in spec.mounts)


def failing(*errors: bool, error: Exception | None = None) -> FakeRuntime:
    """Return a runtime that fails, or does not fail, to start the containers of meta agents, in
    this order.
    """
    left, reason = iter(errors), error or EngineUnavailableError("fake", "it is gone")

    def start(spec: ContainerSpec) -> None:
        if is_of_a_meta_agent(spec) and next(left, False):
            raise reason

    return FakeRuntime(before_start=start)


def forget(run_dir: Path, *generations: int) -> None:
    """Remove the last generations of a run, as an interruption before them would."""
    lines = (run_dir / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run_dir / "journal.jsonl").write_bytes(b"".join(lines[: -len(generations)]))
    for number in generations:
        shutil.rmtree(run_dir / f"gen_{number}")
        shutil.rmtree(run_dir / "view" / f"gen_{number}")


def test_a_resume_loads_each_domain_once(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load = registry.load_domain

    def counted(name: str) -> Domain:
        loaded.append(name)
        domain: Domain = load(name)
        return domain

    monkeypatch.setattr(registry, "load_domain", counted)
    assert len(resume_run(FakeRuntime(), plan_resume(finished, max_generation=4)).generations) == 5
    assert loaded == ["circle_packing"]


def test_a_resume_does_not_change_back_what_another_one_changed_meanwhile(finished: Path) -> None:
    early = plan_resume(finished, max_generation=4)
    resume_run(FakeRuntime(), plan_resume(finished, max_generation=5))
    with pytest.raises(
        RunError, match=r"another process changed the options of .* meanwhile; resume it again"
    ):
        resume_run(FakeRuntime(), early)
    assert load_run(finished).options.max_generation == 5


def test_a_resumed_run_equals_an_uninterrupted_one_and_another_seed_changes_it(
    whole_run: WholeRun, finished: Path, tmp_path: Path
) -> None:
    whole = [
        (r.genid, r.parent, r.score, r.commit, r.failure) for r in whole_run.summary.generations
    ]
    forget(finished, 2, 3)
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    resumed = resume_run(FakeRuntime(), plan_resume(finished)).generations
    assert [(r.genid, r.parent, r.score, r.commit, r.failure) for r in resumed] == whole
    seeded = resume_run(FakeRuntime(), plan_resume(other, changes={"seed": 4})).generations
    assert [r.genid for r in seeded] == [r.genid for r in resumed]
    assert seeded[2].commit != resumed[2].commit
    assert seeded[2].score != resumed[2].score


def test_a_finished_run_can_be_moved_and_extended(finished: Path, tmp_path: Path) -> None:
    moved = finished.rename(tmp_path / "elsewhere")
    longer = resume_run(FakeRuntime(), plan_resume(moved, max_generation=5, parallel=2))
    assert len(longer.generations) == 6
    assert [record.failure for record in longer.generations[4:]] == [None] * 2
    assert load_run(moved).options.max_generation == 5
    assert load_run(moved).state == "finished"


def test_each_generation_records_the_options_that_may_change_its_score(finished: Path) -> None:
    changes = {"timeout_eval_s": 60.0, "eval_workers": 2, "parent_selection": "best"}
    resumed = resume_run(FakeRuntime(), plan_resume(finished, max_generation=4, changes=changes))
    before, after = resumed.generations[2].settings, resumed.generations[4].settings
    assert (before["timeout_eval_s"], before["eval_workers"]) == (18000.0, 10)
    assert (after["timeout_eval_s"], after["eval_workers"]) == (60.0, 2)
    assert {name for name in before if before[name] != after[name]} == {
        "timeout_eval_s",
        "eval_workers",
    }
    assert "parallel" not in before
    assert load_run(finished).options.parent_selection == "best"
    assert "settings" not in (finished / "view/gen_4/metadata.json").read_text()


def test_a_resume_without_an_archive_keeps_its_parent_rule(finished: Path) -> None:
    value = json.loads((finished / "run.json").read_text())
    value["options"]["run_baseline"] = "no_archive"
    (finished / "run.json").write_text(json.dumps(value))
    with pytest.raises(SpecError, match="no_archive"):
        resume_run(
            FakeRuntime(),
            plan_resume(finished, max_generation=4, changes={"parent_selection": "best"}),
        )
    assert (
        resume_run(FakeRuntime(), plan_resume(finished, max_generation=4)).generations[4].parent
        == 2
    )


def test_a_resume_repairs_what_a_kill_left(whole_run: WholeRun, finished: Path) -> None:
    forget(finished, 3)
    lines = (finished / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (finished / "journal.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:30])
    shutil.rmtree(finished / "view" / "gen_1")
    shutil.rmtree(finished / "view" / "gen_2")
    (finished / "work" / "gen_3").mkdir()
    resumed = resume_run(FakeRuntime(), plan_resume(finished))
    assert [record.genid for record in resumed.generations] == ["initial", 1, 2, 3]
    assert (finished / "view" / "gen_1" / "metadata.json").is_file()
    assert (finished / "view" / "gen_2" / "metadata.json").is_file()
    assert resumed.generations[2].commit == whole_run.summary.generations[2].commit


def test_a_lost_state_is_rebuilt_from_its_patches(whole_run: WholeRun, finished: Path) -> None:
    repository = finished / "repository.git"
    shutil.rmtree(repository)
    store = RepositoryStore(repository)
    assert store.add_repository(str(whole_run.agent))
    resumed = resume_run(FakeRuntime(), plan_resume(finished, max_generation=4))
    assert resumed.generations[-1].failure is None
    assert resumed.generations[-1].parent == 2
    assert store.tree(resumed.generations[2].commit)


def test_locks_and_files_left_by_a_killed_git_do_not_block_a_resume(finished: Path) -> None:
    repository = finished / "repository.git"
    left = [
        repository / "refs/hyperruntime/gen/4.lock",
        repository / "tmp" / "half",
        repository / "packed-refs.lock",
    ]
    left[0].parent.mkdir(parents=True, exist_ok=True)
    for path in left:
        path.mkdir() if path.name == "half" else path.touch()
    resumed = resume_run(FakeRuntime(), plan_resume(finished, max_generation=4))
    assert resumed.generations[4].failure is None
    assert not [path for path in left if path.exists()]


def test_a_run_that_another_process_owns_cannot_be_resumed(finished: Path) -> None:
    started: list[Path] = []
    with RunLock(finished), pytest.raises(RunLockedError):
        resume_run(FakeRuntime(), plan_resume(finished), on_start=started.append)
    assert started == []
    resume_run(FakeRuntime(), plan_resume(finished), on_start=started.append)
    assert started == [finished]


def test_an_interrupted_run_can_be_resumed(finished: Path) -> None:
    hang, hangs, runtime = finished / "hang", finished / "hangs", FakeRuntime()
    for number in (signal.SIGINT, signal.SIGTERM):
        hang.touch()
        hangs.unlink(missing_ok=True)
        before = signal.getsignal(number)

        def interrupt(number: int = number) -> None:
            assert wait_until(hangs.exists, 60)
            os.kill(os.getpid(), number)

        sender = threading.Thread(target=interrupt)
        sender.start()
        summary = resume_run(runtime, plan_resume(finished, max_generation=5))
        sender.join()
        assert summary.interrupted
        assert [record.genid for record in summary.generations] == ["initial", 1, 2, 3]
        assert runtime.open == []
        assert signal.getsignal(number) is before
        assert load_run(finished).state == "interrupted"
    hang.unlink()
    summary = resume_run(runtime, plan_resume(finished))
    assert not summary.interrupted
    assert [record.failure for record in summary.generations[3:]] == ["agent", None, None]


def test_three_parallel_generations_are_all_kept_and_an_engine_failure_is_retried(
    finished: Path,
) -> None:
    together, begun, lock = threading.Barrier(3, timeout=60), 0, threading.Lock()

    def start(spec: ContainerSpec) -> None:
        nonlocal begun
        if not is_of_a_meta_agent(spec):
            return
        with lock:
            begun += 1
            number = begun
        if number <= 3:
            together.wait()
            if number == 1:
                raise EngineUnavailableError("fake", "flaky")

    summary = resume_run(
        FakeRuntime(before_start=start), plan_resume(finished, max_generation=8, parallel=3)
    )
    assert sorted(record.genid for record in summary.generations[1:]) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(record.failure is None for record in summary.generations[4:])
    assert sorted(record.attempts for record in summary.generations[4:]) == [1, 1, 1, 1, 2]


def test_engine_failures_are_retried_and_a_broken_engine_ends_the_run(finished: Path) -> None:
    with pytest.raises(RunError, match="it is gone"):
        resume_run(
            failing(True, True, False, *[True] * 99),
            plan_resume(finished, max_generation=9, changes={"valid_parent": "hyperagents"}),
        )
    view = load_run(finished)
    four = view.generations[4]
    assert (four.failure, four.attempts, four.parent) == (None, 3, 1)
    assert [(record.failure, record.attempts) for record in view.generations[5:]] == [
        ("infrastructure", 3)
    ] * 3
    assert [record.parent for record in view.generations[5:]] == [4] * 3, (
        "an outage must not invalidate a parent"
    )
    assert all(view.generations[n].valid_parent for n in (0, 1, 4))
    assert view.state == "interrupted"


def test_a_generation_that_fails_because_the_host_disk_is_full_is_made_again_on_resume(
    finished: Path,
) -> None:
    full = PostMortem(
        state="exited", ended_by="the disk has only 3 MiB left, and its files took 300 MiB"
    )
    fails = failing(
        True, True, True, error=ContainerLostError(f"the container ended: {full}", full)
    )
    with pytest.raises(
        StorageError,
        match=r"generation 4 was not made.*the disk has only 3 MiB left.*free some space",
    ):
        resume_run(fails, plan_resume(finished, max_generation=4))
    assert [record.genid for record in load_run(finished).generations] == ["initial", 1, 2, 3]
    made = resume_run(FakeRuntime(), plan_resume(finished)).generations[4]
    assert (made.failure, made.attempts) == (None, 1)
