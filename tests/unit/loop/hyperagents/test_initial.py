"""Which files of a HyperAgents checkout become the first state of a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import AgentError
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.hyperagents.adapter import HyperAgentsContract
from hyperruntime.loop.hyperagents.domains import DOMAINS, repository_domain
from hyperruntime.loop.hyperagents.initial import add_labels, make_root, read_dataset
from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run_files.contract import detect_contract
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions

STANDIN = Path(__file__).parents[3] / "standin"
ENSEMBLE = {"ensemble.py", "utils/run_ensemble.py"}
SELECTION = {"select_next_parent.py", "utils/run_select_next_parent.py"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout that also holds all files that must be left out."""
    folder = tmp_path / "checkout"
    shutil.copytree(STANDIN, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        ".env", "deep/.env", ".git/config", ".claude/settings", "outputs/initial_x/report.json", "analysis/plot.py",
        "misc/notes", "Dockerfile", "deep/Dockerfile", "setup_initial.sh", "LICENSE.md", "venv_mine/bin", "deep/a.png",
        "deep/__pycache__/a.pyc", "outputs_os_1/x", "run_task_agent.py", "domains/balrog/env.py",
        "domains/paper_review/notes.txt", "domains/search_arena/saved/x", "deep/domains/kept.py", "deep/outputs/kept",
    ):  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def files(
    tmp_path: Path, agent: Path, domains: Sequence[str] = ("paper_review",), **options: Any
) -> tuple[RepositoryStore, str, set[str]]:
    """Make the root commit; return the store, the commit and its paths."""
    layout = Layout(tmp_path / "run")
    shutil.rmtree(layout.root, ignore_errors=True)
    layout.work.mkdir(parents=True)
    store = RepositoryStore(layout.repository)
    chosen = [DOMAINS[name] for name in domains]
    root = make_root(
        GenerateOptions(domains=tuple(domains), **options), chosen, layout, store, str(agent)
    )
    return store, root, {path.decode() for path in store.entries(root)}


def test_files_that_hyperagents_leaves_out_are_left_out(tmp_path: Path, checkout: Path) -> None:
    _, _, found = files(tmp_path, checkout)
    table = "domains/paper_review/dataset_filtered_100_{}.csv"
    assert found == {
        ".gitignore", "README.md", "agent/__init__.py", "agent/llm.py", "deep/domains/kept.py", "deep/outputs/kept",
        "domains/__init__.py", "domains/harness.py", "domains/paper_review/notes.txt", "domains/report.py",
        "keywords.txt", "meta_agent.py", "run_meta_agent.py", "task_agent.py", "utils/__init__.py", "utils/archive.py",
        "utils/git.py", *(table.format(split) for split in ("train", "val", "test")),
    }  # fmt: skip


def test_ensemble_and_selection_files_are_kept_only_if_they_evolve(
    tmp_path: Path, checkout: Path
) -> None:
    plain = files(tmp_path, checkout)[2]
    assert files(tmp_path, checkout, optimize_option="both_agent_ensemble")[2] - plain == ENSEMBLE
    assert files(tmp_path, checkout, edit_select_parent=True)[2] - plain == SELECTION
    copied = files(tmp_path, checkout, copy_root_dir=str(checkout), edit_select_parent=False)[2]
    assert copied - plain == SELECTION


def test_only_folders_of_the_chosen_domains_are_kept(tmp_path: Path, checkout: Path) -> None:
    (checkout / "domains/paper_review/dataset_filtered_100_test.csv").unlink()
    both = files(tmp_path, checkout, ("paper_review", "balrog_babyai"))[2]
    assert "domains/balrog/env.py" in both
    assert not any(path.startswith("domains/search_arena") for path in both)
    (checkout / "domains/search_arena/saved/y.csv").write_text("winner\nmodel_a\n")
    arena = {path for path in files(tmp_path, checkout, ("search_arena",))[2] if "arena" in path}
    assert arena == {
        f"domains/search_arena/dataset_filtered_100_{split}.csv"
        for split in ("train", "val", "test")
    }


def test_the_readme_names_the_files_that_may_be_improved(tmp_path: Path, checkout: Path) -> None:
    store, root, _ = files(
        tmp_path, checkout, optimize_option="both_agent_ensemble", edit_select_parent=True
    )
    text = (store.read_file(root, "README.md") or b"").decode()
    assert "paper_review" in text
    assert "ensemble.py" in text
    assert "select_next_parent.py" in text


@pytest.mark.parametrize("baseline", ["dgm", "dgm_custom+no_selfimprove"])
def test_the_coding_agent_of_a_baseline_replaces_the_meta_agent(
    tmp_path: Path, checkout: Path, baseline: str
) -> None:
    found = files(tmp_path, checkout, run_baseline=baseline)[2]
    assert "coding_agent.py" in found
    assert not found & {"meta_agent.py", "run_meta_agent.py"}


