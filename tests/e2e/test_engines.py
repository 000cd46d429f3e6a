"""The same run gives the same scores on every engine that this user can use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run.run import start_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.runtime import Runtime

pytestmark = pytest.mark.engine

# Apptainer and bubblewrap refuse root; only root reaches the Docker daemon here.
OTHERS = ("docker",) if os.geteuid() == 0 else ("apptainer", "bubblewrap")


def scores(runtime: Runtime, folder: Path) -> dict[str, float | None]:
    """Return the score of each generation of a short run with a fixed seed."""
    options = GenerateOptions(
        domains=("circle_packing",),
        max_generation=3,
        seed=11,
        run_id=runtime.name,
        output_dir_parent=str(folder),
    )
    summary = start_run(runtime, plan_run(options))
    records = load_run(summary.run_dir).generations
    assert [record.failure for record in records] == [None] * 4
    return {str(record.genid): record.score for record in records}


@pytest.mark.slow
@pytest.mark.timeout(250)
@pytest.mark.parametrize("name", OTHERS)
def test_equal_seeds_give_equal_scores_on_every_engine(
    runtime: Runtime, name: str, tmp_path: Path
) -> None:
    with hr.open_runtime(name) as other:
        there = scores(other, tmp_path)
    here = scores(runtime, tmp_path)
    assert there == here
    assert len(set(here.values())) > 1
    shutil.rmtree(tmp_path)
