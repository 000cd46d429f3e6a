"""Nodes of a real Slurm, as an ordinary user; `scripts/on-slurm .venv/bin/pytest tests/slurm`
starts one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from hyperruntime.host.process import run_process, wait_until
from tests.command import cli
from tests.registry import run_registry
from tests.slurm.conftest import SLURM, SOON_S, hyperrun, jobs, nodes, ready
from tests.trees import shown_inside

ENGINES = ("podman", "apptainer", "bubblewrap")
IMAGE = "localhost/hyperruntime/base:latest"
pytestmark = pytest.mark.timeout(280)


@contextmanager
def up(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Keep a cluster open."""
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    line = cli("cluster", "up", "cluster.toml", *words)
    with (folder / "up.out").open("wb") as out:
        process = subprocess.Popen(line, cwd=folder, env=env, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def gpu_setup(folder: Path) -> str:
    """Describe two GPUs of each node by CDI; return the lines of a configuration that asks for one
    of them.
    """
    gpus = folder / "cdi"
    gpus.mkdir()
    devices = [
        {
            "name": str(n),
            "containerEdits": {
                "deviceNodes": [{"path": f"/dev/fakegpu{n}", "hostPath": "/dev/null"}]
            },
        }
        for n in range(2)
    ]
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
    (gpus / "fake.json").write_text(json.dumps(spec))
    return f'gpus_per_node = 1\nsetup = ["export HYPERRUNTIME_CDI_DIRS={gpus}"]\n'


def test_a_check_finds_every_engine_and_exactly_the_granted_gpu(folder: Path) -> None:
    (folder / "cluster.toml").write_text(SLURM + gpu_setup(folder))
    done = hyperrun(folder, "cluster", "check", "cluster.toml", "--image", IMAGE, "--json")
    assert done.exit_code == 0, done.stderr.decode() + done.stdout.decode()
    (kind,) = json.loads(done.stdout)
    assert kind["nodes"] == ["n1", "n2", "n3", "n4"]
    found = {finding["subject"]: finding for finding in kind["findings"]}
    granted = found["GPUs granted"]["detail"]
    assert granted in ("0", "1")
    assert set(ENGINES) <= set(found["engine for work"]["detail"].split(", "))
    refused = found["bubblewrap: GPUs visible inside"]
    assert (refused["ok"], refused["detail"]) == (None, "none")
    assert (
        refused["next_step"]
        == "it cannot give GPUs to containers; use another engine, if work needs GPUs"
    )
    for engine in ("podman", "apptainer"):
        seen = found[f"{engine}: GPUs visible inside"]
        assert (seen["ok"], seen["detail"]) == (
            True,
            f"/dev/fakegpu{granted}; granted: /dev/fakegpu{granted}",
        )


def test_nodes_that_are_cancelled_or_killed_are_replaced_and_down_cancels_all_jobs(
    folder: Path,
) -> None:
    with up(folder) as head:
        assert wait_until(lambda: len(ready(folder)) == 4, SOON_S, 0.3), (
            folder / "up.out"
        ).read_text()
        first = ready(folder)
        assert {node["host"] for node in first} == {"n1", "n2", "n3", "n4"}
        run_process(["scancel", first[0]["job"]], timeout_s=30)
        psutil.Process(first[1]["pid"]).kill()
        gone = {first[0]["name"], first[1]["name"]}
        assert wait_until(
            lambda: len(now := ready(folder)) == 4 and not gone & {node["name"] for node in now},
            2 * SOON_S,
            0.3,
        ), nodes(folder)
        assert hyperrun(folder, "cluster", "down").exit_code == 0
        assert head.wait(SOON_S) != 0
        said = (folder / "up.out").read_text()
        assert f"{first[0]['name']}: takes no new work: the batch system ends its job" in said
        assert f"node {first[1]['name']} ({first[1]['host']}) is lost: its job ended" in said


def test_jobs_that_are_cancelled_in_the_queue_are_replaced_and_down_cancels_all(
    folder: Path,
) -> None:
    """Jobs that are held do not start; three are cancelled, as an administrator may do."""
    (folder / "cluster.toml").write_text(f'{SLURM}options = ["#SBATCH --hold"]\n')
    with up(folder) as head:
        assert wait_until(lambda: len(jobs()) == 4, SOON_S, 0.3), (folder / "up.out").read_text()
        first, *newest = sorted(jobs(), key=int)
        run_process(["scancel", *newest], timeout_s=30)
        assert wait_until(lambda: len(now := jobs()) == 4 and not set(newest) & set(now), 200, 0.3)
        assert (first in jobs(), head.poll()) == (True, None)
        assert hyperrun(folder, "cluster", "down").exit_code == 0
        assert head.wait(SOON_S) != 0
    assert not jobs()


def test_a_node_on_which_jobs_fail_ends_nothing_and_gets_no_other_job(folder: Path) -> None:
    bad = '[ "$SLURMD_NODENAME" != n2 ] || { echo >>bad; echo the disk is full >&2; exit 3; }'
    (folder / "cluster.toml").write_text(f"{SLURM}setup = ['cd {folder}', '{bad}']\n")
    with up(folder, "--nodes", "3") as head:
        assert wait_until(lambda: len(ready(folder)) == 3, SOON_S, 0.3), (
            folder / "up.out"
        ).read_text()
        assert {node["host"] for node in ready(folder)} == {"n1", "n3", "n4"}
        assert head.poll() is None
        assert (folder / "bad").read_text() in ("", "\n")  # at most one job
        assert hyperrun(folder, "cluster", "down").exit_code == 0
        head.wait(SOON_S)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('partition = "none"', "invalid partition"),
        ("memory_gb_per_node = 100000", "Memory specification can not be satisfied"),
    ],
)
def test_a_job_that_slurm_refuses_is_told_once_and_at_once(
    line: str, words: str, folder: Path
) -> None:
    (folder / "cluster.toml").write_text(f"{SLURM}{line}\n")
    begin = time.monotonic()
    done = hyperrun(folder, "cluster", "up", "cluster.toml", "--nodes", "1")
    assert done.exit_code != 0
    assert done.stderr.decode().count(words) == 1, done.stderr.decode()
    assert "change the table of the cluster" in done.stderr.decode()
    assert time.monotonic() - begin < SOON_S


