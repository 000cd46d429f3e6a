"""Hostile agents in repositories of the HyperAgents layout: they find no label and no key, and
forge no score.
"""

from __future__ import annotations

import csv
import json
import secrets
import shutil
from pathlib import Path

import pytest

from hyperruntime import Runtime
from tests.doubles.upstream import chat, forget_model_servers, scripted_upstream
from tests.runs import failures
from tests.runs import start as start_run

pytestmark = pytest.mark.engine

TESTS = Path(__file__).parents[1]
NOTHING: dict[str, list[str]] = {"files": [], "objects": [], "processes": []}


def make_checkout(folder: Path, settings: str) -> Path:
    """Copy the hostile agents over the stand-in repository; return the checkout."""
    shutil.copytree(TESTS / "standin", folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(folder / "task_agent.py", folder / "honest_task.py")
    shutil.copytree(TESTS / "hostile" / "original", folder, dirs_exist_ok=True)
    (folder / ".env").write_text(settings)
    return folder


def rows_of(checkout: Path, split: str) -> list[dict[str, str]]:
    path = checkout / f"domains/paper_review/dataset_filtered_100_{split}.csv"
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_hostile_original_repository_finds_no_label_and_forges_no_score(
    tmp_path: Path, runtime: Runtime, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_model_servers(monkeypatch)
    key = f"key-{secrets.token_hex(8)}"
    monkeypatch.setenv("HOSTILE_SECRET", key)
    with scripted_upstream(lambda _: chat("nothing")) as upstream:
        checkout = make_checkout(
            tmp_path / "checkout", f"OPENAI_BASE_URL={upstream.url}\nOPENAI_API_KEY={key}\n"
        )
        summary = start_run(
            runtime, tmp_path, domains="paper_review", agent=str(checkout), image=base_image,
            max_generation=3, parent_selection="latest",
        )  # fmt: skip
    root = Path(summary.run_dir)
    assert failures(summary) == [None] * 4, summary.generations
    meta = json.loads((root / "gen_1/agent_output/meta_agent_chat_history.md").read_text())
    assert meta == {**NOTHING, "later splits": [], "written in what is shown": []}
    for name in ("paper_review_eval", "paper_review_eval_val"):
        histories = list((root / "gen_2" / name / "agent_evals").glob("*.md"))
        assert histories
        for path in histories:
            assert json.loads(path.read_text()) == {
                **NOTHING,
                "inputs": ["domain", "paper_text"],
            }, path
    words = (checkout / "keywords.txt").read_text().split()
    for split in ("train", "val"):
        rows = rows_of(checkout, split)
        found = [
            "accept" if any(word in row["paper_text"] for word in words) else "reject"
            for row in rows
        ]
        honest = sum(row["outcome"] == said for row, said in zip(rows, found, strict=True)) / len(
            rows
        )
        accepted = sum(row["outcome"] == "accept" for row in rows) / len(rows)
        scores = [record.scores["paper_review"][split] for record in summary.generations[1:]]
        assert scores == pytest.approx([honest, accepted, honest])
    kept = b"".join(
        path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink()
    )
    assert key.encode() not in kept
    assert b"root:x:0" not in kept
