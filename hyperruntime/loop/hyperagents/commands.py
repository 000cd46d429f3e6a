"""The commands of a repository that has the HyperAgents layout, as argv lists; pure functions.

The commands are those of HyperAgents' own loop without ``timeout N``: the caller enforces the time
limit and ends the whole process tree, not only the first process.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyperruntime.loop.generation.default_adapter import meta_agent_options
from hyperruntime.loop.hyperagents.domains import OriginalDomain
from hyperruntime.loop.run_files.contract import Contract

REPO = "/hyperagents"
TMP = "/tmp"  # noqa: S108 - inside a container
AGENT_OUTPUT = "/tmp/agent_output"  # noqa: S108 - inside a container
CHAT_HISTORY = f"{AGENT_OUTPUT}/meta_agent_chat_history.md"
# otherwise litellm downloads its prices when imported
ENV = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
OPEN_MODE = 0o1777  # mode of /tmp
ENSEMBLE_WORKERS = 5
_PYTHON = 'exec "$(command -v python || command -v python3)" "$@"'


def with_python(args: Sequence[str]) -> list[str]:
    """Return a ``python`` command in a form that also runs where only ``python3`` is installed."""
    assert args[0] == "python"
    return ["/bin/sh", "-c", _PYTHON, *args]


def meta_agent(contract: Contract, base_commit: str, iterations_left: int) -> list[str]:
    """Return the argv of the meta agent, which edits the repository.

    Args:
        contract: names the directories in the container.
        base_commit: commit of the state that the meta agent edits.
        iterations_left: number of generations after this one.
    """
    options = meta_agent_options(contract, f"{contract.repo}/", base_commit, iterations_left)
    return ["python", "run_meta_agent.py", *options]


def coding_agent(*, problem_statement: str, base_commit: str) -> list[str]:
    """Return the argv of the coding agent of the dgm baselines, which edits the repository to solve
    a problem.

    Args:
        problem_statement: text of the problem.
        base_commit: commit of the state that the coding agent edits.
    """
    return [
        *("python", "coding_agent.py"),
        *("--problem_statement", problem_statement),
        *("--chat_history_file", CHAT_HISTORY),
        *("--git_dir", REPO),
        *("--base_commit", base_commit),
        *("--outdir", AGENT_OUTPUT),
    ]


def load_checks(*, dgm: bool, select_parent: bool) -> list[list[str]]:
    """Return the commands that must all exit with code 0 after an edit.

    Args:
        dgm: whether the coding agent of the dgm baselines is used.
        select_parent: whether the agents choose parents.
    """
    editor = "from coding_agent import CodingAgent" if dgm else "from meta_agent import MetaAgent"
    lines = [editor, "from task_agent import TaskAgent"]
    if select_parent:
        lines.append("from select_next_parent import select_next_parent")
    return [["python", "-c", line] for line in lines]


def harness(domain: OriginalDomain, split: str, *, samples: int, workers: int) -> list[str]:
    """Return the argv that answers the tasks of a split.

    Args:
        domain: the domain.
        split: name of the split.
        samples: number of tasks; -1 for all.
        workers: number of tasks that run at once.
    """
    return [
        *("python", "-m", "domains.harness"),
        *("--agent_path", "./task_agent.py"),
        *("--output_dir", f"{TMP}/"),
        *("--run_id", domain.evaluation(split)),
        *("--domain", domain.name),
        *("--num_samples", str(samples)),
        *("--num_workers", str(workers)),
        *("--subset", domain.subsets[split]),
    ]


def report(domain: OriginalDomain, split: str) -> list[str]:
    """Return the argv of the report, which scores the answers to a split."""
    return [
        *("python", "-m", "domains.report"),
        *("--domain", domain.name),
        *("--dname", f"{TMP}/{domain.evaluation(split)}"),
    ]


def select_next_parent(domains: Sequence[str], folder: str) -> list[str]:
    """Return the argv of the parent selection; its last output line names the parent.

    Args:
        domains: names of the domains.
        folder: directory in the container that shows all generations.
    """
    return [
        *("python", "-m", "utils.run_select_next_parent"),
        *("--domains", *domains),
        *("--generate_output_dir", folder),
    ]


def ensemble(domain: OriginalDomain, split: str, *, folder: str, samples: int) -> list[str]:
    """Return the argv of the ensemble, which answers the tasks of a split from the answers of all
    generations.

    The program opens the table with this subset; the names of its output files have the split.

    Args:
        domain: the domain.
        split: name of the split.
        folder: directory in the container with the answers.
        samples: number of tasks; -1 for all.
    """
    return [
        *("python", "-m", "utils.run_ensemble"),
        *("--domain", domain.name),
        *("--generate_output_dir", folder),
        *("--num_samples", str(samples)),
        *("--max_workers", str(ENSEMBLE_WORKERS)),
        *("--subset", domain.subsets[split]),
    ]
