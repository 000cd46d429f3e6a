"""Invalid values and a full disk in a run of rollouts."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

import hyperruntime as hr
from hyperruntime.cli import main
from hyperruntime.errors import ModelError, RunError, SpecError, StorageError
from hyperruntime.rollout.loading import load_agent
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import run_rollouts
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.rollout.run_files.run_dir import (
    GROUPS,
    TRAJECTORIES,
    read_groups,
    read_trajectories,
    to_line,
)
from hyperruntime.runs.recording import Journal


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), -1.0, "1"])
def test_an_invalid_temperature_is_rejected(temperature: Any) -> None:
    with pytest.raises(SpecError, match="temperature"):
        RolloutOptions(environment="world", temperature=temperature)


def test_invalid_options_create_no_run_directory(tmp_path: Path) -> None:
    options = RolloutOptions(environment="there-is-none")
    with pytest.raises(SpecError, match="there-is-none"):
        asyncio.run(run_rollouts(cast(hr.Runtime, None), options, run_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists(), (
        "the corrected command must be able to use the same directory"
    )


def test_a_model_that_cannot_be_opened_creates_no_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "from hyperruntime.rollout.environment import Item\n\n\nclass Own:\n    name = 'own'\n  "
        "  def items(self):\n        return [Item(id='a')]\n    def spec(self, item, base, "
        "images):\n        return base\n    async def setup(self, item, lease):\n        return "
        "{}\n    def messages(self, item, meta):\n        return []\n    async def verify(self, "
        "item, outcome, lease, fresh, meta):\n        raise NotImplementedError\n"
    )
    model = ModelOptions(name="m", base_url="http://127.0.0.1:9/v1", key_env="NO_SUCH_KEY")
    options = RolloutOptions(environment="own.py:Own", model=model)
    with pytest.raises(ModelError, match="NO_SUCH_KEY"):
        asyncio.run(run_rollouts(cast(hr.Runtime, None), options, run_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_directory_without_a_run_cannot_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollout", "run", "--resume-from", str(tmp_path)]) != 0
    said = capsys.readouterr().err
    assert "cannot be read: No such file or directory; name the directory of a rollout run" in said
    assert list(tmp_path.iterdir()) == []


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


def test_a_full_disk_raises_a_storage_error_also_on_close() -> None:
    async def write() -> None:
        journal = Journal(Path("/dev/full"))
        try:
            await journal.add(b"line\n")
        finally:
            await journal.close()

    with pytest.raises(StorageError, match="/dev/full"):
        asyncio.run(write())


def test_every_line_of_a_failed_write_raises_a_storage_error() -> None:
    async def write() -> list[BaseException | None]:
        journal = Journal(Path("/dev/full"))
        lines = (journal.add(b"line\n") for _ in range(5))
        outcomes = await asyncio.gather(*lines, return_exceptions=True)
        await journal.close()
        return outcomes

    assert [type(outcome) for outcome in asyncio.run(write())] == [StorageError] * 5


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
    good = Trajectory(
        id="a/0", item_id="a", index=0, environment="e", model="m", status="scored", reward=1.0
    )
    (tmp_path / TRAJECTORIES).write_bytes(to_line(good) + b'{"torn')
    (tmp_path / GROUPS).write_bytes(line + b"\n")

    assert [trajectory.id for trajectory in read_trajectories(tmp_path)] == ["a/0"]
    with pytest.raises(RunError, match=r"line 1 of .*groups.jsonl is damaged"):
        read_groups(tmp_path)
    (tmp_path / TRAJECTORIES).write_bytes(to_line(good) + line + b"\n")
    with pytest.raises(RunError, match=r"line 2 of .*trajectories.jsonl is damaged"):
        read_trajectories(tmp_path)


def test_records_with_unknown_fields_are_read(tmp_path: Path) -> None:
    group = {
        "item_id": "a",
        "size": 1,
        "trajectories": ["a/0"],
        "rewards": [1.0],
        "advantages": [0.0],
        "complete": True,
    }
    (tmp_path / GROUPS).write_text(json.dumps({**group, "median": 1.0}) + "\n")
    segment = {"ids": [1], "mask": [1], "logprobs": [0.0]}
    line = to_line(
        Trajectory(id="a/0", item_id="a", index=0, environment="e", model="m", status="scored")
    )
    later = {**json.loads(line), "segments": [{**segment, "colour": "red"}], "mood": "good"}
    (tmp_path / TRAJECTORIES).write_text(json.dumps(later) + "\n")

    assert [found.rewards for found in read_groups(tmp_path)] == [[1.0]]
    assert [list(found.segments[0].ids) for found in read_trajectories(tmp_path)] == [[1]]


@pytest.mark.parametrize("run_id", ["../out", "a/b", ".", "-x", "a b"])
def test_an_invalid_run_id_is_rejected(
    run_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [
        "rollout",
        "run",
        "--environment",
        "swe",
        "--model",
        "m",
        "--base-url",
        "http://127.0.0.1:9/v1",
    ]

    assert main([*args, "--output-dir-parent", str(tmp_path), f"--run-id={run_id}"]) == 2
    assert f"--run-id {run_id!r} is invalid" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
