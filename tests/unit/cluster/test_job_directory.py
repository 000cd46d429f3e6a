"""Directories for the files of jobs: those of dead heads go, those of live ones stay."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hyperruntime.cluster.job_directory import job_directory
from hyperruntime.errors import StorageError
from hyperruntime.host.process import run_process
from tests.doubles.slurm_programs import install_slurm_programs

HELD = """
import os, sys
from pathlib import Path
from hyperruntime.cluster.job_directory import job_directory
held = job_directory(Path(sys.argv[1]), ".jobs-")
held.__enter__()
os.kill(os.getpid(), 9)
"""


def test_the_directory_of_a_killed_head_goes_and_that_of_a_live_one_stays(tmp_path: Path) -> None:
    assert run_process([sys.executable, "-c", HELD, str(tmp_path)]).exit_code == -9
    (left,) = tmp_path.iterdir()
    (left / "log").write_text("x")
    with job_directory(tmp_path, ".jobs-") as first:
        assert list(tmp_path.iterdir()) == [first]
        with job_directory(tmp_path, ".jobs-") as second:
            assert set(tmp_path.iterdir()) == {first, second}
        assert list(tmp_path.iterdir()) == [first]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("job", "stays"),
    [("7", True), ("8", False), ("9", False), ("10", True), (None, True)],
)
def test_a_head_of_another_machine_is_judged_by_the_batch_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str | None, *, stays: bool
) -> None:
    (programs := tmp_path / "bin").mkdir()
    install_slurm_programs(programs, monkeypatch)
    (left := tmp_path / "run" / ".jobs-other").mkdir(parents=True)
    owner = {"token": "t", "host": "another", "boot_id": "another boot", "pid": 1, "start_ticks": 1}
    of_job = (
        None if job is None else {"slurm_job": job, "slurm_restarts": 0, "slurm_cluster": "ours"}
    )
    (left / "owner.json").write_text(json.dumps({"owner": owner, "job": of_job}))
    with job_directory(tmp_path / "run", ".jobs-"):
        assert left.exists() == stays


def test_a_directory_that_cannot_be_made_is_an_error_with_its_parent(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"File name too long; choose another directory"),
        job_directory(tmp_path, "n" * 300),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
