"""What an export to TensorBoard contains, read back by TensorBoard itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hyperruntime.cli import main
from tests.doubles.shown_runs import loop_run, rollout_run


def read(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Return the step, the value and the time of each scalar, by tag."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={accumulator.SCALARS: 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    return {
        tag: [(one.step, one.value, one.wall_time) for one in events.Scalars(tag)] for tag in tags
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_scores_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 10)
    place = tmp_path / "tb" / "generate_1"
    for _ in range(2):  # the second export replaces the first
        assert main(["report", str(run_dir), "--tensorboard", str(tmp_path / "tb"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"events": str(place)}
    found = read(place)
    assert [step for step, _, _ in found["score/all"]] == [0, 1, 2, 4, 5, 6, 7, 8, 9], (
        "generation 3 failed"
    )
    records = [json.loads(line) for line in (run_dir / "journal.jsonl").read_text().splitlines()]
    assert found["score/all"][4][1] == pytest.approx(records[5]["score"], rel=1e-5)
    assert found["score/circle_packing train"][4][1] == pytest.approx(
        records[5]["score"] + 0.01, rel=1e-5
    )
    best = [value for _, value, _ in found["score/best so far"]]
    assert best == sorted(best)
    assert found["score/all"][0][2] > 1_700_000_000
    assert {"time/all", "time/meta agent", "usage/money"} <= set(found)
    (place / "notes.txt").write_text("mine")
    assert main(["report", str(run_dir), "--tensorboard", str(tmp_path / "tb")]) == 2
    assert "has other files, such as 'notes.txt'" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_rewards_of_a_rollout(tmp_path: Path) -> None:
    run_dir = rollout_run(tmp_path / "rollout_1", 2, 3)
    assert main(["report", str(run_dir), "--tensorboard", str(tmp_path / "tb")]) == 0
    found = read(tmp_path / "tb" / "rollout_1")
    assert [step for step, _, _ in found["reward/all"]] == [0, 1, 3, 4]
    assert len(found["turns"]) == 6
