"""Who may become a parent, by both meanings of ``valid_parent``; replays of outages, patch failures, agent failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import EngineUnavailableError
from hyperruntime.loop.generation.generation import is_valid_parent
from hyperruntime.loop.generation.publish import parent_mark
from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run.run import RunSummary, resume_run, start_run
from hyperruntime.loop.run_files.archive import Archive, load_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import VALID_PARENT_RULES, GenerateOptions
from hyperruntime.loop.run_files.record import FAILURES, FailureClass, GenerationRecord
from hyperruntime.spec import ContainerSpec
from hyperruntime.testing import FakeRuntime, make_agent_repository

Run = Callable[..., RunSummary]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs scripted generations, each made from the latest that may be a parent."""

    def start(actions: dict[int, str], *, runtime: FakeRuntime | None = None, **options: Any) -> RunSummary:
        chosen = {
            "domains": "circle_packing",
            "agent": str(make_agent_repository(tmp_path / "agent", actions)),
            "max_generation": 3,
            "parent_selection": "latest",
            "valid_parent": "hyperagents",
            "seed": 3,
            "run_id": "r",
            "output_dir_parent": str(tmp_path / "out"),
            "eval_samples": (1,),
            **options,
        }
        return start_run(runtime or FakeRuntime(), plan_run(GenerateOptions(**chosen)))

    return start


def made(genid: str | int, parent: str | int | None, score: float | None = 0.5, **facts: Any) -> GenerationRecord:
    return GenerationRecord(genid=genid, parent=parent, score=score, **{"valid_parent": score is not None, **facts})


@pytest.mark.parametrize("rule", VALID_PARENT_RULES)
def test_a_failure_makes_no_parent(rule: str) -> None:
    assert is_valid_parent(rule, failure=None, score=0.0)
    assert not is_valid_parent(rule, failure="evaluation", score=None)


def test_without_a_score_a_generation_is_a_parent_by_name_only() -> None:
    assert is_valid_parent("hyperagents", failure=None, score=None)
    assert not is_valid_parent("strict", failure=None, score=None)


def archive_of(tmp_path: Path, *records: GenerationRecord) -> Archive:
    archive = Archive.load(Layout(tmp_path))
    for record in records:
        archive.add(record)
    return archive


@pytest.mark.parametrize("failure", [None, *FAILURES])
@pytest.mark.parametrize("rule", VALID_PARENT_RULES)
@pytest.mark.parametrize("reached", ["meta agent", "diff"])
def test_only_a_failed_meta_agent_is_held_against_a_parent(
    tmp_path: Path, rule: str, failure: FailureClass | None, reached: str
) -> None:
    child = made(2, 1, None, failure=failure, durations={"meta agent": 1.0, reached: 1.0}, detail="why")
    archive = archive_of(tmp_path, made("initial", None), made(1, "initial"), child)
    mark = parent_mark(rule, archive, child)
    blamed = rule == "hyperagents" and failure in ("agent", "timeout") and reached == "meta agent"
    assert (mark is not None) == blamed
    if mark is not None:
        assert (mark.kind, mark.genid, mark.by, mark.detail) == ("no-parent", 1, 2, "why")
        archive.mark(mark)
        assert parent_mark(rule, archive, child) is None
        assert [one.genid for one in archive.candidates()] == ["initial"]


@pytest.mark.parametrize("start", ["initial", 0])
def test_the_first_generation_stays_a_parent(tmp_path: Path, start: str | int) -> None:
    child = made(1, start, None, failure="agent", durations={"meta agent": 1.0})
    assert parent_mark("hyperagents", archive_of(tmp_path, made(start, None), child), child) is None


def test_all_archived_children_count_and_who_has_no_score_is_no_candidate(tmp_path: Path) -> None:
    archive = archive_of(
        tmp_path,
        made("initial", None, 0.2),
        made(1, "initial", 0.4),
        made(2, 1, None, failure="agent"),
        made(3, 1, None, failure="infrastructure"),
        made(4, 1, 0.6),
        made(5, "initial", None, valid_parent=True),
    )
    assert [(one.genid, one.score, one.children) for one in archive.candidates()] == [
        ("initial", 0.2, 2),
        (1, 0.4, 3),
        (4, 0.6, 0),
    ]


@pytest.mark.parametrize("start", ["initial", 0])
def test_where_nobody_is_a_candidate_the_first_generation_is_with_zero(tmp_path: Path, start: str | int) -> None:
    archive = archive_of(tmp_path, made(start, None, None, failure="evaluation"), made(1, start, None, failure="agent"))
    assert [(one.genid, one.score, one.children) for one in archive.candidates()] == [(start, 0.0, 1)]


@pytest.mark.parametrize(
    ("rule", "action", "parents"),
    [
        ("hyperagents", "raise SystemExit(3)", [None, "initial", 1, "initial"]),
        ("strict", "raise SystemExit(3)", [None, "initial", 1, 1]),
        ("hyperagents", "pass", [None, "initial", 1, 1]),
        ("hyperagents", "open(f'{out}/model_patch.diff', 'w').write('hello')", [None, "initial", 1, 1]),
        ("hyperagents", "open('task_agent.py', 'w').write('def')", [None, "initial", 1, 1]),
    ],
)
def test_a_child_that_fails_and_its_parent(run: Run, rule: str, action: str, parents: list[str | int | None]) -> None:
    summary = run({2: action}, valid_parent=rule)
    assert [record.parent for record in summary.generations] == parents
    lost = parents[3] == "initial"
    assert summary.generations[1].valid_parent != lost
    metadata = json.loads((Path(summary.run_dir) / "gen_1" / "metadata.json").read_text())
    assert metadata["valid_parent"] != lost
    assert [record.valid_parent for record in load_run(summary.run_dir).generations] == [True, not lost, False, True]


def test_a_meta_agent_that_hangs_is_held_against_its_parent(run: Run) -> None:
    summary = run({2: "import time; time.sleep(600)"}, timeout_meta_s=10.0)
    assert [record.parent for record in summary.generations] == [None, "initial", 1, "initial"]


def test_an_outage_is_held_against_nobody(run: Run) -> None:
    begun = iter(range(100))

    def outage(spec: ContainerSpec) -> None:
        if any(mount.target.endswith("evals") for mount in spec.mounts) and 1 <= next(begun) <= 3:
            raise EngineUnavailableError("fake", "it is gone")

    summary = run({}, runtime=FakeRuntime(before_start=outage))
    assert [record.failure for record in summary.generations] == [None, None, "infrastructure", None]
    assert [record.parent for record in summary.generations] == [None, "initial", 1, 1]
    assert summary.generations[2].attempts == 3


def test_a_kill_between_a_child_and_its_parents_mark_is_made_up_for(run: Run) -> None:
    summary = run({2: "raise SystemExit(3)"}, max_generation=2)
    layout = Layout(Path(summary.run_dir))
    lines = layout.journal.read_bytes().splitlines(keepends=True)
    assert b'"no-parent"' in lines[-1]
    layout.journal.write_bytes(b"".join(lines[:-1]))
    assert load_run(layout.root).generations[1].valid_parent
    again = resume_run(FakeRuntime(), layout.root, max_generation=3)
    assert not again.generations[1].valid_parent
    assert again.generations[3].parent == "initial"
