"""Files of rollout runs: damaged records, full disks, the agent's code, and why a run ended."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from hyperruntime.cli import main
from hyperruntime.errors import RunError, SpecError, StorageError
from hyperruntime.option_fields import to_json
from hyperruntime.report.page.trajectories import RolloutRun
from hyperruntime.rollout.loading import load_agent
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.rollout.run_files.run_dir import (
    GROUPS,
    TRAJECTORIES,
    read_groups,
    read_run,
    read_trajectories,
    to_line,
    write_run,
)
from hyperruntime.runs.recording import Journal, owned
from hyperruntime.secrets.known import Secrets

GOOD = Trajectory(
    id="a/0", item_id="a", index=0, environment="e", model="m", status="scored", reward=1.0
)


def test_an_agent_is_loaded_from_a_module_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("async def agent(task):\n    raise RuntimeError\n")
    assert load_agent(f"{file}:agent").__name__ == "agent"
    assert load_agent("hyperruntime.rollout.agent.agent:run_agent") is load_agent(None)
    for wrong, said in [
        ("agnet", "did you mean 'agent'"),
        ("none.py:agent", "file '.*none.py' does not exist"),
        ("none:agent", "module 'none' does not exist"),
    ]:
        with pytest.raises(SpecError, match=said):
            load_agent(wrong if ":" in wrong else f"{file}:{wrong}")


def test_every_line_of_a_failed_write_raises_a_storage_error() -> None:
    async def write() -> list[BaseException | None]:
        journal = Journal(Path("/dev/full"))
        lines = (journal.add(b"line\n") for _ in range(5))
        outcomes = await asyncio.gather(*lines, return_exceptions=True)
        await journal.close()
        return outcomes

    outcomes = asyncio.run(write())
    assert [type(outcome) for outcome in outcomes] == [StorageError] * 5
    assert "/dev/full" in str(outcomes[0])


def test_a_cancelled_line_is_written_before_its_file_is_closed(tmp_path: Path) -> None:
    async def write() -> None:
        journal = Journal(tmp_path / "lines")
        first, second = (asyncio.create_task(journal.add(line)) for line in (b"1\n", b"2\n"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await journal.close()

    asyncio.run(write())
    assert (tmp_path / "lines").read_bytes() == b"1\n2\n"


@pytest.mark.parametrize("line", [b"{}", b"[1]", b'"x"', b'{"id": "b/0", "segments": 3}'])
def test_a_damaged_record_is_an_error_and_a_truncated_last_line_is_skipped(
    line: bytes, tmp_path: Path
) -> None:
    (tmp_path / TRAJECTORIES).write_bytes(to_line(GOOD) + b'{"torn')
    (tmp_path / GROUPS).write_bytes(line + b"\n")

    assert [trajectory.id for trajectory in read_trajectories(tmp_path)] == ["a/0"]
    with pytest.raises(RunError, match=r"line 1 of .*groups.jsonl is damaged"):
        read_groups(tmp_path)
    (tmp_path / TRAJECTORIES).write_bytes(to_line(GOOD) + line + b"\n")
    with pytest.raises(RunError, match=r"line 2 of .*trajectories.jsonl is damaged"):
        read_trajectories(tmp_path)


def test_records_with_unknown_fields_are_read(tmp_path: Path) -> None:
    group = {"item_id": "a", "size": 1, "trajectories": ["a/0"], "rewards": [1.0]}
    group |= {"advantages": [0.0], "complete": True}
    (tmp_path / GROUPS).write_text(json.dumps({**group, "median": 1.0}) + "\n")
    segment = {"ids": [1], "mask": [1], "logprobs": [0.0]}
    line = to_line(GOOD)
    later = {**json.loads(line), "segments": [{**segment, "colour": "red"}], "mood": "good"}
    (tmp_path / TRAJECTORIES).write_text(json.dumps(later) + "\n")

    assert [found.rewards for found in read_groups(tmp_path)] == [[1.0]]
    assert [list(found.segments[0].ids) for found in read_trajectories(tmp_path)] == [[1]]


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
