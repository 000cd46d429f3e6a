"""A run that HyperAgents wrote is resumed, on real containers and with a scripted model."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from hyperruntime import Runtime
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import resume_run
from tests.doubles.upstream import Received, Reply, chat, forget_model_servers, scripted_upstream
from tests.original_run import ELSEWHERE, Old, OriginalRun

pytestmark = pytest.mark.engine


def improve(received: Received) -> Reply:
    return chat(json.dumps({"append": {"keywords.txt": "thorough\n"}}))


def test_a_run_of_the_original_is_resumed(
    tmp_path: Path, runtime: Runtime, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_model_servers(monkeypatch)
    old = OriginalRun(tmp_path / "generate_old", parent_selection="best", eval_samples=[4])
    old.add(1, Old(keyword="novel", train=0.6, val=0.9))
    old.add(2, Old(keyword="lost"), listed=False)
    old.leave_patched("left behind")
    old.tear()
    with scripted_upstream(improve) as upstream:
        monkeypatch.setenv("OPENAI_BASE_URL", upstream.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-host-0123")
        summary = resume_run(
            runtime, plan_resume(old.path, max_generation=2, changes={"image": base_image})
        )
    assert [(record.genid, record.parent, record.failure) for record in summary.generations] == [
        ("initial", None, None), (1, "initial", None), (2, 1, None),
    ]  # fmt: skip
    last = summary.generations[-1]
    assert set(last.scores["paper_review"]) == {"train", "val"}
    metadata = json.loads((old.path / "gen_2" / "metadata.json").read_text())
    assert metadata["prev_patch_files"] == ["gen_1/agent_output/model_patch.diff"]
    patch = (old.path / "gen_2" / "agent_output" / "model_patch.diff").read_text()
    assert re.search(r"^ novel\n\+thorough$", patch, re.M)
    listed = json.loads((old.path / "archive.jsonl").read_text().splitlines()[-1])
    assert listed == {"current_genid": 2, "archive": ["initial", 1, 2]}
    files = [path for path in (old.path / "view").rglob("*") if path.is_file()]
    overview = {"archive.jsonl", "generate_loop.log", "progress_info_paper_review_train_agent.txt"}
    assert {path.relative_to(old.path / "view").parts[0] for path in files} == {
        "gen_initial",
        "gen_1",
        "gen_2",
    } | overview
    assert not [
        path for path in files if ELSEWHERE in path.read_text() or str(tmp_path) in path.read_text()
    ]
    tables = [
        csv.DictReader(io.StringIO(path.read_text())) for path in (old.path / "view").rglob("*.csv")
    ]
    assert {row["outcome"] for table in tables for row in table if "outcome" in row} == {""}
