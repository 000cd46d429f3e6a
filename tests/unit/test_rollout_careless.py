"""What careless values and a full disk do to a run of rollouts."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

import hyperruntime as hr
from hyperruntime.errors import SpecError, StorageError
from hyperruntime.rollout.options import RolloutOptions
from hyperruntime.rollout.rundir import RUN, Journal
from hyperruntime.rollout.runner import run_rollouts


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), -1.0, "1"])
def test_a_temperature_that_is_no_number_is_refused(temperature: Any) -> None:
    with pytest.raises(SpecError, match="temperature"):
        RolloutOptions(environment="world", temperature=temperature)


def test_options_that_cannot_be_leave_no_run_behind(tmp_path: Path) -> None:
    options = RolloutOptions(environment="there-is-none")
    with pytest.raises(SpecError, match="there-is-none"):
        asyncio.run(run_rollouts(cast(hr.Runtime, None), options, run_dir=tmp_path / "run"))
    assert not (tmp_path / "run" / RUN).exists(), "the same command, mended, is no other run"


def test_a_full_disk_is_told_as_that_also_when_the_file_is_closed() -> None:
    async def write() -> None:
        journal = Journal(Path("/dev/full"))
        try:
            await journal.add(b"line\n")
        finally:
            await journal.close()

    with pytest.raises(StorageError, match="/dev/full"):
        asyncio.run(write())
