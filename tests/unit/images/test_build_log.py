"""The log file of a build, and the step that failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hyperruntime.errors import ImageBuildError
from hyperruntime.images.build_log import BuildLog


def test_old_build_logs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    builds = tmp_path / "hyperruntime/builds"
    builds.mkdir(parents=True)
    for minute in range(30):
        (builds / f"20200101T00{minute:02}00-x-1.log").touch()
    with BuildLog("localhost/built:one", None):
        names = sorted(os.listdir(builds))
    assert len(names) == 20
    assert names[0] == "20200101T001100-x-1.log"
    assert "built_one" in names[-1]


def test_a_step_that_failed_without_output_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with BuildLog("localhost/built:one", None) as log:
        log("STEP 2: RUN false")
        log("--> from the cache")
        quiet = log.failure("built:one", ImageBuildError("line 2: it ended with exit code 1"))
        log("said")
        loud = log.failure("built:one", ImageBuildError("line 2: it ended with exit code 1"))
    assert "the step `RUN false` failed without output: line 2: it ended with exit" in str(quiet)
    assert "the step `RUN false` failed; its last lines:\n    said\n" in str(loud)
