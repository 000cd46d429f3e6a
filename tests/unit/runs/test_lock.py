"""The lock of a run directory: when an owner is rejected, when it takes over, and how it learns
that it lost.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.errors import LeaseLostError, RunError, RunLockedError, StorageError
from hyperruntime.host.owner import OwnerIdentity
from hyperruntime.host.process import process_start_ticks
from hyperruntime.loop.run.plan import choose_directory, free_run_id, plan_run
from hyperruntime.loop.run.run import place_run, start_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.runs.lock import (
    JOB_OVER_S,
    RECORD,
    STALE_S,
    RunLock,
    owner_state,
    read_lease,
    wait_for_lease,
)
from hyperruntime.storage.atomic import make_new_directory
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository
from tests.doubles.slurm_programs import install_slurm_programs

ELSEWHERE: list[dict[str, Any]] = [
    {"boot_id": "another", "host": "another-machine"},
    {"boot_id": "another"},
    {"pid_namespace": 1, "host": "another-machine"},
    {"boot_id": "", "host": "another-machine"},
]


def write_owner(folder: Path, age_s: float = 0.0, **facts: Any) -> None:
    """Write an owner record with these facts, whose lease was renewed some time ago."""
    value = attrs.asdict(OwnerIdentity.current()) | {"pid": 2**22 + 1} | facts
    path = folder / RECORD
    path.write_text(json.dumps(value))
    renewed = path.stat().st_mtime - age_s
    os.utime(path, (renewed, renewed))


@pytest.fixture
def live() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that lives until the end of the test."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate()


def test_the_owner_holds_the_lock_and_releases_it(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        lock.check()
        assert owner_state(tmp_path) == "alive"
    assert owner_state(tmp_path) == "none"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ELSEWHERE)
def test_an_owner_on_another_machine_keeps_the_lock_while_it_renews(
    tmp_path: Path, where: dict[str, Any]
) -> None:
    write_owner(tmp_path, age_s=100, **where)
    assert owner_state(tmp_path) == "alive"
    with pytest.raises(RunLockedError, match="renewed its lease less than 120 s ago"):
        RunLock(tmp_path).lock()


@pytest.mark.parametrize("where", ELSEWHERE)
def test_an_owner_on_another_machine_is_replaced_when_its_lease_expires(
    tmp_path: Path, where: dict[str, Any]
) -> None:
    write_owner(tmp_path, age_s=130, **where)
    assert owner_state(tmp_path) == "dead"
    with RunLock(tmp_path) as lock:
        lock.check()


@pytest.fixture
def fast_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperruntime.runs.lock._POLL_S", 0.01)


@pytest.mark.usefixtures("fast_polls")
def test_a_wait_ends_when_the_lease_of_a_dead_machine_expires_or_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_owner(tmp_path, age_s=STALE_S - 30, boot_id="another", host="another-machine")
    with monkeypatch.context() as clock:
        now_s = count(time.time(), 10.0)  # each look at it is 10 s after the one before
        clock.setattr("hyperruntime.runs.lock._file_system_time", lambda _: next(now_s))
        wait_for_lease(tmp_path)
    os.utime(tmp_path / RECORD, (time.time() - STALE_S - 1.0,) * 2)
    with RunLock(tmp_path):
        pass
    write_owner(tmp_path, boot_id="another", host="another-machine")
    release = threading.Timer(0.1, (tmp_path / RECORD).unlink)
    release.start()
    wait_for_lease(tmp_path)
    release.join()
    RunLock(tmp_path).close()


@pytest.mark.usefixtures("fast_polls")
def test_a_wait_ends_when_the_owner_renews_its_lease_or_is_visible(
    tmp_path: Path, live: subprocess.Popen[bytes]
) -> None:
    write_owner(tmp_path, boot_id="another", host="another-machine")
    renewal = threading.Timer(0.1, lambda: os.utime(tmp_path / RECORD))
    renewal.start()
    wait_for_lease(tmp_path)
    renewal.join()
    with pytest.raises(RunLockedError, match="another-machine"):
        RunLock(tmp_path).lock()
    # an old record
    write_owner(tmp_path, age_s=9999, pid=live.pid, start_ticks=process_start_ticks(live.pid))
    wait_for_lease(tmp_path)
    with pytest.raises(RunLockedError, match=f"process {live.pid}, which is alive"):
        RunLock(tmp_path).lock()


def test_a_wrong_clock_does_not_expire_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_owner(tmp_path, **ELSEWHERE[0])
    monkeypatch.setattr("time.time", lambda: 4e9)
    with pytest.raises(RunLockedError):
        RunLock(tmp_path).lock()


def test_a_dead_owner_on_this_machine_is_replaced_at_once(tmp_path: Path) -> None:
    write_owner(tmp_path)
    assert owner_state(tmp_path) == "dead"
    with RunLock(tmp_path) as lock:
        lock.check()


def test_a_copied_directory_has_no_owner_and_a_moved_one_keeps_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with RunLock(run) as lock:
        shutil.copytree(run, tmp_path / "copy")
        assert owner_state(tmp_path / "copy") == "dead"
        with RunLock(tmp_path / "copy") as second:
            second.check()
        lock.check()
        run.rename(tmp_path / "moved")
        assert owner_state(tmp_path / "moved") == "alive"
        with pytest.raises(RunLockedError, match=f"process {os.getpid()}"):
            RunLock(tmp_path / "moved").lock()


def test_the_lease_is_renewed(tmp_path: Path) -> None:
    with RunLock(tmp_path, renew_s=0.02):
        record = tmp_path / RECORD
        os.utime(record, (1, 1))
        wait_for(lambda: record.stat().st_mtime > 1000)


def test_an_owner_that_lost_its_lease_is_notified_and_leaves_the_new_record(tmp_path: Path) -> None:
    told = threading.Event()
    lock = RunLock(tmp_path, renew_s=0.02)
    with lock:
        lock.on_lost(told.set)
        write_owner(tmp_path, pid=os.getpid(), token="another")
        assert told.wait(120)
        with pytest.raises(LeaseLostError, match="taken over"):
            lock.check()
    lease = read_lease(tmp_path)
    assert lease is not None
    assert lease.owner.token == "another"


def broken_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make locks succeed for all at once, as on a network file system whose lock daemon is
    missing.
    """
    for name in ("flock", "lockf"):
        monkeypatch.setattr(fcntl, name, lambda *_: None)


