"""A run as nodes know it: what they are sent of it, and its directory on a file system that shows
a change to other machines late, as NFS may do for a minute.

A name that was chosen for one attempt is never written by another one, so no lock is needed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.cluster.job_directory import SEEN_S
from hyperruntime.errors import ClusterError, HyperRuntimeError, RepositoryError
from hyperruntime.host.process import wait_until
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.loop.generation.adapter import RunContext
from hyperruntime.loop.run.plan import absolute_references, contract_adapter, load_domains
from hyperruntime.loop.run_files.contract import Contract
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import structured
from hyperruntime.loop.workbench.container import GenerationPlan
from hyperruntime.option_fields import from_json, to_json
from hyperruntime.runs.lock import is_abandoned, read_lease
from hyperruntime.storage.atomic import finish_directory, storage_errors

POLL_S = 0.05
# names that a head chose
_ATTEMPT = re.compile(r"gen_\w+\.[0-9a-f]{32}|\.gen_\w+\.[0-9a-f]{32}\.partial")


def run_to_json(context: RunContext) -> dict[str, Any]:
    """Return what another machine must know of a run, as JSON."""
    options = context.options
    return {
        "run_dir": str(context.layout.root),
        "options": to_json(attrs.evolve(options, domains=absolute_references(options.domains))),
        "contract": attrs.asdict(context.contract),
        "root": context.root,
        "first": context.first,
        "image": context.image,
    }


def run_from_json(value: Mapping[str, Any]) -> partial[RunContext]:
    """Return the context of work on this machine, without ``layout``, ``store``, ``image``,
    ``containers``, ``events`` and ``models``, which are this machine's.

    Args:
        value: the JSON object of :func:`run_to_json`.

    Raises:
        HyperRuntimeError: the value is invalid, or a domain of the run is not installed here.
    """
    try:
        options = from_json(GenerateOptions, value["options"], strict=False)
        contract = structured(Contract, value["contract"])
    except (KeyError, TypeError, ValueError) as error:
        raise HyperRuntimeError(
            f"the received run cannot be read: {error!r}; use one version of hyperruntime "
            "on all machines"
        ) from error
    adapter = contract_adapter(options.contract)
    return partial(
        RunContext,
        options=options,
        contract=contract,
        adapter=adapter,
        root=value["root"],
        first=value["first"],
        domains=load_domains(options.domains, adapter, code=True),  # the sender has checked them
    )


def wait_for_state(context: RunContext, plan: GenerationPlan, shown: int = 0) -> None:
    """Wait until this machine sees the inputs of a generation: its state, its parent, and the view.

    Args:
        context: context of the run here.
        plan: plan of the generation.
        shown: number of entries of the view.

    Raises:
        ClusterError: they are not seen within 90 s.
        RunInterruptedError: the run is being interrupted.
    """
    layout = context.layout
    _wait(context, f"the state {plan.commit}", lambda: _has(context, plan.commit))
    _wait(context, f"the view of {shown} generations", lambda: _entries(layout.view) >= shown)
    if plan.parent is not None:
        _wait(context, f"generation {plan.parent}", layout.generation(plan.parent).is_dir)


def move_into_run(layout: Layout, genid: GenId, name: str) -> dict[str, int]:
    """Move the files of a complete generation into the run's ``work`` directory, under a name of
    its own.

    Args:
        layout: paths of the run; ``work`` is a local directory.
        genid: the generation.
        name: chosen by the head for this attempt.

    Returns:
        What :func:`tree_of` finds there.

    Raises:
        StorageError: a file cannot be written.
    """
    source = layout.partial(genid)
    target = Layout(layout.root).work / os.path.basename(name)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with storage_errors(partial):
            shutil.copytree(source, partial, symlinks=True)
        found = tree_of(partial)
        finish_directory(partial, target)
    finally:
        remove_tree(partial)
    return found


def take_from_node(layout: Layout, genid: GenId, name: str, tree: object) -> None:
    """Wait until this machine sees all files that a node moved into the run; make them the
    generation in progress.

    Args:
        layout: paths of the run.
        genid: the generation.
        name: the name that was chosen for this attempt.
        tree: what the node found there.

    Raises:
        ClusterError: they are not seen within 90 s.
        StorageError: the directory cannot be renamed.
    """
    source = layout.work / name
    target = layout.partial(genid)
    if not wait_until(lambda: _tree_or_none(source) == tree, SEEN_S, POLL_S):
        raise ClusterError(
            f"the files of generation {genid} are not seen at {str(source)!r} within {SEEN_S:g} "
            "s; put runs where all nodes see them"
        )
    remove_tree(target)
    with storage_errors(target):
        os.rename(source, target)


def remove_unfinished(layout: Layout) -> None:
    """Remove what lost nodes have moved into the run, complete or not; call it when no node works
    on the run.

    Nothing is removed while a live process owns the run, because its nodes may still work on it.
    """
    if read_lease(layout.root) is not None and not is_abandoned(layout.root):
        return
    for path in layout.work.glob("*"):
        if _ATTEMPT.fullmatch(path.name):
            remove_tree(path)


def tree_of(folder: Path) -> dict[str, int]:
    """Return how many files and directories are below a directory, and the bytes of the files."""
    names = 0
    size = 0
    for place, folders, files in os.walk(folder, onerror=_fail):
        names += len(folders) + len(files)
        size += sum(os.lstat(os.path.join(place, file)).st_size for file in files)
    return {"names": names, "bytes": size}


def _tree_or_none(folder: Path) -> dict[str, int] | None:
    with suppress(OSError):
        return tree_of(folder)
    return None


def _fail(error: OSError) -> None:
    raise error


def _wait(context: RunContext, what: str, is_seen: Callable[[], bool]) -> None:
    root = str(context.layout.root)

    def is_over() -> bool:
        context.containers.check_running()
        return is_seen()

    if not wait_until(is_over, SEEN_S, POLL_S):
        raise ClusterError(
            f"{what} of run {root!r} is not seen on this node within {SEEN_S:g} s; put runs "
            "where all nodes see them"
        )


def _has(context: RunContext, commit: str) -> bool:
    try:
        context.store.tree(commit)
    except RepositoryError:
        return False
    return True


def _entries(folder: Path) -> int:
    with suppress(OSError):
        return len(os.listdir(folder))
    return -1
