"""Runs on real containers in which agents of the default contract choose parents, and the
baselines.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyperruntime import Runtime
from hyperruntime.errors import AgentError
from hyperruntime.git.command import git
from hyperruntime.loop.run.run import RunSummary
from hyperruntime.loop.workbench.events import StepEvent
from tests.doubles.fake_runtime import make_agent_repository
from tests.runs import parents
from tests.runs import start as start_run

pytestmark = pytest.mark.engine

Run = Callable[..., RunSummary]
CONTRACT = '[commands]\nselect_parent = ["python3", "choose.py"]\n'
LOOK = """
import argparse, json, os
parser = argparse.ArgumentParser()
parser.add_argument("--generation", type=int)
parser.add_argument("--evals_folder")
parser.add_argument("--domains", nargs="+")
options = parser.parse_args()
with open(f"{options.evals_folder}/archive.jsonl") as file:
    ids = json.loads(file.read().splitlines()[-1])["archive"]
facts = {}
for genid in ids:
    with open(f"{options.evals_folder}/gen_{genid}/metadata.json") as file:
        facts[genid] = json.load(file)
"""


@pytest.fixture
def run(tmp_path: Path, runtime: Runtime, base_image: str) -> Run:
    """Return a function that runs an agent, with a program that chooses parents if one is given."""

    def start(
        choose: str = "",
        actions: dict[int, str] | None = None,
        on_event: Any = None,
        **options: Any,
    ) -> RunSummary:
        agent = make_agent_repository(tmp_path / "agent", actions)
        if choose:
            (agent / "choose.py").write_text(LOOK + choose)
            (agent / "hyperrun.toml").write_text(CONTRACT)
        for command in (["add", "--all"], ["commit", "-q", "--allow-empty", "-m", "chooses"]):
            git(["-C", str(agent), *command])
        chosen = {"max_generation": 3, "edit_select_parent": bool(choose), **options}
        return start_run(runtime, tmp_path, on_event, agent=str(agent), image=base_image, **chosen)

    return start


def test_the_agents_own_program_chooses_parents_from_the_files_it_sees(run: Run) -> None:
    summary = run(
        "print('looking')\nprint(max(ids, key=lambda genid: "
        "len(facts[genid]['prev_patch_files'] + facts[genid]['curr_patch_files'])))\n"
    )
    assert parents(summary) == [None, "initial", 1, 2]
    report = json.loads(
        (Path(summary.run_dir) / "standings/gen_2/circle_packing_eval_val/report.json").read_text()
    )
    assert isinstance(report["score"], float)
    assert "tasks" not in report


@pytest.mark.slow
def test_when_a_changed_program_fails_an_earlier_generation_is_asked(run: Run) -> None:
    actions = {1: "open(f'{repo}/choose.py', 'w').write('print(77)\\n'); improve()"}
    summary = run("print(ids[-1])\n", actions)
    assert parents(summary) == [None, "initial", 1, 2]  # the initial generation chooses the newest
    log = (Path(summary.run_dir) / "select_next_parent.log").read_text()
    asked = re.findall(r"== generation (\d): generation (\w+) is asked", log)
    assert asked == [("1", "initial"), ("2", "1"), ("2", "initial"), ("3", "2"), ("3", "initial")]
    metadata = json.loads((Path(summary.run_dir) / "gen_1/metadata.json").read_text())
    assert (metadata["can_select_next_parent"], metadata["valid_parent"]) == (False, True)


def test_a_signal_ends_a_slow_choice(run: Run) -> None:

    def send() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def on_event(event: StepEvent) -> None:
        if event.step == "reset" and event.state == "done":
            threading.Timer(2.0, send).start()

    summary = run("import time; time.sleep(300)\n", on_event=on_event)
    assert summary.interrupted
    assert [record.genid for record in summary.generations] == ["initial"]
    assert not list((Path(summary.run_dir) / "work").iterdir())


@pytest.mark.slow
def test_without_self_improvement_the_initial_meta_agent_makes_every_generation(run: Run) -> None:
    breaks = "open(f'{repo}/run_meta_agent.py', 'w').write('raise SystemExit(1)'); improve()"
    summary = run(actions={1: breaks}, run_baseline="no_selfimprove", parent_selection="latest")
    assert [record.failure for record in summary.generations] == [None] * 4
    assert parents(summary) == [None, "initial", 1, 2]


@pytest.mark.slow
def test_without_an_archive_an_agent_sees_only_its_parent(run: Run) -> None:
    summary = run(run_baseline="no_archive")
    assert parents(summary) == [None, "initial", 1, 2]
    seen = (Path(summary.run_dir) / "gen_3/agent_output/meta_agent_chat_history.md").read_text()
    assert seen == "generation 3 saw ['gen_2']\n"


@pytest.mark.parametrize(
    "options",
    [
        {"edit_select_parent": True},
        {"run_baseline": "dgm"},
        {"optimize_option": "both_agent_ensemble"},
    ],
)
def test_options_that_the_agent_does_not_support_are_refused(
    run: Run, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(AgentError):
        run(**options)
    assert not list((tmp_path / "out").glob("generate_*"))