@pytest.mark.parametrize("before", ["nothing", "dead owner", "killed successor", "damaged lease"])
@pytest.mark.parametrize("links", [True, False])
def test_simulated_broken_locks_of_nfs_do_not_give_a_directory_two_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, links: bool
) -> None:
    broken_locks(monkeypatch)
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EOPNOTSUPP, "no links")))
    if before == "damaged lease":
        (tmp_path / RECORD).write_text("{")
    elif before != "nothing":
        write_owner(tmp_path, token="a")
    if before == "killed successor":
        write_owner(tmp_path, token="b")
        (tmp_path / RECORD).rename(tmp_path / ".owner.a.next")
        write_owner(tmp_path, token="a")
    locks = [RunLock(tmp_path) for _ in range(8)]
    start = threading.Barrier(len(locks))

    def want(lock: RunLock) -> bool:
        start.wait()
        try:
            lock.lock()
        except (RunLockedError, LeaseLostError):
            return False
        return True

    with ThreadPoolExecutor(len(locks)) as threads:
        won = list(threads.map(want, locks))
    assert won.count(True) == 1
    assert [lock.is_ours for lock in locks] == won
    for lock in locks:
        lock.close()
    assert list(tmp_path.iterdir()) == []


def test_simulated_late_directories_of_nfs_do_not_give_a_directory_two_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that still sees the lease of the dead owner, although another one has taken the
    directory over.
    """
    broken_locks(monkeypatch)
    write_owner(tmp_path, **ELSEWHERE[0], age_s=130)
    stale = (tmp_path / RECORD).read_bytes()
    with RunLock(tmp_path) as lock:
        real, seen = Path.read_bytes, threading.local()

        def read_late(path: Path) -> bytes:
            return stale if path.name == RECORD and getattr(seen, "is_late", False) else real(path)

        def want_late() -> None:
            seen.is_late = True
            RunLock(tmp_path).lock()

        os.utime(tmp_path / RECORD, (1, 1))
        monkeypatch.setattr(Path, "read_bytes", read_late)
        with (
            ThreadPoolExecutor(1) as thread,
            pytest.raises(RunLockedError, match=f"process {os.getpid()}"),
        ):
            thread.submit(want_late).result()
        lock.check()


@pytest.mark.parametrize(
    ("job", "cluster", "state"),
    [("7", "", "alive"), ("8", "", "dead"), ("9", "", "dead"), ("10", "", "alive"), ("8", "other", "alive"),
     ("8", "ours", "dead")],
)  # fmt: skip
def test_an_owner_on_another_node_is_judged_by_the_batch_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, cluster: str, state: str
) -> None:
    install_slurm_programs(tmp_path, monkeypatch)
    (run := tmp_path / "run").mkdir()
    facts = {**ELSEWHERE[0], "slurm_job": job, "slurm_restarts": 0, "slurm_cluster": cluster}
    write_owner(run, **facts)
    assert owner_state(run) == "alive"  # it was renewed a moment ago
    write_owner(run, age_s=JOB_OVER_S + 1, **facts)
    assert owner_state(run) == state
    if state == "dead":
        wait_for_lease(run)
        RunLock(run).close()


def test_an_earlier_start_of_the_same_job_does_not_hold_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    write_owner(tmp_path, **ELSEWHERE[0], slurm_job="7", slurm_restarts=0, slurm_cluster="")
    with RunLock(tmp_path):
        written = json.loads((tmp_path / RECORD).read_bytes())
    assert (written["slurm_job"], written["slurm_restarts"]) == ("7", 1)


def test_a_run_that_was_taken_over_ends_and_archives_nothing_more(tmp_path: Path) -> None:
    make_agent_repository(tmp_path / "agent")
    run_dir, runtime = tmp_path / "generate_r", FakeRuntime()

    def take_over(event: StepEvent) -> None:
        if (event.generation, event.step, event.state) == ("1", "evaluate", "start"):
            write_owner(run_dir, pid=os.getpid(), token="another")

    options = GenerateOptions(
        domains="circle_packing", agent=str(tmp_path / "agent"), run_id="r", output_dir_parent=str(tmp_path),
        max_generation=3, eval_samples=(1,),
    )  # fmt: skip
    with pytest.raises(LeaseLostError, match="taken over by another process"):
        start_run(runtime, plan_run(options), take_over)
    assert [record.genid for record in load_run(run_dir).generations] == ["initial"]
    assert runtime.open == []
    lease = read_lease(run_dir)
    assert lease is not None
    assert lease.owner.token == "another"


@given(st.binary(max_size=200) | st.builds(lambda value: json.dumps(value).encode(), st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.dictionaries(st.sampled_from(["token", "host", "pid", "boot_id", "directory"]), inner)
    | st.lists(inner, max_size=3),
)))  # fmt: skip
def test_any_content_of_the_record_is_read(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / RECORD).write_bytes(data)
    lease = read_lease(folder)
    assert lease is None or isinstance(lease.owner.pid, int)
    assert owner_state(folder) in ("none", "alive", "dead")


def test_processes_that_want_the_same_directory_get_different_ones(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(make_new_directory, [tmp_path / "out" / "run"] * 8))
    assert sorted(path.name for path in made) == [
        "run",
        *(f"run_{number}" for number in range(2, 9)),
    ]
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="choose"):
        make_new_directory(tmp_path / "file" / "run")


def test_a_run_without_a_chosen_id_never_gets_the_directory_of_another(tmp_path: Path) -> None:
    options = GenerateOptions(domains=("circle_packing",), output_dir_parent=str(tmp_path))
    plan = plan_run(options)
    plan.layout.root.mkdir()  # as another process that planned at the same instant
    assert free_run_id(plan.options) == f"{plan.options.run_id}_2"
    again = place_run(plan)
    assert again.layout.root.is_dir()
    assert again.layout.root != plan.layout.root
    assert (again.options.run_id, again.options.seed) != (plan.options.run_id, None)
    chosen = plan_run(attrs.evolve(options, run_id="mine"))
    chosen.layout.root.mkdir()
    with pytest.raises(StorageError, match="generate_mine"):
        place_run(chosen)


@pytest.mark.parametrize("left", [(), (".owner.lock",), (".owner.lock", ".owner.json.partial")])
def test_a_directory_left_by_a_killed_start_is_reused(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    options = GenerateOptions(
        domains=("circle_packing",), run_id="1", output_dir_parent=str(tmp_path)
    )
    run_dir = tmp_path / "generate_1"
    run_dir.mkdir()
    for name in left:
        (run_dir / name).write_text("{}")
    assert choose_directory(options) == run_dir
    assert not run_dir.exists()


def test_a_directory_that_is_locked_or_has_files_is_rejected(tmp_path: Path) -> None:
    options = GenerateOptions(
        domains=("circle_packing",), run_id="1", output_dir_parent=str(tmp_path)
    )
    run_dir = tmp_path / "generate_1"
    run_dir.mkdir()
    # acquiring now
    (run_dir / ".owner.x.new").write_text(json.dumps(attrs.asdict(OwnerIdentity.current())))
    with pytest.raises(RunError, match="exists already"):
        choose_directory(options)
    write_owner(run_dir)
    (run_dir / RECORD).rename(run_dir / ".owner.x.new")
    (run_dir / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="exists already"):
        choose_directory(options)
    assert (run_dir / "notes.txt").read_text() == "mine"


def wait_for(condition: object) -> None:
    """Wait until a function returns true."""
    from hyperruntime.host.process import wait_until

    assert callable(condition)
    assert wait_until(condition, 60)
