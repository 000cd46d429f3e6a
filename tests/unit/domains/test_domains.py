"""The shipped domains, and how other domains are found: rejected arguments and malformed
answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hyperdomain_polyglot import Polyglot
from hyperdomain_table import Table
from hyperruntime.domain import Domain, Score, mean_report
from hyperruntime.errors import HyperRuntimeError, SpecError
from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run.run import start_run
from hyperruntime.loop.run_files.options import GenerateOptions
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository

ROOT = Path(__file__).parents[3]
HOSTILE: tuple[Any, ...] = (
    None,
    [],
    {},
    "x" * 5000,
    3,
    float("nan"),
    True,
    {"files": {"../x": "y"}},
    {"files": {1: 2}},
    "\ud800",
)


@pytest.mark.parametrize("domain", [Table(), Polyglot()], ids=["table", "polyglot"])
@pytest.mark.parametrize("prediction", HOSTILE, ids=lambda value: ascii(value)[:20])
def test_any_answer_is_scored_and_a_malformed_one_is_invalid(
    domain: Domain, prediction: Any
) -> None:
    task = domain.tasks("train")[0]
    found = (
        domain.trial(task, prediction)
        if isinstance(domain, Polyglot)
        else domain.score(task, prediction)
    )
    if isinstance(found, Score):
        assert (found.value, found.valid) == (0.0, False)
        assert domain.report("train", [found])["score"] == 0.0
    else:
        assert type(prediction) is str


@pytest.mark.parametrize(
    ("values", "mean"), [((1.25, 1.75), 1.5), ((-0.25, -0.75), -0.5), ((1.5, -0.5), 0.5)]
)
def test_the_mean_of_scores_outside_of_0_to_1_is_not_cut(
    values: tuple[float, ...], mean: float
) -> None:
    scores = [
        Score(task_id=str(number), value=value, valid=True) for number, value in enumerate(values)
    ]
    report = mean_report("mine", "train", scores)
    assert (report["score"], [task["score"] for task in report["tasks"].values()]) == (
        mean,
        list(values),
    )


def example_package(folder: Path) -> dict[str, str]:
    """Install the domain of docs/writing-a-domain.md in a folder; return the environment that finds
    it there.
    """
    text = (ROOT / "docs/writing-a-domain.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 40, (
        "the documentation states at most 40 lines"
    )
    (folder / "reversal.py").write_text(code)
    info = folder / "reversal-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reversal\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hyperruntime.domains]\nreversal = reversal:Reversal\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_the_domain_in_the_documentation_works(tmp_path: Path) -> None:
    env = example_package(tmp_path)
    command = [
        sys.executable,
        "-c",
        "from hyperruntime.cli import main; main()",
        "domains",
        "--json",
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    rows = {row["domain"]: row for row in json.loads(done.stdout)}
    assert rows["reversal"]["problem"] == ""
    assert rows["reversal"]["splits"] == {"train": 4, "val": 2}
    assert rows["table"]["splits"] == {"train": 12, "val": 6}


@pytest.mark.parametrize(
    "domain",
    ["babyai:Nowhere-v0", "table:{}/none.csv", "polyglot:{}/nothing", "table:{}/empty.csv"],
)
def test_a_domain_that_cannot_be_used_creates_no_run(domain: str, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("id,text,label\n")
    agent = make_agent_repository(tmp_path / "agent")
    options = GenerateOptions(
        domains=domain.format(tmp_path), agent=str(agent), output_dir_parent=str(tmp_path / "out")
    )
    runtime = FakeRuntime()
    with pytest.raises(HyperRuntimeError):
        start_run(runtime, plan_run(options))
    assert not (tmp_path / "out").exists()
    assert runtime.started == 0


def test_metrics_are_finite_figures_and_a_report_has_their_means_over_the_tasks_that_have_them() -> (
    None
):
    scores = (
        Score(task_id="a", value=0.5, valid=True, metrics={"size": 1.7e308, "speed": 1}),
        Score(task_id="b", value=1.5, valid=True, metrics={"size": 1.7e308}),
        Score(task_id="c", value=0.0, valid=False),
    )
    report = mean_report("d", "train", scores)
    assert report["metrics"] == {"size": pytest.approx(1.7e308), "speed": 1.0}
    assert [one.get("metrics") for one in report["tasks"].values()] == [
        {"size": 1.7e308, "speed": 1},
        {"size": 1.7e308},
        None,
    ]
    assert "metrics" not in mean_report("d", "train", scores[2:])


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"speed": float("nan")}, r"metrics\['speed'\]=nan is not allowed: a finite number"),
        ({"speed": True}, "a finite number"),
        ({"speed": "fast"}, "a finite number"),
        ({"a b": 1.0}, "names of 1 to 60"),
        ({1: 1.0}, "names of 1 to 60"),
    ],
)
def test_other_metrics_are_refused_where_they_are_made(metrics: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Score(task_id="a", value=0.5, valid=True, metrics=metrics)
