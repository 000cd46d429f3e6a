"""``datasets`` itself reads the export for Hugging Face, offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import RunError
from hyperruntime.rollout.training_data.export import ExportOptions, export_run
from tests.unit.rollout.training_data.test_export import MESSAGES, make, write_run

LOAD = """
import json, sys
from datasets import load_dataset
loaded = load_dataset(sys.argv[1], split="train")
print(json.dumps({"rows": list(loaded), "features": sorted(loaded.features), "reward": str(loaded.features["reward"])}))
"""


def load(directory: Path, tmp_path: Path) -> dict[str, Any]:
    """Return what ``load_dataset`` reads in a separate process without network access."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(directory)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_datasets_reads_the_export(tmp_path: Path) -> None:
    """Each column has one type although tools, verdicts and messages differ; tokens and logprobs
    are unchanged.
    """
    odd = {"verdict": {"phase": "tests", "facts": {"n": [1, "x", None]}}, "parts": {"style": 0.5}}
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}],
    }
    run = write_run(
        tmp_path / "run",
        make(
            "a",
            0,
            1.0,
            tools=[{"type": "function", "function": {"name": "bash", "parameters": {"x": {}}}}],
        ),
        make("a", 1, None),
        make("b", 0, 0.0, messages=[parts], segments=[], **odd),
        make("b", 1, 0.25, verdict={"phase": 3}),
    )
    directory = tmp_path / "a data set"
    export_run(run, directory, ExportOptions(to="huggingface"))
    facts = load(directory, tmp_path)
    rows = {row["id"]: row for row in facts["rows"]}
    assert list(rows) == ["a/0", "b/0", "b/1"]
    assert facts["reward"] == "Value('float64')"
    assert set(rows["a/0"]) == set(facts["features"])
    assert rows["a/0"]["segments"] == [
        {"ids": [5, 6, 7, 8], "mask": [0, 0, 1, 1], "logprobs": [None, None, -0.25, -1e-9]}
    ]
    assert [m["content"] for m in rows["a/0"]["messages"]] == [m["content"] or "" for m in MESSAGES]
    assert json.loads(rows["a/0"]["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {
        "command": "ls"
    }
    assert rows["b/0"]["messages"][0]["content"] == "in parts"
    assert json.loads(rows["b/0"]["verdict"]) == odd["verdict"]
    assert (rows["b/0"]["group_size"], rows["b/0"]["segments"]) == (2, [])


def test_a_run_without_scores_is_not_exported(tmp_path: Path) -> None:
    """``datasets`` cannot read a directory without rows, so none is written."""
    run = write_run(tmp_path / "run", make("a", 0, None))
    with pytest.raises(RunError, match="has nothing to export"):
        export_run(run, tmp_path / "empty", ExportOptions(to="huggingface"))
    assert list(tmp_path.iterdir()) == [run]
