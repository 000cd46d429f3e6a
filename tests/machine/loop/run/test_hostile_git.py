"""Git of the host and files that agents, or the sender of a run directory, wrote."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperruntime.errors import HyperRuntimeError, RepositoryError
from hyperruntime.git.command import GitTimeoutError
from hyperruntime.loop.run.one_generation import evaluate_generation, export_generation
from hyperruntime.loop.run.plan import plan_resume, plan_run
from hyperruntime.loop.run.run import RunSummary, resume_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.failures import translate_failure
from tests.doubles.fake_runtime import FakeRuntime

# Git needs exponential time to compare these patterns with paths below these directories.
_SLOW_PATTERNS = """
import os
for name, rest in ((".gitignore", ""), (".gitattributes", " text")):
    with open(name, "w") as file:
        file.write("**/a/" * 40 + "x" + rest + "\\n")
os.makedirs("a/" * 90)
open("a/" * 90 + "first", "w").close()
improve()  # and no git of the agent: by_tree
"""
_BELOW = "open('a/' * 90 + 'second', 'w').close()\nimprove()  # by_tree"


def test_patterns_for_which_git_needs_exponential_time_cost_nothing(
    run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    actions = {1: _SLOW_PATTERNS, 2: _BELOW, 3: "improve()  # by_tree"}
    summary = run(actions, parent_selection="latest")
    assert [record.failure for record in summary.generations] == [None, None, None]
    summary = resume_run(FakeRuntime(), plan_resume(summary.run_dir, max_generation=3))
    assert [record.failure for record in summary.generations] == [None] * 4
    exported = Path(export_generation(summary.run_dir, 3, tmp_path / "exported").path)
    assert (exported / ("a/" * 90) / "second").is_file()
    assert (exported / ".gitattributes").read_text() == "**/a/" * 40 + "x text\n"
    evaluate_generation(FakeRuntime(), summary.run_dir, 3, split="train")


_LARGE = "open('slow', 'w').write('x\\n' * 2_000_000)\nimprove()  # by_tree"
_SLOW_DIFF = """
around, header = " x\\n" * 400_000, "@@ -1000000,800001 +1000000,800000 @@\\n"
open(out + "/model_patch.diff", "w").write("--- a/slow\\n+++ b/slow\\n" + header + around + "-y\\n" + around)
"""


@pytest.mark.slow  # the deadline itself is tested in tests/machine/git/test_command.py
def test_a_diff_that_makes_git_slow_costs_its_generation_and_not_the_run(
    run: Callable[..., RunSummary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPERRUNTIME_GIT_TIMEOUT_S", "5")
    actions = {1: _LARGE, 2: _SLOW_DIFF, 3: "improve()  # by_tree"}
    summary = run(actions, parent_selection="latest", max_generation=3)
    assert [record.failure for record in summary.generations] == [None, None, "refused-patch", None]
    slow = summary.generations[2]
    assert (slow.attempts, slow.detail.startswith("git apply did not end within")) == (1, True)


@pytest.mark.parametrize(
    ("step", "failure"), [("diff", "refused-patch"), ("parent", "agent"), ("state", "agent")]
)
def test_git_that_takes_too_long_is_a_failure_of_the_agent_and_is_not_tried_again(
    step: str, failure: str
) -> None:
    translated = translate_failure(GitTimeoutError("git read-tree did not end"), step)
    assert (translated.failure, translated.again, str(translated)) == (
        failure,
        False,
        "git read-tree did not end",
    )


def test_a_received_run_directory_runs_no_program_of_its_repository(
    finished: Path, tmp_path: Path
) -> None:
    program, mark = tmp_path / "program", tmp_path / "mark"
    program.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    program.chmod(0o755)
    repository = finished / "repository.git"
    for pack in repository.glob("objects/pack/*"):
        pack.unlink()
    for setting in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "e"),
        ("remote.e.promisor", "true"),
        ("remote.e.url", str(tmp_path)),
        ("remote.e.uploadpack", str(program)),
    ):
        subprocess.run(["git", "config", "--file", repository / "config", *setting], check=True)
    uses: tuple[Callable[[], object], ...] = (
        lambda: export_generation(finished, 1, tmp_path / "exported"),
        lambda: evaluate_generation(FakeRuntime(), finished, 1, split="train"),
        lambda: resume_run(FakeRuntime(), plan_resume(finished, max_generation=4)),
    )
    for use in uses:
        with pytest.raises(
            HyperRuntimeError, match=r"repository\.git' was changed by another program"
        ) as caught:
            use()
        assert "\n" not in str(caught.value)
    assert not mark.exists()


def test_a_run_with_a_partial_clone_as_its_agent_is_refused_before_it_begins(
    options_of: Callable[..., GenerateOptions], tmp_path: Path
) -> None:
    options = options_of()
    config = Path(str(options.agent), ".git", "config")
    subprocess.run(["git", "config", "--file", config, "remote.e.promisor", "true"], check=True)
    with pytest.raises(RepositoryError, match="is a partial clone"):
        plan_run(options)
    assert not (tmp_path / "out").exists()
