"""A generation goes on at the phase that it had reached; what cannot be read of its journal was not reached."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.domain import Score
from hyperruntime.errors import EngineUnavailableError
from hyperruntime.loop.evaluation.evaluator import SplitResult
from hyperruntime.loop.evaluation.predictions import Prediction
from hyperruntime.loop.generation.phases import Phases, unfinished
from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run.run import RunSummary, resume_run, start_run
from hyperruntime.loop.run_files.archive import Archive, load_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import select_parent
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.loop.workbench.context import GenerationPlan
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.spec import ContainerSpec
from hyperruntime.testing import FakeRuntime, make_agent_repository

PLAN = GenerationPlan(genid=4, parent=2, commit="c" * 40, archived=3)
RECORD = GenerationRecord(genid=4, parent=2, commit="d" * 40, durations={"meta agent": 2.0, "diff": 0.0})
RESULT = SplitResult(
    predictions=(Prediction(task_id="a", value=[1, "x"], duration_s=0.5), Prediction(task_id="b", error="no")),
    scores=(Score(task_id="a", value=1.0, valid=True, facts={"f": [1]}), Score(task_id="b", value=0.0, valid=False)),
    total=9,
    mean=0.5,
)


def write_phases(path: Path) -> None:
    phases = Phases(path)
    phases.begin(PLAN)
    phases.keep_state(RECORD)
    phases.keep_split("circle_packing", "train", RESULT)


def test_phases_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_phases(tmp_path / "p")
    again = Phases(tmp_path / "p")
    assert (again.plan, again.record, again.results) == (PLAN, RECORD, {"circle_packing": {"train": RESULT}})


@given(st.data())
def test_a_journal_that_was_cut_anywhere_tells_what_was_over(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("phases") / "p"
    write_phases(path)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    lines = whole[:cut].count(b"\n") + (whole[cut : cut + 1] == b"\n")
    torn = Phases(path)
    assert (torn.plan, torn.record, torn.results) == (
        PLAN if lines > 0 else None,
        RECORD if lines > 1 else None,
        {"circle_packing": {"train": RESULT}} if lines > 2 else {},
    )
    torn.keep_state(RECORD)
    assert Phases(path).record == RECORD
    assert Phases(path).results == {}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.fixed_dictionaries(
                {"phase": st.sampled_from(["plan", "state", "split"])},
                optional=dict.fromkeys(("parent", "genid", "record", "predictions", "scores", "total"), inner),
            )
        ),
    )
)
def test_lines_of_any_content_are_skipped(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.mktemp("phases") / "p"
    path.write_text(json.dumps(value) + "\n")
    write_phases(path)
    assert Phases(path).results["circle_packing"] == {"train": RESULT}


def test_a_result_that_json_cannot_hold_is_made_again(tmp_path: Path) -> None:
    write_phases(tmp_path / "p")
    odd = attrs.evolve(RESULT, scores=(Score(task_id="a", value=1.0, valid=True, facts={"f": object()}),))
    Phases(tmp_path / "p").keep_split("circle_packing", "val", odd)
    assert list(Phases(tmp_path / "p").results["circle_packing"]) == ["train"]


def options(tmp_path: Path, **more: Any) -> GenerateOptions:
    values = {
        "domains": "circle_packing",
        "agent": str(tmp_path / "agent"),
        "max_generation": 2,
        "seed": 3,
        "run_id": "r",
        "output_dir_parent": str(tmp_path / "out"),
        "eval_samples": (1,),
    }
    return GenerateOptions(**{**values, **more})


@pytest.fixture
def counted(tmp_path: Path) -> tuple[Callable[..., RunSummary], Path]:
    """A function that runs an agent, and the file in which its meta agent writes a line each time it is called."""
    calls = tmp_path / "calls"
    action = f"open({str(calls)!r}, 'a').write(generation + chr(10))\nimprove()"
    make_agent_repository(tmp_path / "agent", dict.fromkeys(range(1, 20), action))

    def start(runtime: FakeRuntime, on_event: Callable[[StepEvent], None] | None = None, **more: Any) -> RunSummary:
        return start_run(runtime, plan_run(options(tmp_path, **more)), on_event)

    return start, calls


def interrupt_at(generation: str, step: str, state: str = "start") -> Callable[[StepEvent], None]:
    def on_event(event: StepEvent) -> None:
        if (event.generation, event.step, event.state) == (generation, step, state):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)  # the main thread takes it meanwhile

    return on_event


@pytest.mark.parametrize("step", ["state", "load check", "evaluate"])
def test_a_meta_agent_that_had_ended_is_not_called_again(
    counted: tuple[Callable[..., RunSummary], Path], step: str
) -> None:
    start, calls = counted
    summary = start(FakeRuntime(), interrupt_at("2", step))
    assert summary.interrupted
    layout = Layout(Path(summary.run_dir))
    assert set(unfinished(layout).values()) == {2}
    resumed = resume_run(FakeRuntime(), summary.run_dir)
    assert [record.failure for record in resumed.generations] == [None] * 3
    assert calls.read_text().split() == ["1", "2"]
    assert list(layout.work.iterdir()) == []
    second = resumed.generations[2]
    assert second.durations["meta agent"] > 0
    assert json.loads((layout.generation(2) / "metadata.json").read_text())["parent_agent_success"] is True
    assert "generation 2 saw" in (layout.generation(2) / "agent_output/meta_agent_chat_history.md").read_text()


def test_a_split_that_was_finished_is_not_run_again(
    counted: tuple[Callable[..., RunSummary], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, _ = counted
    asked: list[str] = []
    real = Phases.keep_split

    def keep(self: Phases, domain: str, split: str, result: SplitResult) -> None:
        real(self, domain, split, result)
        asked.append(split)
        if asked == ["train", "val", "train"]:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)

    monkeypatch.setattr(Phases, "keep_split", keep)
    summary = start(FakeRuntime(), max_generation=1)
    assert summary.interrupted
    resumed = resume_run(FakeRuntime(), summary.run_dir)
    assert asked == ["train", "val", "train", "val"]
    record = resumed.generations[1]
    assert set(record.scores["circle_packing"]) == {"train", "val"}
    folder = Path(summary.run_dir) / "gen_1" / "circle_packing_eval"
    assert json.loads((folder / "report.json").read_text())["score"] == record.scores["circle_packing"]["train"]
    assert (folder / "agent_evals" / "n08.md").read_text() == "asked for 8 circles"


def test_an_engine_that_fails_an_evaluation_does_not_cost_another_meta_agent(
    counted: tuple[Callable[..., RunSummary], Path],
) -> None:
    start, calls = counted
    failures = iter([EngineUnavailableError("fake", "flaky")])

    def flaky(spec: ContainerSpec) -> None:
        evaluates = any(mount.target.endswith("harness") for mount in spec.mounts)
        if calls.exists() and evaluates and (error := next(failures, None)):
            raise error

    record = start(FakeRuntime(before_start=flaky), max_generation=1).generations[1]
    assert (record.failure, record.attempts) == (None, 2)
    assert calls.read_text().split() == ["1"]


def test_a_state_that_a_power_failure_lost_is_made_again(counted: tuple[Callable[..., RunSummary], Path]) -> None:
    start, calls = counted
    summary = start(FakeRuntime(), interrupt_at("2", "evaluate"))
    path = Layout(Path(summary.run_dir)).phases(2)
    commit = Phases(path).record
    assert commit is not None
    path.write_text(path.read_text().replace(commit.commit, "e" * 40))
    resumed = resume_run(FakeRuntime(), summary.run_dir)
    assert [record.failure for record in resumed.generations] == [None] * 3
    assert calls.read_text().split() == ["1", "2", "2"]


def test_choices_can_be_made_again_from_seed_and_archive(counted: tuple[Callable[..., RunSummary], Path]) -> None:
    start, _ = counted
    summary = start(FakeRuntime(), max_generation=9, parallel=4)
    check_choices(summary.run_dir)


def test_an_interrupted_run_keeps_the_parents_that_it_had_chosen(
    counted: tuple[Callable[..., RunSummary], Path],
) -> None:
    start, _ = counted
    summary = start(FakeRuntime(), interrupt_at("5", "evaluate"), max_generation=9, parallel=4)
    layout = Layout(Path(summary.run_dir))
    plans = {genid: Phases.of(layout, genid).plan for genid in set(unfinished(layout).values())}
    assert plans
    resumed = resume_run(FakeRuntime(), summary.run_dir)
    made = {record.genid: record for record in resumed.generations}
    assert all(plan is not None and made[genid].parent == plan.parent for genid, plan in plans.items())
    check_choices(summary.run_dir)


def check_choices(run_dir: str) -> None:
    """Check that each parent follows from the seed, the number and who was archived at that time."""
    view = load_run(run_dir)
    for record in view.generations[1:]:
        before = Archive(Layout(Path("/nowhere")))
        for known in view.generations[: record.archived]:
            before._index(known)
        assert isinstance(record.genid, int)
        chosen = select_parent(
            view.options.parent_selection, before.candidates(), seed=view.seed, generation=record.genid
        )
        assert chosen == record.parent