def test_an_error_of_three_hosts_ends_the_cluster_and_names_them(folder: Path) -> None:
    (folder / "cluster.toml").write_text(f"{SLURM}setup = ['echo no such module >&2; exit 3']\n")
    done = hyperrun(folder, "cluster", "up", "cluster.toml", "--nodes", "3")
    assert done.exit_code != 0
    said = done.stderr.decode().splitlines()[-1]
    assert "jobs of nodes fail on n" in said
    assert "exit code 3, 'no such module'" in said


def test_nothing_is_left_after_the_head_was_killed(folder: Path) -> None:
    (folder / "cluster.toml").write_text(f"{SLURM}patience_s = 3\nheartbeat_s = 1\n")
    with up(folder, "--nodes", "2") as head:
        assert wait_until(lambda: len(ready(folder)) == 2, SOON_S, 0.3), (
            folder / "up.out"
        ).read_text()
        head.kill()
        begin = time.monotonic()
        assert wait_until(lambda: not jobs(), 200, 0.3)
        print(f"jobs ended {time.monotonic() - begin:.1f} s after their head was killed")
    assert hyperrun(folder, "cluster", "status").stdout == b"no open cluster\n"


@pytest.mark.parametrize("source", ["this machine", "a registry"])
def test_each_node_gets_the_image_before_it_is_ready(folder: Path, source: str) -> None:
    """Each node has a store of its own, without images; this machine or a registry has the
    image.
    """
    with ExitStack() as stack:
        image = "base"
        if source == "a registry":
            image = stack.enter_context(run_registry(folder / "registry")).push_busybox(
                "of/nodes", "1", "hello\n"
            )
        setup = f'["export HYPERRUNTIME_IMAGES={folder}/store-$SLURMD_NODENAME"]'
        (folder / "cluster.toml").write_text(
            f'{SLURM}runtime = "apptainer"\nimages = ["{image}"]\nsetup = {setup}\n'
        )
        stack.enter_context(up(folder, "--nodes", "2"))
        assert wait_until(lambda: len(ready(folder)) == 2, 3 * SOON_S, 0.3), (
            folder / "up.out"
        ).read_text()
        hosts = [node["host"] for node in ready(folder)]
        copies = [
            path for host in hosts for path in folder.glob(f"**/store-{host}/images/*/rootfs")
        ]
        assert len(copies) == 2, sorted(folder.rglob("*"))
        first, second = (shown_inside(copy, times=False) for copy in copies)
        assert first == second, "the second node got what the first one pulled"
        assert hyperrun(folder, "cluster", "down").exit_code == 0


USE_SLOTS = """
import asyncio, json, sys
import hyperruntime as hr
from pathlib import Path
from hyperruntime.cluster.config import read_config
from hyperruntime.errors import SandboxLostError

async def main(runtime, image, jobs):
    config = read_config(Path("cluster.toml"), runtime)
    pool = hr.PoolConfig(spec=hr.ContainerSpec(image=image, gpus="all"), slots_per_container=2, max_containers=1)
    async with hr.Cluster(config, Path(jobs)) as cluster, hr.ClusterPool(cluster, pool) as slots:
        held = await asyncio.gather(*(slots.acquire(f"task{n}") for n in range(8)))
        calls = [(slot, "bash", {"command": "echo /dev/fakegpu*"}) for slot in held]
        seen = [result.stdout.split() for result in await slots.execute_batch(calls)]
        nodes = {slot.slot_id.partition("/")[0] for slot in held}
        victim = next(node for node in cluster.nodes() if held[0].slot_id.startswith(f"{node.name}/"))
        running = asyncio.ensure_future(slots.lease_of(held[0]).exec(["sleep", "200"]))
        await asyncio.sleep(1)
        cancel = await asyncio.create_subprocess_exec("scancel", victim.facts.job)
        await cancel.wait()
        try:
            await running
            lost = ""
        except SandboxLostError as error:
            lost = str(error)
        for slot in held[1:]:
            await slots.release(slot)
        again = await slots.acquire("again", timeout_s=120)
        done = await slots.lease_of(again).exec(["echo", "on"])
        print(json.dumps({"seen": seen, "nodes": len(nodes), "lost": lost, "again": done.stdout.decode()}))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("engine", ["podman", "apptainer"])
def test_slots_of_a_pool_see_the_gpu_that_their_job_was_granted_and_a_cancelled_job_costs_its_own(
    folder: Path, engine: str
) -> None:
    (folder / "cluster.toml").write_text(SLURM + gpu_setup(folder))
    words = [sys.executable, "-c", USE_SLOTS, engine, IMAGE, str(folder / "jobs")]
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    done = run_process(words, cwd=folder, env=env, timeout_s=250)
    assert done.exit_code == 0, done.stderr.decode()
    used = json.loads(done.stdout)
    assert (used["nodes"], used["again"]) == (4, "on\n")
    assert all(seen in (["/dev/fakegpu0"], ["/dev/fakegpu1"]) for seen in used["seen"]), used[
        "seen"
    ]
    assert "is lost" in used["lost"] or "the batch system ends the job" in used["lost"]
