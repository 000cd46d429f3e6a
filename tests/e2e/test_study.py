"""A study on a real engine, by the command line: made, killed, resumed, shown and compared."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.host.process import wait_until
from tests.command import cli, hyperrun
from tests.doubles.fake_runtime import make_agent_repository

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("base_image"),
]
SEED = 5


def generate(folder: Path, *more: str) -> tuple[str, ...]:
    agent = folder / "agent"
    if not agent.exists():
        # so no run ends before it is killed
        make_agent_repository(agent, {1: "import time; time.sleep(30); improve()"})
    return (
        "generate", "--domains", "circle_packing", "--agent", str(agent), "--eval-samples", "1",
        "--max-generation", "1", "--seed", str(SEED), "--run-id", "s", "--output-dir-parent",
        str(folder / "out"), *more,
    )  # fmt: skip


def status(root: Path) -> Any:
    return json.loads(hyperrun("status", str(root), "--json").stdout)


def test_a_study_is_killed_resumed_and_compared(base_image: str, tmp_path: Path) -> None:
    words = generate(tmp_path, "--repeat", "2", "--parallel", "2", "--image", base_image)
    root = tmp_path / "out" / "study_s"
    process = subprocess.Popen(cli(*words), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def has_begun() -> bool:
        return any(journal.stat().st_size for journal in root.glob("generate_*/journal.jsonl"))

    assert wait_until(has_begun, 150, 0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    shown = hyperrun("status", str(root))
    assert b"continue with: hyperrun resume" in shown.stderr
    again = hyperrun(*words, "--resume-or-start", "--json")
    assert again.returncode == 0, again.stderr.decode()
    told = json.loads(again.stdout)
    assert (told["study_dir"], told["state"]) == (str(root), "finished")
    assert [run["seed"] for run in told["runs"]] == [SEED, SEED + 1]
    assert [len(run["generations"]) for run in told["runs"]] == [2, 2]
    more = hyperrun("resume", str(root), "--max-generation", "2", "--parallel", "1")
    assert more.returncode == 0, more.stderr.decode()
    assert [run["state"] for run in status(root)["runs"]] == ["finished"] * 2
    tables = hyperrun("report", str(root), "--baseline", "0.1", "--tables", str(tmp_path / "t"))
    assert tables.returncode == 0, tables.stderr.decode()
    with open(tmp_path / "t" / "runs.csv", newline="") as file:
        assert [row["made"] for row in csv.DictReader(file)] == ["3", "3"]
    page = hyperrun("report", str(root))
    assert page.returncode == 0, page.stderr.decode()
    assert (root / "report.html").is_file()
    for wrong, said in (
        ((*words[:-2], "--repeat", "4", "--resume-or-start"), b"has 2 runs, not 4"),
        (words, b"exists already; resume it"),
        (("show", str(root), "best"), b"a study; give one of the generate_"),
    ):
        done = hyperrun(*wrong)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr.decode()
