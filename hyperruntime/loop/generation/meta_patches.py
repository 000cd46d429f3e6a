"""Start a run with the diffs of an agent that another run has evolved.

The copies in ``meta_patch_files/`` contain exactly the applied changes. Applied to the root commit,
they give the state of the first generation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import AgentError, PatchError
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.run_files.contract import Contract
from hyperruntime.loop.run_files.layout import INITIAL, Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.workbench.copy_out import PATCH_LIMIT
from hyperruntime.storage.atomic import make_directory, write_atomic

FOLDER = "meta_patch_files"
_TASK_AGENT = "task_agent"
_META_AGENT = "meta_agent"


@attrs.frozen(kw_only=True)
class Start:
    """The first generation of a run.

    Attributes:
        genid: ``"initial"``, or 0 if diffs may change its answers.
        commit: its state.
        notes: one sentence for each omitted part of a diff.
    """

    genid: GenId
    commit: str
    notes: tuple[str, ...] = ()


def meta_patch_paths(options: GenerateOptions) -> list[str]:
    """Return the paths of the meta patches, relative to the run directory."""
    return [
        f"{FOLDER}/model_patch_{number}.diff" for number in range(len(options.meta_patch_files))
    ]


def read_meta_patches(options: GenerateOptions) -> tuple[bytes, ...]:
    """Return the meta patches of a run.

    Raises:
        AgentError: a diff cannot be read, or is too large.
    """
    patches = []
    for name in options.meta_patch_files:
        try:
            with open(name, "rb") as file:
                patches.append(file.read(PATCH_LIMIT + 1))
        except OSError as error:
            raise AgentError(
                f"--meta-patch-files: {name!r} cannot be read: {error.strerror}"
            ) from error
        if len(patches[-1]) > PATCH_LIMIT:
            raise AgentError(
                f"--meta-patch-files: {name!r} has more than {PATCH_LIMIT} bytes; give a "
                "smaller diff"
            )
    return tuple(patches)


def reset_paths(options: GenerateOptions, contract: Contract) -> tuple[str, ...]:
    """Return the files that the meta patches must not change."""
    paths = []
    if options.reset_task_agent:
        paths += [f"{_TASK_AGENT}.py", _file_of(contract.task_agent)]
    if options.reset_meta_agent:
        others = [name for name in contract.load if name != contract.task_agent]
        paths += [f"{_META_AGENT}.py", *map(_file_of, others)]
    return tuple(dict.fromkeys(paths))


def begin(
    store: RepositoryStore,
    root: str,
    options: GenerateOptions,
    layout: Layout,
    *,
    contract: Contract,
    protected: Sequence[str],
    fuzz: bool,
) -> Start:
    """Apply the meta patches to the root commit; return the first generation.

    Args:
        store: store of the run.
        root: commit of the initial agent.
        options: options of the run; they name the diffs.
        layout: paths of the run; copies of the diffs are written there.
        contract: names the files of the agents.
        protected: paths that no diff may change.
        fuzz: whether a diff may apply although the lines around a change differ a little.

    Raises:
        AgentError: a diff cannot be read, or does not apply.
        StorageError: a copy cannot be written.
    """
    commit = root
    notes = []
    rules = options.change_rules((*protected, *reset_paths(options, contract)))
    named = zip(
        options.meta_patch_files, read_meta_patches(options), meta_patch_paths(options), strict=True
    )
    for number, (name, patch, copy) in enumerate(named):
        try:
            snapshot = store.apply_patch(
                commit,
                patch,
                f"meta_{number}",
                rules,
                fuzz=fuzz,
            )
        except PatchError as error:
            raise AgentError(
                f"--meta-patch-files: {name!r}: {error}; give diffs made for this agent"
            ) from error
        notes += [f"left out of {name}: {path}: {reason}" for path, reason in snapshot.dropped]
        target = Path(layout.root / copy)
        make_directory(target.parent)
        write_atomic(target, snapshot.patch)
        commit = snapshot.commit
    return Start(genid=options.first_genid, commit=commit, notes=tuple(notes))


def stored_start(stored: Mapping[str, Any]) -> Start:
    """Return the first generation from ``run.json``; without an entry (older versions) it is the
    root commit.
    """
    start = stored.get("start", {})
    return Start(
        genid=start.get("genid", INITIAL), commit=start.get("commit", stored["root_commit"])
    )


def _file_of(name: str) -> str:
    """Return the path of the file of a ``module:Class``."""
    return name.partition(":")[0].replace(".", "/") + ".py"
