"""Make the root state of a run from a checkout that has the HyperAgents layout.

The run's repository gets the files that HyperAgents would copy, without the git history, ``.env``
and labels. The labels stay on the host, in ``reference/`` of the run directory, which is never
mounted in an agent's container.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from hyperruntime.errors import AgentError, RepositoryError
from hyperruntime.git.store import RepositoryStore
from hyperruntime.logs import get_logger
from hyperruntime.loop.evaluation.evaluator import evaluated_splits
from hyperruntime.loop.hyperagents.domains import DOMAINS, OriginalDomain
from hyperruntime.loop.hyperagents.labels import blank, parse_table
from hyperruntime.loop.run_files.contract import MARKS
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.storage.atomic import make_directory, storage_errors, write_file
from hyperruntime.storage.run_files import read_run_file

log = get_logger(__name__)

DGM_AGENT = "baselines/dgm/coding_agent.py"
_DOMAINS = "domains"
_LEFT_OUT_TOP = (".claude", "outputs", "analysis", "misc", "baselines", _DOMAINS)
_LEFT_OUT = (
    "Dockerfile", ".dockerignore", "setup_initial.sh", "LICENSE.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md",
    "venv*", ".venv*", "__pycache__*", "*.png", "outputs_os*", ".git", ".env", ".env.*",
)  # fmt: skip
_LEFT_OUT_OF_DOMAINS = (
    "search_arena/saved", "polyglot/polyglot_benchmark_metadata.json", "polyglot/polyglot-benchmark",
    "polyglot/predictions", "polyglot/SWE-bench", "polyglot/logs",
)  # fmt: skip
_INTRODUCTION = """\
# An agent that rewrites itself

This repository has a task agent (`task_agent.py`), which answers tasks, and an agent that edits the repository. Each
generation is a changed copy of an earlier one. It is kept with its scores, and later generations start from good ones.
You may change everything except `domains/`, which provides the tasks: changes to it are dropped.

The tasks: {domains}.
"""
_ENSEMBLE = """
## The ensemble

`ensemble.py` answers a task by combining the answers of all generations so far. It is scored like an agent, and you may
improve it like one.
"""
_SELECTION = """
## Parent selection

