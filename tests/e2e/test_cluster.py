"""Nodes of a cluster, with processes of this machine in place of jobs: what works there, and what
is left.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import psutil
import pytest

from hyperruntime.host.process import ProcessResult, run_process, wait_until
from tests.command import cli

pytestmark = pytest.mark.engine
LOCAL = '[cluster]\nprovider = "local"\n'


def check(folder: Path, text: str, *args: str) -> ProcessResult:
    (folder / "cluster.toml").write_text(text)
    words = cli("cluster", "check", "cluster.toml", *args)
    return run_process(words, cwd=folder, timeout_s=200)


def nothing_is_left(folder: Path) -> bool:
    def names(process: psutil.Process) -> bool:
        return any(
            str(folder) in word
            for word in (*(process.info["cmdline"] or ()), process.info["cwd"] or "")
        )

    running = [process for process in psutil.process_iter(["cmdline", "cwd"]) if names(process)]
    return os.listdir(folder) == ["cluster.toml"] and not running


def test_a_check_of_a_local_node_finds_what_works_and_leaves_nothing(
    tmp_path: Path, runtime_name: str, base_image: str
) -> None:
    done = check(tmp_path, LOCAL, "--image", base_image, "--json")
    assert done.exit_code == 0, done.stderr.decode()
    (kind,) = json.loads(done.stdout)
    found = {finding["subject"]: finding for finding in kind["findings"]}
    for subject in (
        f"{runtime_name}: running a container",
        f"{runtime_name}: {base_image}",
        "a file renamed by the node is seen by the head",
    ):
        assert found[subject]["ok"] is True, found
    assert not done.stderr
    assert wait_until(lambda: nothing_is_left(tmp_path), 120)


@pytest.mark.slow
def test_a_node_whose_setup_fails_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    done = check(tmp_path, f'{LOCAL}setup = ["exit 3"]\n', "--timeout", "60s")
    assert done.exit_code == 1
    (failed,) = (line for line in done.stdout.decode().splitlines() if line.startswith("FAIL"))
    assert "its job ended before it joined: exit code 3" in failed
    assert failed.endswith(
        "try the table's `setup` and options in a job of your own, then correct them"
    )
    assert not done.stderr
    assert wait_until(lambda: nothing_is_left(tmp_path), 120)


def hyperrun(folder: Path, *words: str) -> ProcessResult:
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    return run_process(cli(*words), cwd=folder, env=env, timeout_s=100)


@pytest.mark.parametrize(
    "begun", ["in a terminal", pytest.param("by a script, with &", marks=pytest.mark.slow)]
)
def test_an_open_cluster_is_listed_read_and_ended_from_another_process(
    tmp_path: Path, begun: str
) -> None:
    """Commands that a script starts with ``&`` ignore SIGINT: POSIX, "Signals and Error Handling"
    of the shell.
    """
    (tmp_path / "cluster.toml").write_text(f"{LOCAL}max_nodes = 2\n")
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = cli("cluster", "up", "cluster.toml")
    if "script" in begun:
        words = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *words]
    kept = subprocess.Popen(
        words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        nodes: list[dict[str, object]] = []

        def are_ready() -> bool:
            nodes[:] = [node for one in json.loads(hyperrun(tmp_path, "cluster", "status", "--json").stdout)
                        for node in one["nodes"]]  # fmt: skip
            return [node["state"] for node in nodes] == ["ready", "ready"]

        assert wait_until(are_ready, 60, 0.2), nodes
        assert b"node-2  ready" in hyperrun(tmp_path, "cluster", "status").stdout
        assert b"head connected" in hyperrun(tmp_path, "cluster", "logs", "node-1").stdout
        unknown = hyperrun(tmp_path, "cluster", "logs", "node-9").stderr
        assert b"has no node 'node-9'; it has node-1, node-2" in unknown
        assert hyperrun(tmp_path, "cluster", "down").exit_code == 0
        out, error = kept.communicate(timeout=60)
    finally:
        kept.kill()
    assert sorted(out.splitlines())[0].startswith(b"node-1: ready on ")
    assert len(out.splitlines()) == 2
    assert error.split() == b"hyperrun: interrupted".split()
    assert hyperrun(tmp_path, "cluster", "status").stdout == b"no open cluster\n"
    assert hyperrun(tmp_path, "cluster", "down").stderr == b"hyperrun: error: no cluster is open\n"
    assert sorted(os.listdir(tmp_path)) == ["cache", "cluster.toml"]
