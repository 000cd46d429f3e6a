"""Every command of the hyperagents contract, argument by argument."""

from __future__ import annotations

import pytest

from hyperruntime.loop.hyperagents import commands
from hyperruntime.loop.hyperagents.domains import DOMAINS
from hyperruntime.loop.run_files.contract import repository_contract

PAPER = DOMAINS["paper_review"]
GOLDEN = {
    "meta agent": (
        commands.meta_agent(repository_contract("a"), "abc", 4),
        "python run_meta_agent.py --chat_history_file "
        "/tmp/agent_output/meta_agent_chat_history.md --repo_path /hyperagents/ --evals_folder "
        "/tmp/generate_a --git_dir /hyperagents --base_commit abc --outdir /tmp/agent_output "
        "--iterations_left 4",
    ),
    "coding agent": (
        commands.coding_agent(problem_statement="Solve", base_commit="abc"),
        "python coding_agent.py --problem_statement Solve --chat_history_file "
        "/tmp/agent_output/meta_agent_chat_history.md --git_dir /hyperagents --base_commit abc "
        "--outdir /tmp/agent_output",
    ),
    "harness": (
        commands.harness(PAPER, "train", samples=10, workers=10),
        "python -m domains.harness --agent_path ./task_agent.py --output_dir /tmp/ --run_id "
        "paper_review_eval --domain paper_review --num_samples 10 --num_workers 10 --subset "
        "_filtered_100_train",
    ),
    "harness of another split": (
        commands.harness(PAPER, "val", samples=-1, workers=3),
        "python -m domains.harness --agent_path ./task_agent.py --output_dir /tmp/ --run_id "
        "paper_review_eval_val --domain paper_review --num_samples -1 --num_workers 3 --subset "
        "_filtered_100_val",
    ),
    "harness without subsets": (
        commands.harness(DOMAINS["balrog_babyai"], "train", samples=1, workers=5),
        "python -m domains.harness --agent_path ./task_agent.py --output_dir /tmp/ --run_id "
        "balrog_babyai_eval --domain balrog_babyai --num_samples 1 --num_workers 5 --subset ",
    ),
    "report": (
        commands.report(PAPER, "test"),
        "python -m domains.report --domain paper_review --dname /tmp/paper_review_eval_test",
    ),
    "selection": (
        commands.select_next_parent(["paper_review", "balrog_nle"], "/tmp/generate_a"),
        "python -m utils.run_select_next_parent --domains paper_review balrog_nle "
        "--generate_output_dir /tmp/generate_a",
    ),
    "ensemble": (
        commands.ensemble(PAPER, "val", folder="/tmp/generate_a", samples=-1),
        "python -m utils.run_ensemble --domain paper_review --generate_output_dir "
        "/tmp/generate_a --num_samples -1 --max_workers 5 --subset _filtered_100_val",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_command_equals_the_original_command(name: str) -> None:
    args, line = GOLDEN[name]
    assert args == line.split(" ")


def test_load_checks_depend_on_the_baseline_and_on_evolved_selection() -> None:
    def lines(**kwargs: bool) -> list[str]:
        return [args[-1] for args in commands.load_checks(**kwargs)]

    task = "from task_agent import TaskAgent"
    meta, coder = "from meta_agent import MetaAgent", "from coding_agent import CodingAgent"
    select = "from select_next_parent import select_next_parent"
    assert lines(dgm=False, select_parent=False) == [meta, task]
    assert lines(dgm=True, select_parent=False) == [coder, task]
    assert lines(dgm=False, select_parent=True) == [meta, task, select]