`select_next_parent.py` chooses the generation from which the next one is made. You may improve it too; if it fails, an
earlier version is used.
"""


def reference_folder(layout: Layout) -> Path:
    """Return the directory for files that no agent may see: tables with labels, and results of the
    initial agent.
    """
    return layout.root / "reference"


def check_checkout(agent: str, options: GenerateOptions, domains: Sequence[OriginalDomain]) -> str:
    """Return the directory of a checkout, after checks.

    Args:
        agent: the directory.
        options: options of the run.
        domains: domains of the run.

    Raises:
        AgentError: the directory does not have the HyperAgents layout, a table of a domain is
            missing or invalid, or a baseline's program is missing.
    """
    missing = [mark for mark in MARKS if not os.path.isfile(os.path.join(agent, mark))]
    if missing:
        raise AgentError(
            f"{agent!r} is not a repository of the hyperagents contract: {missing[0]} is missing; "
            "give the checkout with --agent, or remove the contract from its hyperrun.toml"
        )
    _check_datasets(options, domains, Path(agent, _DOMAINS))
    if _is_dgm(options) and not os.path.isfile(os.path.join(agent, DGM_AGENT)):
        raise AgentError(
            f"{agent!r} has no {DGM_AGENT}, which the baseline requires; remove --run-baseline"
        )
    return agent


def _is_dgm(options: GenerateOptions) -> bool:
    return (options.run_baseline or "").startswith("dgm") and options.copy_root_dir is None


def make_root(
    options: GenerateOptions,
    domains: Sequence[OriginalDomain],
    layout: Layout,
    store: RepositoryStore,
    agent: str,
) -> str:
    """Commit the root state of a run and return the commit.

    Args:
        options: options of the run.
        domains: domains of the run.
        layout: paths of the run.
        store: receives the commit.
        agent: directory of the checkout.

    Raises:
        AgentError: a table is invalid.
        RepositoryError: a file cannot be read, or a repository cannot store it.
        StorageError: a file cannot be written.
    """
    staging = make_directory(layout.work / "checkout")
    top = Path(options.copy_root_dir or agent)
    _copy(top, staging, _rest_filter(top, options, domains))
    _copy(
        Path(agent) / _DOMAINS, staging / _DOMAINS, _domains_filter(Path(agent) / _DOMAINS, domains)
    )
    hide_labels(staging / _DOMAINS, reference_folder(layout) / _DOMAINS, domains)
    readme = _INTRODUCTION.format(domains=", ".join(domain.name for domain in domains))
    readme += _ENSEMBLE if "ensemble" in options.optimize_option else ""
    readme += _SELECTION if options.edit_select_parent else ""
    write_file(staging / "README.md", readme.encode())
    if _is_dgm(options):
        _use_coding_agent(Path(agent), staging)
    _keep_initial_results(Path(agent), reference_folder(layout), domains)
    root = store.from_directory(staging)
    shutil.rmtree(staging, ignore_errors=True)
    return root


def add_labels(layout: Layout, tree: Path) -> None:
    """Put the tables with labels into ``tree``, a copy of the root state that only the repository's
    report uses.
    """
    source = reference_folder(layout) / _DOMAINS
    if source.is_dir():
        with storage_errors(tree):
            shutil.copytree(source, tree / _DOMAINS, dirs_exist_ok=True)


def read_dataset(layout: Layout, domain: OriginalDomain, split: str) -> bytes:
    """Return the table of a split, with labels.

    Args:
        layout: paths of the run.
        domain: the domain.
        split: name of the split.

    Raises:
        AgentError: the table cannot be read.
    """
    path = reference_folder(layout) / _DOMAINS / domain.dataset(split)
    try:
        return read_run_file(path, below=layout.root)
    except OSError as error:
        raise AgentError(f"{str(path)!r} cannot be read: {error.strerror}") from error


Ignore = Callable[[str, list[str]], set[str]]


def _rest_filter(top: Path, options: GenerateOptions, domains: Sequence[OriginalDomain]) -> Ignore:
    """Return the filter for all files outside ``domains/``."""
    patterns = list(_LEFT_OUT)
    if all(domain.name != "polyglot" for domain in domains):
        patterns.append("run_task_agent.py")
    copied = options.copy_root_dir is not None
    if "ensemble" not in options.optimize_option or not (
        copied or any(domain.ensemblable for domain in domains)
    ):
        patterns.append("*ensemble*")
    if not options.edit_select_parent and not copied:
        patterns.append("*select_next_parent*")

    def ignore(folder: str, found: list[str]) -> set[str]:
        left_out = {name for pattern in patterns for name in fnmatch.filter(found, pattern)}
        return left_out | (set(_LEFT_OUT_TOP) & set(found) if Path(folder) == top else set())

    return ignore


def _domains_filter(top: Path, domains: Sequence[OriginalDomain]) -> Ignore:
    """Return the filter for ``domains/``; it removes, for example, folders of domains that the run
    does not use.
    """

    def ignore(folder: str, found: list[str]) -> set[str]:
        below = Path(folder).relative_to(top)
        left_out = {name for pattern in _LEFT_OUT for name in fnmatch.filter(found, pattern)}
        left_out |= {name for name in found if (below / name).as_posix() in _LEFT_OUT_OF_DOMAINS}
        if Path(folder) == top:
            folders = (name for name in found if (top / name).is_dir())
            left_out |= {
                name for name in folders if not any(name in domain.name for domain in domains)
            }
        return left_out

    return ignore


def _copy(source: Path, target: Path, ignore: Ignore) -> None:
    """Copy a tree of the user and follow links, as HyperAgents does."""
    try:
        shutil.copytree(
            source, target, ignore=ignore, dirs_exist_ok=True, ignore_dangling_symlinks=True
        )
    except (OSError, shutil.Error) as error:
        raise RepositoryError(f"cannot copy {str(source)!r}: {error}") from error


def _table_of(path: Path, folder: Path) -> bytes:
    try:
        return read_run_file(path, below=folder.parent)
    except OSError as error:
        raise AgentError(
            f"table {str(path)!r} cannot be read: {error.strerror}; the agent cannot be used"
        ) from error


def hide_labels(folder: Path, reference: Path, domains: Sequence[OriginalDomain]) -> None:
    """Empty the label columns of all tables of the run's domains, and keep the original tables on
    the host.

    Args:
        folder: the ``domains/`` directory of the new state; its tables are changed.
        reference: directory for the original tables.
        domains: domains of the run.

    Raises:
        AgentError: a table is invalid.
        StorageError: a table cannot be written.
    """
    for name in sorted({domain.folder for domain in domains}):
        for path in sorted((folder / name).rglob("*.csv")):
            data = _table_of(path, folder)
            shown = blank(
                data, _label_columns(name, path.name), str(path.relative_to(folder.parent))
            )
            write_file(reference / path.relative_to(folder), data)
            if shown != data:
                write_file(path, shown)


def _check_datasets(
    options: GenerateOptions, domains: Sequence[OriginalDomain], folder: Path
) -> None:
    for domain in domains:
        for split in evaluated_splits(domain, test=options.eval_test):
            if not (path := domain.dataset(split.name)):
                continue
            if not (folder / path).is_file():
                raise AgentError(
                    f"the checkout has no domains/{path}, which {domain.name} requires; create "
                    "the dataset first"
                )
            if not parse_table((folder / path).read_bytes(), f"domains/{path}").rows:
                raise AgentError(
                    f"domains/{path} of the checkout has no rows; create the dataset first"
                )


def _label_columns(folder: str, name: str) -> list[str]:
    """Return the label columns of a table: those of the table's domains, else those of all domains
    in the folder.
    """
    there = [domain for domain in DOMAINS.values() if domain.folder == folder and domain.datasets]
    its = [domain for domain in there if fnmatch.fnmatch(name, domain.datasets.format("*"))]
    return [column for domain in its or there for column in domain.label_columns]


def _use_coding_agent(agent: Path, staging: Path) -> None:
    """Replace the meta agent with the baseline's program."""
    write_file(staging / "coding_agent.py", (agent / DGM_AGENT).read_bytes())
    for name in ("meta_agent.py", "run_meta_agent.py"):
        (staging / name).unlink(missing_ok=True)


def _keep_initial_results(agent: Path, reference: Path, domains: Sequence[OriginalDomain]) -> None:
    """Copy the checkout's results of the initial agent, so that the run can reuse them."""
    for domain in domains:
        for split in (split.name for split in domain.splits):
            source = agent / "outputs" / domain.initial_outputs(split)
            if domain.read_score(source) is not None:
                _copy(source, reference / "initial" / domain.evaluation(split), lambda _, __: set())
