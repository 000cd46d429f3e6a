"""Selection rules and metrics in a run: from a file that the user names, and from nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperruntime.errors import RunError
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import RunSummary, resume_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.runs.own_mark import ReceivedRunError
from tests.doubles.fake_runtime import FakeRuntime

CODE = """
from pathlib import Path
import attrs
from hyperdomain_math.packing import CirclePacking
Path(__file__).with_suffix(".ran").touch()

class Mine(CirclePacking):
    def score(self, task, prediction):
        sizes = [radius for _, _, radius in prediction]
        metrics = {"circles": len(sizes), "least": min(sizes)}
        return attrs.evolve(super().score(task, prediction), metrics=metrics)

class Smallest:
    def __call__(self, run):
        assert all(one.metrics["circles"] == 29 for one in run.candidates)  # n=26 and n=32
        return min(run.candidates, key=lambda one: str(one.genid)).genid

class Never:
    def __call__(self, run):
        return "nobody"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def test_a_rule_of_a_file_chooses_by_the_metrics_of_a_domain_and_a_run_keeps_both(
    run: Callable[..., RunSummary], file: Path
) -> None:
    summary = run(domains="./mine.py:Mine", parent_selection="./mine.py:Smallest")
    assert [one.parent for one in summary.generations] == [None, "initial", 1]
    root = Path(summary.run_dir)
    assert load_run(root).options.parent_selection == f"{file}:Smallest"
    (name,) = summary.generations[0].metrics
    journal = [json.loads(line) for line in (root / "journal.jsonl").read_text().splitlines()]
    assert [line["metrics"][name]["val"]["circles"] for line in journal] == [29.0] * 3
    report = json.loads((root / f"gen_1/{name}_eval_val/report.json").read_text())
    assert report["metrics"].keys() == {"circles", "least"}
    assert [one["metrics"]["circles"] for one in report["tasks"].values()] == [26, 32]
    never = plan_resume(root, max_generation=3, changes={"parent_selection": "./mine.py:Never"})
    with pytest.raises(RunError, match=r"chose 'nobody'.*resume the run with another"):
        resume_run(FakeRuntime(), never)
    resumed = resume_run(
        FakeRuntime(),
        plan_resume(root, max_generation=4, changes={"parent_selection": "islands:2"}),
    )
    assert len(resumed.generations) == 5


def test_a_received_run_cannot_run_code_by_its_selection_rule(finished: Path, file: Path) -> None:
    value = json.loads((finished / "run.json").read_text())

    def store(rule: str) -> None:
        value["options"]["parent_selection"] = rule
        (finished / "run.json").write_text(json.dumps(value))

    store(f"{file}:Smallest")
    with pytest.raises(ReceivedRunError, match=r"asks for --parent-selection .*mine\.py"):
        plan_resume(finished)
    assert not file.with_suffix(".ran").exists()
    store("islands:2,3")
    assert plan_resume(finished).options.parent_selection == "islands:2,3"
