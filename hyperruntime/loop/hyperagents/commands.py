"""The commands of a repository of the HyperAgents layout, as argv lists; pure.

Each is what the repository's own loop would run, but for ``timeout N`` before it: deadlines are kept by whoever runs
them, who ends everything that a command started and not its first process alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyperruntime.loop.hyperagents.domains import OriginalDomain

REPO = "/hyperagents"
TMP, AGENT_OUTPUT, AGENT_ARCHIVE = "/tmp", "/tmp/agent_output", "/tmp/agent_archive"  # noqa: S108 - inside a container
CHAT_HISTORY = f"{AGENT_OUTPUT}/meta_agent_chat_history.md"
ENV = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # litellm fetches its prices when imported, where it is not told
OPEN_MODE = 0o1777  # of what becomes /tmp
ENSEMBLE_WORKERS = 5
_PYTHON = 'exec "$(command -v python || command -v python3)" "$@"'


def with_python(args: Sequence[str]) -> list[str]:
    """Return a command of ``python`` so that it also runs where only ``python3`` is installed."""
    assert args[0] == "python"
    return ["/bin/sh", "-c", _PYTHON, *args]


def meta_agent(*, evals_folder: str, base_commit: str, iterations_left: int) -> list[str]:
    """Return the argv that edits the repository."""
    return [
        *("python", "run_meta_agent.py"),
        *("--chat_history_file", CHAT_HISTORY),
        *("--repo_path", f"{REPO}/"),
        *("--evals_folder", evals_folder),
        *("--git_dir", REPO),
        *("--base_commit", base_commit),
        *("--outdir", AGENT_OUTPUT),
        *("--iterations_left", str(iterations_left)),
    ]


def coding_agent(*, problem_statement: str, base_commit: str) -> list[str]:
    """Return the argv that edits the repository to solve a stated problem: the baselines called dgm."""
    return [
        *("python", "coding_agent.py"),
        *("--problem_statement", problem_statement),
        *("--chat_history_file", CHAT_HISTORY),
        *("--git_dir", REPO),
        *("--base_commit", base_commit),
        *("--outdir", AGENT_OUTPUT),
    ]


def load_checks(*, dgm: bool, select_parent: bool) -> list[list[str]]:
    """Return the commands that must each end well after an edit."""
    editor = "from coding_agent import CodingAgent" if dgm else "from meta_agent import MetaAgent"
    lines = [editor, "from task_agent import TaskAgent"]
    if select_parent:
        lines.append("from select_next_parent import select_next_parent")
    return [["python", "-c", line] for line in lines]


def harness(domain: OriginalDomain, split: str, *, samples: int, workers: int) -> list[str]:
    """Return the argv that answers the tasks of a split; ``samples`` -1 is all."""
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
    """Return the argv that judges the answers to a split."""
    return [
        *("python", "-m", "domains.report"),
        *("--domain", domain.name),
        *("--dname", f"{TMP}/{domain.evaluation(split)}"),
    ]


def select_next_parent(domains: Sequence[str], folder: str) -> list[str]:
    """Return the argv whose last line of output names the next parent."""
    return [
        *("python", "-m", "utils.run_select_next_parent"),
        *("--domains", *domains),
        *("--generate_output_dir", folder),
    ]


def ensemble(domain: OriginalDomain, split: str, *, folder: str, samples: int) -> list[str]:
    """Return the argv that answers the tasks of a split with what all generations said."""
    return [
        *("python", "-m", "utils.run_ensemble"),
        *("--domain", domain.name),
        *("--generate_output_dir", folder),
        *("--num_samples", str(samples)),
        *("--max_workers", str(ENSEMBLE_WORKERS)),
        *("--subset", split),
    ]
