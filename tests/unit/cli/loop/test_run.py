"""How the command line presents a run: options, progress, the table of generations, status and
report.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.cli import main
from hyperruntime.cli.loop.progress import Tracker
from hyperruntime.cli.progress import Line, LiveDisplay, plain_progress
from hyperruntime.cli.tables import plain_lines
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord, record_to_json
from hyperruntime.loop.workbench.events import StepEvent, StepState
from hyperruntime.option_fields import to_json

RECORDS = (
    GenerationRecord(
        genid="initial",
        score=0.8,
        scores={"circle_packing": {"train": 0.7, "val": 0.8}},
        valid_parent=True,
    ),
    GenerationRecord(
        genid=2,
        parent="initial",
        score=0.9,
        scores={"circle_packing": {"train": 0.85, "val": 0.9}},
        valid_parent=True,
    ),
    GenerationRecord(
        genid=1, parent="initial", failure="agent", detail="the meta agent ended with exit code 1"
    ),
)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the directory of an interrupted run whose journal has a damaged line."""
    path = tmp_path / "generate_1"
    path.mkdir()
    options = GenerateOptions(domains=("circle_packing",), max_generation=5, run_id="1", seed=7)
    (path / "run.json").write_text(json.dumps({"seed": 7, "options": to_json(options)}))
    lines = [json.dumps(record_to_json(record)) for record in RECORDS]
    (path / "journal.jsonl").write_text("\n".join([lines[0], "{torn", *lines[1:]]) + "\n")
    return path


def test_the_tracker_follows_generations_and_the_best_score() -> None:
    tracker = Tracker(6, RECORDS[:2])

    def take(generation: int, step: str, state: StepState, **more: Any) -> Line | None:
        event = StepEvent(generation=str(generation), step=step, state=state, **more)
        return tracker.take(event)

    assert (tracker.done, tracker.best) == (2, (0.9, "2"))
    assert take(3, "image", "start") is None
    assert take(3, "meta agent", "start") == Line("generation 3: meta agent", is_minor=True)
    assert tracker.running["generation 3"].step == "meta agent"
    assert take(3, "meta agent", "done", duration_s=2.0) is None
    best = "best 0.9500 (generation 3)"
    line = take(3, "generation", "done", duration_s=4.0, score=0.95)
    assert line == Line(f"generation 3: score 0.9500 in 4.0s; {best}")
    assert not tracker.running
    take(4, "load check", "failed", detail="no module\nnamed x")
    line = take(4, "generation", "failed", duration_s=1.0, detail="agent")
    said = f"generation 4: no score failed (agent: no module named x) in 1.0s; {best}"
    assert line == Line(said, is_bad=True)
    assert tracker.done == 4
    take(5, "tasks", "failed", detail="2 of 5 tasks timed out")
    line = take(5, "generation", "done", duration_s=1.0, score=0.0)
    assert line == Line(f"generation 5: score 0.0000 (2 of 5 tasks timed out) in 1.0s; {best}")


def test_plain_progress_is_printed_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    on_event = plain_progress(Tracker(1))
    on_event(StepEvent(generation="initial", step="evaluate", state="start"))
    on_event(StepEvent(generation="initial", step="generation", state="done", score=0.5))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "generation initial: evaluate" in captured.err
    assert "best 0.5000 (generation initial)" in captured.err


def test_the_live_display_has_a_line_per_running_generation_and_one_for_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from io import StringIO

    from rich.console import Console

    display = LiveDisplay(Tracker(3))
    with display.shown():
        display.on_event(StepEvent(generation="1", step="meta agent", state="start"))
        display.on_event(StepEvent(generation="2", step="evaluate", state="start"))
        shown = StringIO()
        Console(file=shown, width=100).print(display.render())
        display.on_event(StepEvent(generation="1", step="generation", state="done", score=0.75))
    lines = shown.getvalue().splitlines()
    assert "generation 1" in lines[0]
    assert "meta agent" in lines[0]
    assert "generation 2" in lines[1]
    assert "0/3 generations" in lines[2]
    assert "generation 1: score 0.7500" in capsys.readouterr().err


def test_status_prints_generations_problems_and_the_command_to_resume(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(run_dir)]) == 0
    captured = capsys.readouterr()
    head, columns, *rows = captured.out.splitlines()
    assert (
        "interrupted, 3 of 6 generations, best 0.9000 (generation 2), seed 7; failed: 1 agent"
        in head
    )
    assert columns.split() == [
        "GENERATION",
        "PARENT",
        "SCORE",
        "TRAIN",
        "VAL",
        "DURATION",
        "FAILURE",
    ]
    assert [row.split()[0] for row in rows] == ["initial", "1", "2"]
    assert rows[1].endswith("agent: the meta agent ended with exit code 1")
    assert rows[2].startswith("2 *")
    assert "line 2 of journal.jsonl is damaged" in captured.err
    assert f"hyperrun resume {run_dir}" in captured.err


def test_generations_that_were_made_before_the_limit_was_lowered_count(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = GenerateOptions(domains=("circle_packing",), max_generation=1, run_id="1", seed=7)
    (run_dir / "run.json").write_text(json.dumps({"seed": 7, "options": to_json(options)}))
    assert main(["status", str(run_dir)]) == 0
    assert "3 of 3 generations" in capsys.readouterr().out


def test_status_prints_json_on_request(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(run_dir), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["seed"], told["run_dir"]) == ("interrupted", 7, str(run_dir))
    assert told["best"]["current_genid"] == 2
    assert [generation["current_genid"] for generation in told["generations"]] == ["initial", 2, 1]
    assert len(told["problems"]) == 1


def test_an_unknown_run_directory_is_reported_with_a_close_match(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(run_dir.with_name("generate_12"))]) == 2
    assert f"did you mean {str(run_dir)!r}?" in capsys.readouterr().err


def test_report_draws_the_lineage_and_the_best_answers(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = run_dir / "gen_2" / "circle_packing_eval_val"
    answers.mkdir(parents=True)
    circles = [[0.1 + 0.13 * (k % 6), 0.1 + 0.13 * (k // 6), 0.05] for k in range(26)]
    lines = [
        json.dumps({"task_id": "n26", "prediction": circles}),
        "{torn",
        '{"task_id": "n32", "prediction": "no"}',
    ]
    (answers / "predictions.jsonl").write_text("\n".join(lines))
    elsewhere = run_dir / "elsewhere"
    assert main(["report", str(run_dir), "--pictures", str(elsewhere), "--json"]) == 0
    pictures = json.loads(capsys.readouterr().out)
    names = [Path(picture["svg"]).name for picture in pictures]
    assert names[:2] == ["lineage.svg", "best_circle_packing_n26.svg"]
    assert {
        "progress_plot_circle_packing_val_agent.svg",
        "archive_graph_circle_packing_train_agent.svg",
    } <= set(names)
    for picture in pictures:
        assert "<svg " in Path(picture["svg"]).read_text()
        assert Path(picture["png"]).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_plain_tables_are_aligned_and_not_truncated() -> None:
    lines = plain_lines(("name", "size"), [("a", "1"), ("b" * 90, "22"), ("", "")], right=("size",))
    assert [len(line) for line in lines] == [96, 96, 96, 96]
    assert lines[1].endswith("   1")
    assert lines[3].startswith("-")
