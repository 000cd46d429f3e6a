"""Which generations may become parents by both rules of ``valid_parent``, also after outages and
failures.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.loop.generation.generation import is_valid_parent
from hyperruntime.loop.generation.publish import parent_mark
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import RunSummary, resume_run
from hyperruntime.loop.run_files.archive import Archive, load_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import VALID_PARENT_RULES
from hyperruntime.loop.run_files.record import FAILURES, FailureClass, GenerationRecord
from tests.doubles.fake_runtime import FakeRuntime

Run = Callable[..., RunSummary]


def made(
    genid: str | int, parent: str | int | None, score: float | None = 0.5, **facts: Any
) -> GenerationRecord:
    return GenerationRecord(
        genid=genid, parent=parent, score=score, **{"valid_parent": score is not None, **facts}
    )


@pytest.mark.parametrize("rule", VALID_PARENT_RULES)
def test_a_failed_generation_is_not_a_valid_parent(rule: str) -> None:
    assert is_valid_parent(rule, failure=None, score=0.0)
    assert not is_valid_parent(rule, failure="evaluation", score=None)


def test_a_generation_without_a_score_is_valid_only_by_the_hyperagents_rule() -> None:
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
def test_only_a_failed_meta_agent_marks_its_parent_and_only_by_the_hyperagents_rule(
    tmp_path: Path, rule: str, failure: FailureClass | None, reached: str
) -> None:
    child = made(
        2, 1, None, failure=failure, durations={"meta agent": 1.0, reached: 1.0}, detail="why"
    )
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
def test_the_first_generation_stays_a_valid_parent(tmp_path: Path, start: str | int) -> None:
    child = made(1, start, None, failure="agent", durations={"meta agent": 1.0})
    assert parent_mark("hyperagents", archive_of(tmp_path, made(start, None), child), child) is None


def test_all_archived_children_count_and_a_generation_without_score_is_not_a_candidate(
    tmp_path: Path,
) -> None:
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
def test_the_first_generation_is_the_only_candidate_with_score_zero_if_all_failed(
    tmp_path: Path, start: str | int
) -> None:
    archive = archive_of(
        tmp_path,
        made(start, None, None, failure="evaluation"),
        made(1, start, None, failure="agent"),
    )
    assert [(one.genid, one.score, one.children) for one in archive.candidates()] == [
        (start, 0.0, 1)
    ]


@pytest.mark.slow
def test_a_failed_meta_agent_invalidates_its_parent_also_after_a_kill(
    run: Callable[..., RunSummary], hangs: str
) -> None:
    actions = {
        2: "raise SystemExit(3)",
        4: "pass",
        5: "open(f'{out}/model_patch.diff', 'w').write('hello')",
        6: "open('task_agent.py', 'w').write('def')",
        7: hangs,
    }
    rule = {"parent_selection": "latest", "valid_parent": "hyperagents", "timeout_meta_s": 5000.0}
    summary = run(actions, max_generation=2, **rule)
    assert [record.valid_parent for record in summary.generations] == [True, False, False]
    layout = Layout(Path(summary.run_dir))
    assert valid_parent(layout, 1) is False
    lines = layout.journal.read_bytes().splitlines(keepends=True)
    assert b'"no-parent"' in lines[-1]
    layout.journal.write_bytes(b"".join(lines[:-1]))
    assert load_run(layout.root).generations[1].valid_parent
    again = resume_run(FakeRuntime(), plan_resume(layout.root, max_generation=8))
    failures = [
        None,
        None,
        "agent",
        None,
        "empty-diff",
        "refused-patch",
        "does-not-load",
        "timeout",
        None,
    ]
    assert [record.failure for record in again.generations] == failures
    assert [record.parent for record in again.generations] == [
        None,
        "initial",
        1,
        "initial",
        3,
        3,
        3,
        3,
        "initial",
    ]
    kept = [True, False, False, False, False, False, False, False, True]
    assert [record.valid_parent for record in again.generations] == kept
    assert [record.valid_parent for record in load_run(layout.root).generations] == kept
    assert [valid_parent(layout, n) for n in range(1, 9)] == kept[1:]


def valid_parent(layout: Layout, genid: int) -> bool:
    value: bool = json.loads((layout.generation(genid) / "metadata.json").read_text())[
        "valid_parent"
    ]
    return value


@pytest.mark.slow
def test_by_the_strict_rule_a_failed_child_does_not_invalidate_its_parent(finished: Path) -> None:
    assert load_run(finished).generations[3].failure == "agent"
    again = resume_run(FakeRuntime(), plan_resume(finished, max_generation=4))
    assert [record.parent for record in again.generations] == [None, "initial", 1, 2, 2]
    assert [record.valid_parent for record in again.generations] == [True, True, True, False, True]
    assert valid_parent(Layout(finished), 2)
