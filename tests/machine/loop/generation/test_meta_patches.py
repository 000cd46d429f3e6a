"""Runs that begin with diffs of other runs' agents, or with another directory, and what their log
contains.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import AgentError, RepositoryError, SpecError
from hyperruntime.git.command import git
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.run.opened_run import reset_paths
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import RunSummary, resume_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.contract import Contract
from hyperruntime.loop.run_files.options import GenerateOptions
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository
from tests.runs import start as start_run

Run = Callable[..., RunSummary]
CHANGES = {
    "task_agent.py": "\n# a better task agent\n",
    "meta_agent.py": "\n# a better meta agent\n",
    "hyperrun.toml": "[commands]\n",
    "notes.txt": "learned\n",
}


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    return make_agent_repository(tmp_path / "agent")


@pytest.fixture
def diffs(tmp_path: Path, agent: Path) -> list[str]:
    """Return two diffs as another run leaves them; the second applies on top of the first."""
    work = tmp_path / "evolved"
    git(["clone", "-q", str(agent), str(work)], env={"GIT_ALLOW_PROTOCOL": "file"})
    found = []
    for number, names in enumerate(
        (["task_agent.py", "hyperrun.toml"], ["meta_agent.py", "notes.txt"])
    ):
        for name in names:
            with open(work / name, "a") as file:
                file.write(CHANGES[name])
        git(["-C", str(work), "add", "--all"])
        path = tmp_path / f"diff {number}.diff"
        path.write_bytes(git(["-C", str(work), "diff", "--cached", "--binary"]))
        git(["-C", str(work), "commit", "-q", "-m", "x"])
        found.append(str(path))
    return found


@pytest.fixture
def run(tmp_path: Path, agent: Path) -> Run:
    def start(**options: Any) -> RunSummary:
        defaults = {"agent": str(agent), "max_generation": 2, "parent_selection": "latest"}
        return start_run(FakeRuntime(), tmp_path, run_id="r", **{**defaults, **options})

    return start


def state(summary: RunSummary, number: int, name: str) -> str:
    """Return the content of a file in a generation's state, ``""`` if it does not exist."""
    store = RepositoryStore(Path(summary.run_dir) / "repository.git")
    return (store.read_file(summary.generations[number].commit, name) or b"").decode()


def metadata(summary: RunSummary, genid: str | int) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(
        (Path(summary.run_dir) / f"gen_{genid}" / "metadata.json").read_text()
    )
    return value


def test_a_run_with_meta_patches_starts_at_generation_0_and_can_be_resumed(
    run: Run, diffs: list[str]
) -> None:
    first = run(meta_patch_files=diffs, max_generation=0)
    assert [record.genid for record in first.generations] == [0]
    summary = resume_run(FakeRuntime(), plan_resume(first.run_dir, max_generation=2))
    root = Path(summary.run_dir)
    assert [(record.genid, record.parent) for record in summary.generations] == [
        (0, None),
        (1, 0),
        (2, 1),
    ]
    assert all(record.failure is None and record.valid_parent for record in summary.generations)
    assert load_run(root).state == "finished"
    assert CHANGES["task_agent.py"] in state(summary, 0, "task_agent.py")
    assert CHANGES["task_agent.py"] in state(summary, 2, "task_agent.py")
    assert CHANGES["meta_agent.py"] in state(summary, 2, "meta_agent.py")
    assert state(summary, 0, "notes.txt") == "learned\n"
    assert state(summary, 0, "hyperrun.toml") == ""
    copies = ["meta_patch_files/model_patch_0.diff", "meta_patch_files/model_patch_1.diff"]
    assert metadata(summary, 0)["prev_patch_files"] == copies
    assert metadata(summary, 0)["curr_patch_files"] == []
    assert metadata(summary, 2)["prev_patch_files"] == [
        *copies,
        "gen_1/agent_output/model_patch.diff",
    ]
    assert b"hyperrun.toml" not in (root / copies[0]).read_bytes()
    commit = json.loads((root / "run.json").read_text())["root_commit"]
    check_lineage(summary, commit)
    lines = (root / "generate_loop.log").read_text().splitlines()
    args = [line for line in lines if re.match(r"\S+ Args: domains=\('circle_packing',\), ", line)]
    assert [re.findall(r" max_generation=(\d+),", line) for line in args] == [["0"], ["2"]]
    assert all(line.endswith(f", root_commit={commit}") for line in args)
    assert (
        f"left out of {diffs[0]}: hyperrun.toml: hyperrun.toml is protected"
        in lines[1].partition(" ")[2]
    )


