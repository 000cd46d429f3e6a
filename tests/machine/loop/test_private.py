"""Generations whose files cannot be reclaimed, and directories that only the user may read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import ReclaimError, StorageError
from hyperruntime.loop.run.one_generation import evaluate_generation
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import resume_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench import container as place
from hyperruntime.reclaim.trees import reclaim_trees
from hyperruntime.spec import ContainerSpec
from hyperruntime.storage.atomic import make_private_directory, open_private
from tests.doubles.fake_runtime import FakeRuntime


@pytest.mark.parametrize(
    ("error", "failure", "attempts", "words"),
    [
        (TimeoutError("too many"), "timeout", 1, "could not be reclaimed within"),
        (ReclaimError("no rights"), "infrastructure", 3, "no rights"),
    ],
)
def test_a_generation_whose_files_cannot_be_reclaimed_has_no_score(
    finished: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    failure: str,
    attempts: int,
    words: str,
) -> None:
    def refuse(paths: tuple[Path, ...], args: tuple[str, ...], timeout_s: float) -> None:
        if "gen_4" in str(paths[0]) and "agent" in paths[0].parts[-2]:
            raise error
        reclaim_trees(paths, args, timeout_s)

    monkeypatch.setattr(place, "reclaim_trees", refuse)
    summary = resume_run(FakeRuntime(), plan_resume(finished, max_generation=4))
    record = summary.generations[-1]
    assert (record.failure, record.attempts, record.score, record.scores) == (
        failure,
        attempts,
        None,
        {},
    )
    assert words in record.detail
    assert list((finished / "work").iterdir()) == []


def test_the_timeout_for_reclaiming_is_at_most_the_longest_command_timeout(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def note(paths: tuple[Path, ...], args: tuple[str, ...], timeout_s: float) -> None:
        given.append(timeout_s)

    monkeypatch.setattr(place, "reclaim_trees", note)
    summary = resume_run(FakeRuntime(), plan_resume(finished, max_generation=4))
    assert summary.generations[-1].failure is None
    defaults: Any = GenerateOptions(domains=("circle_packing",))
    longest = max(defaults.timeout_meta_s, defaults.timeout_eval_s)
    assert given
    assert all(0 < timeout_s <= longest for timeout_s in given)


def test_a_running_evaluation_has_a_private_directory(finished: Path) -> None:
    modes: list[int] = []

    def look(spec: ContainerSpec) -> None:
        modes.extend(mode_of(path) for path in (finished / "evaluations").glob(".*.work"))

    evaluate_generation(FakeRuntime(before_start=look), finished, 1, split="train")
    assert modes
    assert set(modes) == {0o700}
    assert list((finished / "evaluations").glob(".*.work")) == []


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o377])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set and return a umask of the process."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_a_private_directory_has_mode_700_under_any_umask(tmp_path: Path) -> None:
    assert mode_of(make_private_directory(tmp_path / "one")) == 0o700
    (tmp_path / "one").chmod(0o2755)
    assert mode_of(make_private_directory(tmp_path / "one")) == 0o700


def test_a_private_directory_is_created_with_its_final_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    change = os.fchmod

    def look(descriptor: int, mode: int) -> None:
        made.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        change(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", look)
    before = os.umask(0)
    try:
        make_private_directory(tmp_path / "one")
    finally:
        os.umask(before)
    assert made == [0o700]


def test_a_link_is_rejected_as_a_private_directory(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(StorageError):
        make_private_directory(tmp_path / "link")
    assert mode_of(tmp_path / "there") == 0o755


def test_a_private_file_has_mode_600(tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        with open_private(tmp_path / "log") as file:
            file.write(text)
    assert (mode_of(tmp_path / "log"), (tmp_path / "log").read_bytes()) == (0o600, b"onetwo")
