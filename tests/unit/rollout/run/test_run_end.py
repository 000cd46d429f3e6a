"""The reason why a rollout run ended early is stored and shown, with the command that continues the
run.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from hyperruntime.cli import main
from hyperruntime.errors import RunError
from hyperruntime.option_fields import to_json
from hyperruntime.report.page.trajectories import RolloutRun
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run_files.run_dir import read_run, write_run
from hyperruntime.runs.recording import owned
from hyperruntime.secrets.known import Secrets


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the directory of a rollout run without trajectories."""
    options = RolloutOptions(
        environment="gsm8k", model=ModelOptions(name="m", base_url="http://127.0.0.1:1/v1")
    )
    write_run(tmp_path, {"created": time.time(), "options": to_json(options.settled())})
    return tmp_path


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RunError("no engine answers"), "no engine answers"),
        (asyncio.CancelledError(), "it was interrupted"),
    ],
)
def test_the_reason_is_stored_and_shown_until_the_run_goes_on(
    run_dir: Path, error: BaseException, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def end() -> None:
        with owned(run_dir):
            raise error

    with pytest.raises(type(error)):
        asyncio.run(end())
    assert main(["status", str(run_dir)]) == 0
    counts = "not running, 0 trajectories, 0 scored, no reward yet, 0 full groups"
    assert f"{counts}; ended because: {reason}" in capsys.readouterr().out
    assert main(["status", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == reason
    assert RolloutRun(run_dir, Secrets()).head()["options"]["ended"] == reason

    async def go_on() -> None:
        with owned(run_dir):
            assert "ended" not in read_run(run_dir)

    asyncio.run(go_on())


def test_a_command_that_fails_shows_the_run_and_how_to_continue_it(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["--runtime", "no-such-engine", "rollout", "run", "--resume-from", str(run_dir)]) != 0
    )
    shown = capsys.readouterr().err
    assert f"{run_dir}: a rollout run of gsm8k, not running, 0 trajectories" in shown
    assert f"continue with: hyperrun rollout run --resume-from {run_dir}" in shown
    assert "no-such-engine" in shown.splitlines()[-1]
