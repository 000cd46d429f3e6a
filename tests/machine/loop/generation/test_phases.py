"""A resumed generation continues after the last phase in its journal; unreadable phases are
repeated.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.domain import Score
from hyperruntime.errors import EngineUnavailableError
from hyperruntime.loop.evaluation.evaluator import SplitResult
from hyperruntime.loop.evaluation.task_runner import Prediction
from hyperruntime.loop.generation.phases import Phases, unfinished
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import resume_run
from hyperruntime.loop.run_files.archive import Archive, load_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.loop.run_files.selection import choose_parent
from hyperruntime.loop.workbench.container import GenerationPlan
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.loop.workbench.open_containers import OpenContainers
from hyperruntime.registry import load_selection_rule
from hyperruntime.spec import ContainerSpec
from tests.doubles.fake_runtime import FakeRuntime
from tests.params import first_quick

PLAN = GenerationPlan(genid=4, parent=2, commit="c" * 40, archived=3)
RECORD = GenerationRecord(
    genid=4, parent=2, commit="d" * 40, durations={"meta agent": 2.0, "diff": 0.0}
)
RESULT = SplitResult(
    predictions=(
        Prediction(task_id="a", value=[1, "x"], duration_s=0.5),
        Prediction(task_id="b", error="no"),
    ),
    scores=(
        Score(task_id="a", value=1.0, valid=True, facts={"f": [1]}),
        Score(task_id="b", value=0.0, valid=False),
    ),
    total=9,
    mean=0.5,
)


def write_phases(path: Path) -> None:
    phases = Phases(path)
    phases.begin(PLAN)
    phases.keep_state(RECORD)
    phases.keep_split("circle_packing", "train", RESULT)


def test_phases_are_read_back_unchanged(tmp_path: Path) -> None:
    write_phases(tmp_path / "p")
    again = Phases(tmp_path / "p")
    assert (again.plan, again.record, again.results) == (
        PLAN,
        RECORD,
        {"circle_packing": {"train": RESULT}},
    )


@given(st.data())
def test_a_journal_cut_at_any_byte_keeps_its_complete_phases(
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
                optional=dict.fromkeys(
                    ("parent", "genid", "record", "predictions", "scores", "total"), inner
                ),
            )
        ),
    )
)
def test_lines_with_invalid_content_are_skipped(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    path = tmp_path_factory.mktemp("phases") / "p"
    path.write_text(json.dumps(value) + "\n")
    write_phases(path)
    assert Phases(path).results["circle_packing"] == {"train": RESULT}


def test_a_result_that_json_cannot_hold_is_not_kept(tmp_path: Path) -> None:
    write_phases(tmp_path / "p")
    odd = attrs.evolve(
        RESULT, scores=(Score(task_id="a", value=1.0, valid=True, facts={"f": object()}),)
    )
    Phases(tmp_path / "p").keep_split("circle_packing", "val", odd)
    assert list(Phases(tmp_path / "p").results["circle_packing"]) == ["train"]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when an interrupted run has closed its containers."""
    event, close_all = threading.Event(), OpenContainers.close_all

    def close_and_set(containers: OpenContainers) -> None:
        close_all(containers)
        event.set()

    monkeypatch.setattr(OpenContainers, "close_all", close_and_set)
    return event


def interrupt(stopped: threading.Event) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.wait(60), "the main thread did not handle the signal"


def interrupt_at(
    stopped: threading.Event, generation: str, step: str
) -> Callable[[StepEvent], None]:
    def on_event(event: StepEvent) -> None:
        if (event.generation, event.step, event.state) == (generation, step, "start"):
            interrupt(stopped)

    return on_event


def calls(run_dir: Path) -> list[str]:
    """Return the generations whose meta agents ran, from generation 4 on."""
    return (run_dir / "calls").read_text().split()