def check_lineage(summary: RunSummary, commit: str) -> None:
    """Check that the diffs of a lineage, applied to the root, give the state of generation 2."""
    root, known = Path(summary.run_dir), metadata(summary, 2)
    store = RepositoryStore(root / "repository.git")
    patches = [
        (root / name).read_bytes() for name in known["prev_patch_files"] + known["curr_patch_files"]
    ]
    assert store.replay(commit, patches) == store.tree(summary.generations[2].commit)


def test_a_run_that_resets_the_task_agent_starts_at_generation_initial(
    run: Run, diffs: list[str]
) -> None:
    summary = run(meta_patch_files=diffs, reset_task_agent=True, max_generation=1)
    assert [record.genid for record in summary.generations] == ["initial", 1]
    assert CHANGES["task_agent.py"] not in state(summary, 0, "task_agent.py")
    assert CHANGES["meta_agent.py"] in state(summary, 0, "meta_agent.py")
    assert (
        metadata(summary, "initial")["prev_patch_files"][1] == "meta_patch_files/model_patch_1.diff"
    )


def test_a_run_can_reset_the_meta_agent_and_keep_the_other_changes(
    run: Run, diffs: list[str]
) -> None:
    summary = run(meta_patch_files=diffs, reset_meta_agent=True, max_generation=0)
    assert CHANGES["task_agent.py"] in state(summary, 0, "task_agent.py")
    assert CHANGES["meta_agent.py"] not in state(summary, 0, "meta_agent.py")
    assert state(summary, 0, "notes.txt") == "learned\n"


def test_reset_paths_are_the_files_that_the_contract_names() -> None:
    contract = Contract(
        task_agent="agents.solver:Solver", load=("agents.solver:Solver", "meta_agent:MetaAgent")
    )
    both = GenerateOptions(
        domains="d", meta_patch_files=("x",), reset_task_agent=True, reset_meta_agent=True
    )
    assert reset_paths(both, contract) == ("task_agent.py", "agents/solver.py", "meta_agent.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "the text is not a diff"),
        ("--- a/none\n+++ b/none\n@@ -1 +1 @@\n-a\n+b\n", "does not apply"),
        ("--- a/../x\n+++ b/../x\n@@ -0,0 +1 @@\n+b\n", "tries to leave the repository"),
    ],
)
def test_an_invalid_meta_patch_is_rejected_before_the_run_directory_exists(
    run: Run, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "bad.diff").write_text(text)
    with pytest.raises(AgentError, match=said):
        run(meta_patch_files=[str(tmp_path / "bad.diff")])
    assert not (tmp_path / "out" / "generate_r").exists()


def test_the_initial_agent_may_be_a_plain_directory_and_its_env_file_is_left_out(
    run: Run, tmp_path: Path, agent: Path
) -> None:
    (agent / "extra.txt").write_text("mine\n")
    (agent / ".env").write_text("SECRET_OF_MINE=1\n")
    with pytest.raises(RepositoryError, match=r"extra\.txt"):
        run(copy_root_dir=str(agent), agent=None)
    plain = Path(shutil.copytree(agent, tmp_path / "plain", ignore=shutil.ignore_patterns(".git")))
    with pytest.raises(SpecError, match="remove one of the two options"):
        run(copy_root_dir=str(plain))
    summary = run(copy_root_dir=str(plain), agent=None, max_generation=1)
    assert [record.failure for record in summary.generations] == [None, None]
    assert state(summary, 1, "extra.txt") == "mine\n"
    assert state(summary, 0, ".env") == ""
