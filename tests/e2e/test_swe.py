"""The environment ``swe`` on a real engine: what honest agents get."""

from __future__ import annotations

import asyncio
import json
from importlib import resources
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperenvironment_swe import Swe
from tests.swecase import bash, judge_all, make_repository, make_site, with_site, write_rows

pytestmark = pytest.mark.engine

ODD = """
import pytest

from odd import half

@pytest.mark.parametrize("word", ["a b", "c[d]", "it's", 'q"q', "x::y", "$(touch z)"])
def test_words(word):
    assert half(4) == 2, word

@pytest.mark.skip(reason="not now")
def test_skipped():
    pass

@pytest.mark.xfail
def test_expected():
    assert False

class TestClass:
    def test_method(self, request):
        assert half(3) == 1.5
"""
ODD_IDS = [f"tests/test odd.py::test_words[{word}]" for word in ("a b", "c[d]", "it's", 'q"q', "x::y", "$(touch z)")]


def solution(task: str) -> str:
    """Return a program that does what the shipped solution does."""
    row = json.loads(resources.files("hyperenvironment_swe").joinpath("tasks", task, "task.json").read_text())
    return f"git apply - <<'PATCH'\n{row['patch']}PATCH\n"


@pytest.mark.parametrize("task", ["split-bill", "title-slugs"])
def test_a_repair_is_worth_one_and_a_look_nothing(
    task: str, runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """R1, R10: the shipped tasks need nothing but the base image."""
    agents = {
        "fixes": bash(solution(task)),
        "looks": bash("cat */*.py; git log"),
        "writes beside": bash("echo a note > notes.txt"),
    }
    environment = Swe(cache_dir=str(tmp_path / "cache"))
    verdicts = asyncio.run(judge_all(runtime, hr.ContainerSpec(image=base_image), environment, agents, task))
    assert {name: verdict.reward for name, verdict in verdicts.items()} == {
        "fixes": 1.0,
        "looks": 0.0,
        "writes beside": 0.0,
    }
    assert {name: verdict.phase for name, verdict in verdicts.items()} == {
        "fixes": "tests",
        "looks": "agent",
        "writes beside": "tests",
    }
    assert verdicts["writes beside"].parts == {"install": 1.0, "pass_to_pass": 1.0, "fail_to_pass": 0.0}


def test_pytest_ids_reach_pytest_as_they_are(runtime: hr.Runtime, base_image: str, tmp_path: Path) -> None:
    """W24: spaces, brackets, quotes and dollars in ids; skipped and expected failures are no pass."""
    files = {"odd/__init__.py": "def half(n):\n    return n // 2\n", "tests/test odd.py": ODD}
    commit = make_repository(tmp_path / "odd repo", files)
    common = {
        "repo": str(tmp_path / "odd repo"),
        "base_commit": commit,
        "problem_statement": "halve",
        "repo_dir": "odd",
    }
    ids = {"ok": [*ODD_IDS, "tests/test odd.py::TestClass::test_method"], "skips": ["tests/test odd.py::test_skipped"]}
    rows = [
        {"id": "plain", "FAIL_TO_PASS": json.dumps(ids["ok"]), "PASS_TO_PASS": [], **common},
        {"id": "skip", "FAIL_TO_PASS": ids["ok"], "PASS_TO_PASS": ids["skips"], **common},
        {"id": "xfail", "FAIL_TO_PASS": ids["ok"], "PASS_TO_PASS": ["tests/test odd.py::test_expected"], **common},
        {"id": "absent", "FAIL_TO_PASS": ["tests/test odd.py::test_gone"], **common},
    ]
    base = with_site(hr.ContainerSpec(image=base_image), make_site(tmp_path / "site"))
    environment = Swe(items=write_rows(tmp_path / "rows.jsonl", *rows), cache_dir=str(tmp_path / "cache"))
    agent = bash("sed -i s,//,/, odd/__init__.py")
    for row, reward in zip(rows, (1.0, 0.0, 0.0, 0.0), strict=True):
        verdict = asyncio.run(judge_all(runtime, base, environment, {"agent": agent}, str(row["id"])))["agent"]
        assert (verdict.phase, verdict.reward) == ("tests", reward), verdict
