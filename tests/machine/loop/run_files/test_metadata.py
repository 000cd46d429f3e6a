"""``metadata.json``: the keys that other tools read, movable paths, long lineages, and marks that
come later.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.generation import publish
from hyperruntime.loop.generation.publish import amend_marked, amend_metadata
from hyperruntime.loop.run.run import RunSummary
from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.record import GenerationMark
from tests.machine.loop.conftest import WholeRun

KEYS = [
    "gen_output_dir", "current_genid", "parent_genid", "run_baseline", "optimize_option", "agent_archive_path",
    "prev_patch_files", "curr_patch_files", "parent_agent_success", "can_select_next_parent", "run_eval",
    "run_full_eval", "valid_parent", "hyperruntime",
]  # fmt: skip


def read(run_dir: Path, genid: object) -> tuple[str, dict[str, Any]]:
    text = (run_dir / f"gen_{genid}" / "metadata.json").read_text()
    return text, json.loads(text)


def test_keys_and_their_order_and_format_equal_hyperagents(whole_run: WholeRun) -> None:
    text, value = read(whole_run.root, 2)
    assert list(value) == KEYS
    assert text == json.dumps(value, indent=4)
    expected = ["gen_2", 2, 1, None, "only_agent", None, ["gen_1/agent_output/model_patch.diff"]]
    assert [value[key] for key in KEYS[:7]] == expected
    assert value["curr_patch_files"] == ["gen_2/agent_output/model_patch.diff"]
    assert [value[key] for key in KEYS[8:13]] == [True] * 5
    assert read(whole_run.root, "initial")[1]["parent_genid"] is None


def test_meta_agents_see_the_same_keys_and_only_training_scores(whole_run: WholeRun) -> None:
    seen = json.loads((whole_run.root / "view" / "gen_2" / "metadata.json").read_text())
    value = read(whole_run.root, 2)[1]
    assert list(seen) == KEYS
    assert {key: seen[key] for key in KEYS[:-1]} == {key: value[key] for key in KEYS[:-1]}
    assert list(seen["hyperruntime"]["scores"]["circle_packing"]) == ["train"]
    assert set(seen["hyperruntime"]) == {"score", "scores", "failure", "detail", "started"}


def test_a_failure_is_described_with_the_keys_of_hyperagents(
    whole_run: WholeRun, run: Callable[..., RunSummary]
) -> None:
    summary = run({1: "open('task_agent.py', 'w').write('def')"}, max_generation=1)
    agent, load = read(whole_run.root, 3)[1], read(Path(summary.run_dir), 1)[1]
    names = ("parent_agent_success", "run_eval", "valid_parent", "can_select_next_parent")
    assert [agent[name] for name in names] == [False, False, False, True]
    assert [load[name] for name in names] == [True, False, False, True]
    assert "run_full_eval" not in agent
    assert agent["curr_patch_files"] == []


def test_a_long_lineage_lists_few_patches_that_give_the_same_state(
    run: Callable[..., RunSummary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "MAX_LISTED_LINEAGE", 2)
    summary = run(max_generation=5, parent_selection="latest")
    root = Path(summary.run_dir)
    store = RepositoryStore(Layout(root).repository)
    listed = [read(root, n)[1]["prev_patch_files"] for n in range(1, 6)]
    patch = "agent_output/model_patch.diff"
    assert listed == [
        [], [f"gen_1/{patch}"], ["gen_2/lineage.diff"], ["gen_2/lineage.diff", f"gen_3/{patch}"],
        ["gen_4/lineage.diff"],
    ]  # fmt: skip
    for number, names in enumerate(listed, 1):
        patches = [(root / name).read_bytes() for name in (*names, f"gen_{number}/{patch}")]
        made = summary.generations[number]
        assert store.replay(summary.generations[0].commit, patches) == store.tree(made.commit)


def test_marks_are_added_to_the_metadata_after_a_kill(finished: Path) -> None:
    layout = Layout(finished)
    archive = Archive.load(layout)
    archive.mark(GenerationMark(kind="no-parent", genid=1, by=2))
    archive.mark(GenerationMark(kind="no-selection", genid=2))
    assert read(finished, 1)[1]["valid_parent"] is True
    amend_marked(layout, Archive.load(layout))
    assert read(finished, 1)[1]["valid_parent"] is False
    text, value = read(finished, 2)
    assert (value["can_select_next_parent"], value["valid_parent"]) == (False, True)
    assert text == json.dumps(value, indent=4)


@pytest.mark.parametrize("content", ["", "{torn", "[]", "null"])
def test_unreadable_metadata_is_left_unchanged(tmp_path: Path, content: str) -> None:
    (tmp_path / "metadata.json").write_text(content)
    amend_metadata(tmp_path, {"valid_parent": False})
    assert (tmp_path / "metadata.json").read_text() == content
