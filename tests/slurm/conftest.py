"""What tests on a real Slurm need; `scripts/on-slurm .venv/bin/pytest tests/slurm` starts one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hyperruntime.host.process import ProcessResult, run_process, wait_until
from tests.command import cli

SLURM = (
    '[cluster]\nprovider = "slurm"\nwalltime = "00:10:00"\naddress = "127.0.0.1"\nmax_nodes = '
    "4\ndrain_s = 0\n"
)
SOON_S = 60.0  # not a promise


@pytest.fixture(autouse=True)
def runs_on_slurm() -> None:
    if "SLURM_CONF" not in os.environ:
        pytest.fail("no Slurm: run `scripts/on-slurm .venv/bin/pytest tests/slurm` as root")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A directory with a configuration; after the test no job is left and no process names the
    directory.
    """
    before, sockets = containers(), sockets_of_python()
    (tmp_path / "cluster.toml").write_text(SLURM)
    yield tmp_path
    assert wait_until(lambda: not jobs(), SOON_S, 0.2)
    assert wait_until(lambda: not processes(str(tmp_path)), SOON_S, 0.2), processes(str(tmp_path))
    assert wait_until(lambda: not of_jobs(), 10, 0.2), of_jobs()
    assert wait_until(lambda: containers() <= before, 10, 0.2), containers() - before
    assert wait_until(lambda: sockets_of_python() <= sockets, 10, 0.2), (
        sockets_of_python() - sockets
    )


def jobs() -> list[str]:
    return (
        run_process(["squeue", "--noheader", "--format=%i"], timeout_s=30).stdout.decode().split()
    )


def processes(word: str) -> list[list[str]]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if process.pid != os.getpid() and any(word in part for part in line):
            found.append(line)
    return found


def containers() -> set[str]:
    """Return the names of the containers that nodes have started for this user, on every engine."""
    done = run_process(cli("ps", "--json"), timeout_s=60)
    assert done.exit_code == 0, done.stderr.decode()
    return {container["name"] for container in json.loads(done.stdout) if container["node"]}


def sockets_of_python() -> set[str]:
    """Return this user's directories of ``multiprocessing``, which a process that SIGTERM ends
    leaves behind.
    """
    found = Path(tempfile.gettempdir()).glob("pymp-*")
    return {str(path) for path in found if path.stat().st_uid == os.getuid()}


def of_jobs() -> list[list[str]]:
    """Return the command lines of this user's processes that a job of this Slurm has started."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            env = process.environ()
            if "SLURM_JOB_ID" in env and env.get("SLURM_CONF") == os.environ["SLURM_CONF"]:
                found.append(process.info["cmdline"])
    return found


def hyperrun(folder: Path, *words: str, env: dict[str, str] | None = None) -> ProcessResult:
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **(env or {})}
    return run_process(cli(*words), cwd=folder, env=env, timeout_s=250)


def nodes(folder: Path) -> list[dict[str, Any]]:
    found = json.loads(hyperrun(folder, "cluster", "status", "--json").stdout)
    return [node for cluster in found for node in cluster["nodes"]]


def ready(folder: Path) -> list[dict[str, Any]]:
    return [node for node in nodes(folder) if node["state"] == "ready"]