def test_labels_stay_on_the_host_and_can_be_restored(tmp_path: Path, checkout: Path) -> None:
    store, root, _ = files(tmp_path, checkout)
    layout = Layout(tmp_path / "run")
    for split in ("train", "val", "test"):
        name = f"domains/paper_review/dataset_filtered_100_{split}.csv"
        hidden, original = store.read_file(root, name) or b"", (checkout / name).read_bytes()
        assert read_dataset(layout, DOMAINS["paper_review"], split) == original
        assert hidden.count(b"\n") == original.count(b"\n")
        assert b",accept\n" in original
        assert b",accept\n" not in hidden
        assert b",reject\n" not in hidden
    store.export(root, tmp_path / "tree")
    add_labels(layout, tmp_path / "tree")
    table = "domains/paper_review/dataset_filtered_100_val.csv"
    assert (tmp_path / "tree" / table).read_bytes() == (checkout / table).read_bytes()


def test_other_tables_of_a_folder_also_lose_their_labels(tmp_path: Path, checkout: Path) -> None:
    (checkout / "domains/paper_review/all of them.csv").write_text("outcome,x\nsecret,1\n")
    store, root, _ = files(tmp_path, checkout)
    assert store.read_file(root, "domains/paper_review/all of them.csv") == b"outcome,x\n,1\n"


def test_a_table_with_rows_of_the_wrong_length_is_rejected(tmp_path: Path, checkout: Path) -> None:
    (checkout / "domains/paper_review/other.csv").write_text("id,outcome\n0,q,accept\n")
    with pytest.raises(AgentError, match=r"other\.csv: row 1 has 3 fields"):
        files(tmp_path, checkout)


def test_results_of_the_initial_agent_are_kept_only_with_a_finite_score(
    tmp_path: Path, checkout: Path
) -> None:
    for split, report in (
        ("train", {"overall_accuracy": 0.5}),
        ("val", {"overall_accuracy": float("nan")}),
    ):
        folder = checkout / "outputs" / f"initial_paper_review_filtered_100_{split}_0"
        folder.mkdir()
        (folder / "report.json").write_text(json.dumps(report))
    files(tmp_path, checkout)
    assert [path.name for path in (tmp_path / "run/reference/initial").iterdir()] == [
        "paper_review_eval"
    ]


def test_the_same_checkout_gives_the_same_commit(tmp_path: Path, checkout: Path) -> None:
    assert files(tmp_path, checkout)[1] == files(tmp_path, checkout)[1]


def test_the_contract_is_detected_from_files_or_from_hyperrun_toml(
    tmp_path: Path, checkout: Path
) -> None:
    assert detect_contract(str(checkout)) == "hyperagents"
    (checkout / "hyperrun.toml").write_text("[commands]\n")
    assert detect_contract(str(checkout)) == "default"
    (checkout / "hyperrun.toml").write_text("[generate]\nmax-generation = 3\n")
    assert detect_contract(str(checkout)) == "hyperagents"
    (checkout / "hyperrun.toml").write_text('contract = "hyperagents"\n')
    assert detect_contract(str(checkout)) == "hyperagents"
    (checkout / "hyperrun.toml").write_text('contract = "hyperagent"\n')
    with pytest.raises(AgentError, match="hyperagents"):
        detect_contract(str(checkout))
    assert detect_contract(str(tmp_path)) == detect_contract(None) == "default"


@pytest.mark.parametrize(
    ("domain", "archive", "said"),
    [
        ("balrog_babyai", ".", "cannot combine answers to balrog_babyai"),
        ("paper_review", "nowhere", "has no gen_<id>"),
        ("paper_review", "run", r"report\.json' is a link"),
    ],
)
def test_an_impossible_ensemble_is_rejected_by_check_agent(
    tmp_path: Path, domain: str, archive: str, said: str
) -> None:
    path = str(tmp_path / archive)
    (tmp_path / "run/gen_1/paper_review_eval").mkdir(parents=True)
    (tmp_path / "run/gen_1/paper_review_eval/report.json").symlink_to("/etc/passwd")
    options = GenerateOptions(
        domains=domain, agent=str(tmp_path), contract="hyperagents", optimize_option="only_ensemble",
        agent_archive_path=path,
    )  # fmt: skip
    with pytest.raises(AgentError, match=said):
        HyperAgentsContract().check_agent(options, (repository_domain(domain),))


def test_a_folder_without_the_files_of_a_checkout_is_refused(tmp_path: Path) -> None:
    options = GenerateOptions(domains="paper_review", agent=str(tmp_path), contract="hyperagents")
    with pytest.raises(AgentError, match="not a repository of the hyperagents contract"):
        plan_run(options)


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (None, {}, "no domains/paper_review/dataset_filtered_100_val.csv"),
        ("question_id,outcome\n", {}, "has no rows"),
        ("question_id,outcome\na,b,c\n", {}, "row 1 has 3 fields"),
        (
            "question_id,outcome\na,b\n",
            {"run_baseline": "dgm"},
            "has no baselines/dgm/coding_agent.py",
        ),
    ],
)
def test_datasets_and_baselines_are_checked_when_a_run_is_planned(
    tmp_path: Path, checkout: Path, data: str | None, options: dict[str, Any], said: str
) -> None:
    (checkout / ".env").write_text("OPENAI_API_KEY=sk-1\n")
    shutil.rmtree(checkout / "baselines", ignore_errors=True)
    table = checkout / "domains/paper_review/dataset_filtered_100_val.csv"
    table.unlink() if data is None else table.write_text(data)
    with pytest.raises(AgentError, match=said):
        plan_run(
            GenerateOptions(
                domains="paper_review",
                agent=str(checkout),
                output_dir_parent=str(tmp_path),
                **options,
            )
        )