@pytest.mark.parametrize("step", first_quick("state", "load check", "evaluate"))
def test_a_finished_meta_agent_is_not_run_again(
    finished: Path, stopped: threading.Event, step: str
) -> None:
    on_event = interrupt_at(stopped, "5", step)
    assert resume_run(FakeRuntime(), plan_resume(finished, max_generation=5), on_event).interrupted
    layout = Layout(finished)
    assert set(unfinished(layout).values()) == {5}
    resumed = resume_run(FakeRuntime(), plan_resume(finished))
    assert [record.failure for record in resumed.generations[4:]] == [None] * 2
    assert calls(finished) == ["4", "5"]
    assert list(layout.work.iterdir()) == []
    assert resumed.generations[5].durations["meta agent"] > 0
    assert (
        json.loads((layout.generation(5) / "metadata.json").read_text())["parent_agent_success"]
        is True
    )
    assert (
        "generation 5 saw"
        in (layout.generation(5) / "agent_output/meta_agent_chat_history.md").read_text()
    )


def test_a_finished_split_is_not_run_again(
    finished: Path, stopped: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = Phases.keep_split

    def keep(self: Phases, domain: str, split: str, result: SplitResult) -> None:
        real(self, domain, split, result)
        asked.append(split)
        if asked == ["train"]:
            interrupt(stopped)

    monkeypatch.setattr(Phases, "keep_split", keep)
    assert resume_run(FakeRuntime(), plan_resume(finished, max_generation=4)).interrupted
    resumed = resume_run(FakeRuntime(), plan_resume(finished))
    assert asked == ["train", "val"]
    record = resumed.generations[4]
    assert set(record.scores["circle_packing"]) == {"train", "val"}
    folder = finished / "gen_4" / "circle_packing_eval"
    assert (
        json.loads((folder / "report.json").read_text())["score"]
        == record.scores["circle_packing"]["train"]
    )
    assert (folder / "agent_evals" / "n08.md").read_text() == "asked for 8 circles"


def test_an_engine_failure_in_an_evaluation_does_not_repeat_the_meta_agent(finished: Path) -> None:
    failures = iter([EngineUnavailableError("fake", "flaky")])

    def flaky(spec: ContainerSpec) -> None:
        evaluates = any(mount.target.endswith("harness") for mount in spec.mounts)
        if (finished / "calls").exists() and evaluates and (error := next(failures, None)):
            raise error

    record = resume_run(
        FakeRuntime(before_start=flaky), plan_resume(finished, max_generation=4)
    ).generations[4]
    assert (record.failure, record.attempts) == (None, 2)
    assert calls(finished) == ["4"]


def test_a_state_lost_in_a_power_failure_is_made_again(
    finished: Path, stopped: threading.Event
) -> None:
    resume_run(
        FakeRuntime(),
        plan_resume(finished, max_generation=4),
        interrupt_at(stopped, "4", "evaluate"),
    )
    path = Layout(finished).phases(4)
    commit = Phases(path).record
    assert commit is not None
    path.write_text(path.read_text().replace(commit.commit, "e" * 40))
    resumed = resume_run(FakeRuntime(), plan_resume(finished))
    assert [record.failure for record in resumed.generations[4:]] == [None]
    assert calls(finished) == ["4", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["score_child_prop", "islands:2,2", "novelty"])
def test_parents_follow_from_seed_and_archive_also_after_an_interruption(
    finished: Path, stopped: threading.Event, rule: str
) -> None:
    summary = resume_run(
        FakeRuntime(),
        plan_resume(
            finished,
            max_generation=10,
            parallel=4,
            changes={"parent_selection": rule},
        ),
        interrupt_at(stopped, "7", "evaluate"),
    )
    assert summary.interrupted
    layout = Layout(finished)
    plans = {genid: Phases(layout.phases(genid)).plan for genid in set(unfinished(layout).values())}
    assert plans
    resumed = resume_run(FakeRuntime(), plan_resume(finished))
    made = {record.genid: record for record in resumed.generations}
    assert len(made) == 11
    assert all(
        plan is not None and made[genid].parent == plan.parent for genid, plan in plans.items()
    )
    check_choices(finished, since=4)


def check_choices(run_dir: Path, since: int) -> None:
    """Check that each parent follows from the seed, the number and the generations archived at that
    time.
    """
    view = load_run(run_dir)
    for record in view.generations[since:]:
        before = Archive(Layout(Path("/nowhere")))
        for known in view.generations[: record.archived]:
            before._index(known)
        assert isinstance(record.genid, int)
        name = view.options.parent_selection
        seen = before.selection(Layout(run_dir), generation=record.genid, seed=view.seed)
        assert choose_parent(name, load_selection_rule(name), seen) == record.parent
