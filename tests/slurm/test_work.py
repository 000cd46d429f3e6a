"""Runs of the loop and rollouts on four nodes of a real Slurm, as an ordinary user."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import attrs
import pytest

from hyperruntime.host.batch_job import BatchJob
from hyperruntime.host.process import run_process, wait_until
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES, read_groups, read_trajectories
from hyperruntime.rollout.run_files.turn_journal import TURNS
from hyperruntime.runs.lock import STALE_S, owner_state, read_lease
from hyperruntime.testing.model import scripted_model
from tests.command import cli
from tests.doubles.fake_runtime import make_agent_repository
from tests.e2e.rollout_world import rollout as run_rollouts
from tests.e2e.test_rollout_nodes import counting
from tests.slurm.conftest import SLURM, SOON_S, hyperrun, jobs, ready
from tests.trees import shown_inside

ENGINES = ("podman", "apptainer", "bubblewrap")
ON_NODES = ("--cluster", "cluster.toml")
SLEEPS = "import time; time.sleep(4); improve()"
pytestmark = pytest.mark.timeout(280)


def start(folder: Path, *words: str, out: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    line = cli(*words)
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(line, cwd=folder, env=env, stdout=out or said, stderr=said)


def generate(engine: str, name: str, *more: str) -> list[str]:
    given = ["--domains=circle_packing", "--agent=./agent", "--seed=5", "--eval-samples=1"]
    return ["--runtime", engine, "generate", *given, "--run-id", name, "--parallel", "4", *more]


def rollout(engine: str, url: str, name: str, *more: str) -> list[str]:
    options = ("--option=count=8", "--group-size=2", "--parallel=8", "--seed=5")
    return ["--runtime", engine, *run_rollouts(url, Path(name), *options, *more)]


def lineage(folder: Path, name: str) -> list[Any]:
    found = load_run(folder / "outputs" / f"generate_{name}").generations
    assert [record.failure for record in found] == [None] * len(found)
    return sorted((str(record.genid), str(record.parent), record.score) for record in found)


def running() -> list[str]:
    done = run_process(["squeue", "--noheader", "--states=R", "--format=%i"], timeout_s=30)
    return done.stdout.decode().split()


def submit(folder: Path, command: str, *words: str) -> str:
    """Submit a job that runs a command of the shell; return its id."""
    (folder / "job.sh").write_text(f"#!/bin/sh\nexport XDG_CACHE_HOME={folder}/cache\n{command}\n")
    asked = [
        "sbatch",
        "--parsable",
        f"--chdir={folder}",
        "--open-mode=append",
        "--output=said",
        *words,
        "job.sh",
    ]
    done = run_process(asked, timeout_s=30, cwd=folder)
    assert done.exit_code == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_on_four_nodes_has_the_scores_of_one_machine(folder: Path, engine: str) -> None:
    make_agent_repository(folder / "agent", dict.fromkeys(range(1, 5), SLEEPS))
    alone = hyperrun(folder, *generate(engine, "alone", "--max-generation", "4"))
    assert alone.exit_code == 0, alone.stderr.decode()
    most = 0
    with start(folder, *generate(engine, "nodes", "--max-generation", "4", *ON_NODES)) as head:
        while head.poll() is None:
            most = max(most, len(running()))
            time.sleep(0.2)
    assert head.returncode == 0, (folder / "said").read_text()
    assert most == 4
    assert lineage(folder, "nodes") == lineage(folder, "alone")


@pytest.mark.parametrize(("generations", "parallel"), [(6, 1), (4, 4)])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_demo_on_four_nodes_prints_the_table_of_one_machine(
    folder: Path, engine: str, generations: int, parallel: int
) -> None:
    (folder / "cluster.toml").write_text(f"{SLURM}min_nodes = 4\n")
    words = [
        "--runtime",
        engine,
        "demo",
        f"--generations={generations}",
        f"--parallel={parallel}",
        "--json",
    ]
    done, most = hyperrun(folder, *words, "--output=alone"), 0
    assert done.exit_code == 0, done.stderr.decode()
    with (
        (folder / "table").open("wb") as table,
        start(folder, *words, "--output=nodes", *ON_NODES, out=table) as head,
    ):
        while head.poll() is None:
            most = max(most, len(running()))
            time.sleep(0.2)
    assert head.returncode == 0, (folder / "said").read_text()
    assert most == 4
    first, second = (
        [
            (each["current_genid"], each["parent_genid"], each["score"])
            for each in json.loads(text)["generations"]
        ]
        for text in (done.stdout, (folder / "table").read_bytes())
    )
    assert sorted(second, key=str) == sorted(first, key=str)
    assert len(first) == generations + 1


def test_a_run_survives_cancelled_jobs_and_a_killed_head(folder: Path) -> None:
    make_agent_repository(folder / "agent", dict.fromkeys(range(1, 11), SLEEPS))
    with start(folder, *generate("bubblewrap", "hit", "--max-generation", "10", *ON_NODES)) as head:
        assert wait_until(lambda: len(running()) == 4, SOON_S, 0.2), (folder / "said").read_text()
        time.sleep(2)
        run_process(["scancel", *running()[:2]], timeout_s=30)
        journal = folder / "outputs" / "generate_hit" / "journal.jsonl"
        assert wait_until(lambda: journal.read_bytes().count(b"\n") >= 5, SOON_S, 0.1)
        head.kill()
    resumed = hyperrun(
        folder, "--runtime", "bubblewrap", "resume", "outputs/generate_hit", *ON_NODES
    )
    assert resumed.exit_code == 0, resumed.stderr.decode()
    assert [genid for genid, _, _ in lineage(folder, "hit")] == sorted(
        ["initial", *map(str, range(1, 11))]
    )
    assert (
        sum(record.attempts for record in load_run(folder / "outputs" / "generate_hit").generations)
        > 11
    )
    assert [path.name for path in (folder / "outputs").iterdir()] == ["generate_hit"]


def test_a_run_whose_jobs_fail_on_three_hosts_of_eight_finishes_on_five(folder: Path) -> None:
    """Each job has a host alone; those of the bad hosts fail before a node has joined."""
    hosts = 'case "$SLURMD_NODENAME" in n[1-3]) echo the disk is full >&2; exit 3 ;; esac'
    (folder / "cluster.toml").write_text(
        SLURM.replace("max_nodes = 4", "max_nodes = 8")
        + f"partition = \"wide\"\nmin_nodes = 8\nsetup = ['{hosts}']\n"
        + 'options = ["#SBATCH --exclusive"]\n'
    )
    make_agent_repository(folder / "agent", dict.fromkeys(range(1, 11), SLEEPS))
    words = generate("bubblewrap", "bad", "--max-generation", "10", "--parallel", "10", *ON_NODES)
    used = set[str]()
    with start(folder, *words) as head:
        while head.poll() is None:
            used |= {node["host"] for node in ready(folder)}
            time.sleep(1)
    assert head.returncode == 0, (folder / "said").read_text()
    assert used == {"n4", "n5", "n6", "n7", "n8"}
    assert [genid for genid, _, _ in lineage(folder, "bad")] == sorted(
        ["initial", *map(str, range(1, 11))]
    )
    said = (folder / "said").read_text()
    assert all(said.count(f"host={host}") == 1 for host in ("n1", "n2", "n3")), said


def cancel_one(folder: Path) -> None:
    assert run_process(["scancel", running()[0]], timeout_s=30).exit_code == 0


def preempt_one(folder: Path) -> None:
    """Let a job of another partition take a node, whose job gets SIGTERM, and SIGKILL after 30
    s.
    """
    wrapped = f"squeue --noheader --format='%P %T' >{folder}/urgent"
    asked = [
        "sbatch",
        "--parsable",
        "--partition=urgent",
        "--exclusive",
        "--output=/dev/null",
        "--wrap",
        wrapped,
    ]
    assert run_process(asked, timeout_s=30, cwd=folder).exit_code == 0


@pytest.mark.parametrize(
    ("engine", "lose_one"),
    [*((engine, cancel_one) for engine in ENGINES), ("bubblewrap", preempt_one)],
)
def test_rollouts_on_four_nodes_of_which_one_is_lost_are_those_of_one_machine(
    folder: Path, engine: str, lose_one: Callable[[Path], None]
) -> None:
    with scripted_model(counting) as model:
        alone = hyperrun(folder, *rollout(engine, model.url, "alone"))
        assert alone.exit_code == 0, alone.stderr.decode()
        with start(folder, *rollout(engine, model.url, "nodes", *ON_NODES)) as head:
            assert wait_until(
                lambda: len(running()) == 4 and any((folder / "nodes" / TURNS).glob("*")),
                SOON_S,
                0.1,
            )
            lose_one(folder)
    assert head.returncode == 0, (folder / "said").read_text()
    first, second = (
        [
            attrs.evolve(each, timing={}, started_at=0.0, attempts=0, replay={})
            for each in sorted(read_trajectories(folder / name), key=lambda each: each.id)
        ]
        for name in ("alone", "nodes")
    )
    assert second == first
    assert len((folder / "nodes" / TRAJECTORIES).read_bytes().splitlines()) == len(first) == 16
    assert lose_one is cancel_one or wait_until((folder / "urgent").exists, SOON_S, 0.2), (
        "nothing was preempted"
    )
    assert sorted(read_groups(folder / "nodes"), key=str) == sorted(
        read_groups(folder / "alone"), key=str
    )
    assert not jobs() or wait_until(lambda: not jobs(), SOON_S, 0.2)


def test_a_node_that_is_preempted_with_30_s_notice_gives_its_work_to_others_at_once(
    folder: Path,
) -> None:
    make_agent_repository(folder / "agent", dict.fromkeys(range(1, 25), SLEEPS))
    with start(
        folder, *generate("bubblewrap", "left", "--max-generation", "24", *ON_NODES)
    ) as head:
        assert wait_until(lambda: len(running()) == 4, SOON_S, 0.2), (folder / "said").read_text()
        time.sleep(2)
        preempt_one(folder)
    assert head.returncode == 0, (folder / "said").read_text()
    assert wait_until((folder / "urgent").exists, SOON_S, 0.2), "nothing was preempted"
    assert [genid for genid, _, _ in lineage(folder, "left")] == sorted(
        ["initial", *map(str, range(1, 25))]
    )
    records = load_run(folder / "outputs" / "generate_left").generations
    assert sum(record.attempts for record in records) > len(records), (
        "a generation was made again elsewhere"
    )


def test_a_head_in_a_job_that_is_put_back_in_the_queue_goes_on_by_itself(folder: Path) -> None:
    make_agent_repository(folder / "agent", dict.fromkeys(range(1, 7), SLEEPS))
    words = generate("bubblewrap", "again", "--max-generation", "6", "--resume-or-start", *ON_NODES)
    job = submit(folder, shlex.join(cli(*words)), "--requeue")
    journal = folder / "outputs" / "generate_again" / "journal.jsonl"
    assert wait_until(
        lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 3, SOON_S, 0.2
    )
    requeue(job)
    assert wait_until(lambda: job not in jobs(), 200, 0.5), (folder / "said").read_text()
    assert [genid for genid, _, _ in lineage(folder, "again")] == sorted(
        ["initial", *map(str, range(1, 7))]
    )


def test_each_node_gets_the_image_of_an_item_which_the_head_has_and_converts_nothing(
    folder: Path,
) -> None:
    """Each node has a store of its own, without images; the image that the run names does not
    exist.
    """
    setup = f'["export HYPERRUNTIME_IMAGES={folder}/store-$SLURMD_NODENAME"]'
    (folder / "cluster.toml").write_text(f"{SLURM}min_nodes = 2\nsetup = {setup}\n")
    with scripted_model(counting) as model:
        words = rollout("apptainer", model.url, "own", "--image", "localhost/none:1", *ON_NODES)
        words = [word.replace(":World", ":OwnImages") for word in words]
        done = hyperrun(folder, *words)
    assert done.exit_code == 0, done.stderr.decode()
    assert [each.reward for each in read_trajectories(folder / "own")] == [1.0] * 16
    copies = list(folder.glob("store-*/images/*/rootfs"))
    assert len(copies) == len(list(folder.glob("store-*"))) >= 2
    first, *others = (shown_inside(copy, times=False) for copy in copies)
    assert all(other == first for other in others)


def test_rollouts_whose_head_is_in_a_job_that_is_put_back_in_the_queue_go_on_by_themselves(
    folder: Path,
) -> None:
    with scripted_model(counting) as model:
        words = rollout("bubblewrap", model.url, "again", "--resume-or-start", *ON_NODES)
        job = submit(folder, shlex.join(cli(*words)), "--requeue")
        lines = folder / "again" / TRAJECTORIES
        assert wait_until(
            lambda: lines.exists() and lines.read_bytes().count(b"\n") >= 1, SOON_S, 0.05
        )
        requeue(job)
        # `squeue` may not list a job for an instant while Slurm puts it back.
        ended = wait_until(
            lambda: lines.read_bytes().count(b"\n") >= 16 and job not in jobs(), 200, 0.5
        )
        assert ended, (folder / "said").read_text()
    found = read_trajectories(folder / "again")
    assert (
        len({each.id for each in found}) == len(found) == len(lines.read_bytes().splitlines()) == 16
    )
    assert all(each.reward is not None for each in found)


def requeue(job: str) -> None:
    """Put a job back in the queue, and let it start at once; Slurm waits two minutes, else."""
    done = run_process(["scontrol", "requeue", job], timeout_s=30)
    assert done.exit_code == 0, done.stderr.decode()
    state = ["squeue", "--noheader", "--format=%T", f"--jobs={job}"]
    # not while the job completes: its end sets the time again
    assert wait_until(
        lambda: run_process(state, timeout_s=30).stdout.split() == [b"PENDING"], SOON_S, 0.2
    )
    run_process(["scontrol", "update", f"jobid={job}", "StartTime=now"], timeout_s=30)


def test_a_head_of_another_machine_is_replaced_as_soon_as_slurm_says_that_its_job_is_over(
    folder: Path,
) -> None:
    """The machine is another one by its process IDs: the head has a namespace of its own for
    them.
    """
    (folder / "cluster.toml").write_text(f"{SLURM}patience_s = 3\nheartbeat_s = 1\n")
    make_agent_repository(folder / "agent", dict.fromkeys(range(1, 5), SLEEPS))
    words = generate("bubblewrap", "far", "--max-generation", "4", *ON_NODES)
    apart = [
        "bwrap",
        "--dev-bind",
        "/",
        "/",
        "--unshare-pid",
        "--proc",
        "/proc",
        "--die-with-parent",
        "--",
    ]
    job = submit(folder, shlex.join([*apart, sys.executable, "-m", "hyperruntime.cli", *words]))
    run_dir = folder / "outputs" / "generate_far"
    journal = run_dir / "journal.jsonl"
    assert wait_until(
        lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 1, SOON_S, 0.2
    ), jobs()
    lease = read_lease(run_dir)
    assert lease is not None
    assert lease.job is not None
    assert lease.job.slurm_job == job
    assert lease.owner.state() == "elsewhere"
    assert not lease.job.is_over()
    refused = hyperrun(folder, "resume", str(run_dir), *ON_NODES)
    assert b"which renewed its lease less than" in refused.stderr, refused.stderr.decode()
    run_process(["scancel", "--signal=KILL", "--full", job], timeout_s=30)
    assert wait_until(lambda: owner_state(run_dir) == "dead", STALE_S - 30, 0.5), (
        folder / "said"
    ).read_text()
    assert read_lease(run_dir) == lease, "it was not released"
    resumed = hyperrun(folder, "resume", str(run_dir), *ON_NODES)
    assert resumed.exit_code == 0, resumed.stderr.decode()
    assert [genid for genid, _, _ in lineage(folder, "far")] == sorted(
        ["initial", *map(str, range(1, 5))]
    )


def test_slurm_says_which_jobs_are_over(folder: Path) -> None:
    job = submit(folder, "echo name=$SLURM_CLUSTER_NAME; exec sleep 100")
    assert wait_until(
        lambda: job in running() and "name=" in (folder / "said").read_text(), SOON_S, 0.2
    )
    cluster = (folder / "said").read_text().partition("name=")[2].strip()
    mine, others = (
        BatchJob(slurm_job=job, slurm_cluster=cluster),
        BatchJob(slurm_job=job, slurm_cluster="another"),
    )
    assert not mine.is_over()
    run_process(["scancel", job], timeout_s=30)
    assert wait_until(mine.is_over, SOON_S, 0.2)
    assert not others.is_over()
    assert BatchJob(slurm_job="999999", slurm_cluster=cluster).is_over(), (
        "Slurm does not know it any more"
    )
