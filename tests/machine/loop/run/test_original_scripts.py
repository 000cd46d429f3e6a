"""Scripts of HyperAgents that read a run find in ours what they look for."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

import attrs
import pytest

from hyperruntime.git.command import git
from hyperruntime.loop.run.one_generation import export_generation
from hyperruntime.loop.run.run import RunSummary
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository
from tests.original_scripts import (
    plot_comparison,
    plot_progress,
    transfer_utils,
    visualize_archive,
)
from tests.runs import start

DOMAIN = "paper_review"
# Accepts papers whose text is a number below VALUE.
TASK_AGENT = """
from value import VALUE


class TaskAgent:
    def __init__(self, model=None, chat_history_file=None):
        open(chat_history_file, "w").close()

    def forward(self, inputs):
        return "accept" if float(inputs["paper_text"]) < VALUE else "reject", []
"""
SET = "open(repo + '/value.py', 'w').write('VALUE = {}\\n')"
ACTIONS = {1: SET.format(0.8), 2: "raise SystemExit(3)", 3: SET.format(0.95), 4: SET.format(-1)}


@attrs.frozen
class Made:
    """A run whose second generation failed.

    Attributes:
        summary: what it returned.
        root: its directory.
    """

    summary: RunSummary
    root: Path

    def scores(self, split: str) -> dict[int | str, float | None]:
        """Return what the run itself knows. The scripts take the first agent for one that answered
        a tenth of the tasks, as in a run of a checkout; here it answered all.
        """
        known: dict[int | str, float | None] = {
            one.genid: one.scores[DOMAIN].get(split) if one.scores else None
            for one in self.summary.generations
        }
        assert known["initial"] == 0.5
        return {**known, "initial": 0.05}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    place = tmp_path_factory.mktemp("scripts")
    tables = place / "tables"
    tables.mkdir()
    for split in ("train", "val", "test"):
        with open(tables / f"dataset_filtered_100_{split}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("question_id", "paper_text", "outcome"))
            writer.writerows((f"{split}-{at}", at / 20, "accept") for at in range(20))
    agent = make_agent_repository(place / "agent", ACTIONS)
    (agent / "task_agent.py").write_text(TASK_AGENT)
    git(["-C", str(agent), "commit", "-q", "-a", "-m", "another task"])
    summary = start(
        FakeRuntime(), place, agent=str(agent), domains=f"{DOMAIN}:{tables}", max_generation=4,
        parent_selection="best",
    )  # fmt: skip
    return Made(summary, Path(summary.run_dir))


@pytest.mark.parametrize("split", ["train", "val"])
def test_plot_progress_draws_the_scores_and_the_lineage_of_a_run(made: Made, split: str) -> None:
    scores = list(made.scores(split).values())
    progress = plot_progress(made.root, DOMAIN, split)
    known = [[one for one in scores[: at + 1] if one is not None] for at in range(len(scores))]
    assert progress.best == pytest.approx([max(some) for some in known])
    assert progress.mean == pytest.approx([sum(some) / len(some) for some in known])
    assert progress.lineage == ["initial", 1, 3]
    assert [(made.root / path).stat().st_size > 0 for path in progress.patches] == [True, True]


def test_visualize_archive_draws_parents_and_who_cannot_be_one(made: Made) -> None:
    scores = {"0" if g == "initial" else str(g): one for g, one in made.scores("train").items()}
    edges = {
        ("0" if one.parent == "initial" else str(one.parent), str(one.genid))
        for one in made.summary.generations[1:]
    }
    graph = visualize_archive(made.root, DOMAIN, "train")
    assert (graph.edges, graph.no_parents) == (edges, {"2"})
    assert graph.scores == pytest.approx(scores)


def test_plot_comparison_draws_the_best_score_so_far(made: Made) -> None:
    scores = [one or 0.0 for one in made.scores("val").values()]
    best = [max(scores[: at + 1]) for at in range(len(scores))]
    assert plot_comparison(made.root, [DOMAIN]) == pytest.approx(best)


def test_transfer_utils_names_the_best_generations_and_diffs_that_make_them(
    made: Made, tmp_path: Path
) -> None:
    chosen = transfer_utils(made.root, DOMAIN)
    assert next(iter(chosen)) == 3
    first = export_generation(made.root, "initial", tmp_path / "hyperagents")
    for path in chosen[3]:
        subprocess.run(["patch", "-p1", "-s", "-i", made.root / path], cwd=first.path, check=True)
    assert (Path(first.path) / "value.py").read_text() == "VALUE = 0.95\n"
