"""Export a generation as a git repository that can be run.

The repository has one commit per generation of the lineage, each with exactly that generation's
files. The export writes nothing to the run directory, so the run may be in progress.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import attrs

from hyperruntime.errors import ArchiveError, RepositoryError
from hyperruntime.git.bare_repository import object_format, write_text
from hyperruntime.git.command import git
from hyperruntime.git.foreign_files import RAW_ATTRIBUTES
from hyperruntime.git.store import BRANCH, RepositoryStore
from hyperruntime.git.work_files import write_files
from hyperruntime.loop.generation.meta_patches import stored_start
from hyperruntime.loop.run_files.archive import Archive, read_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.storage.atomic import make_directory, storage_errors

_EXCLUDE = "__pycache__/\n*.pyc\n*.pyo\n"


@attrs.frozen(kw_only=True)
class Export:
    """An exported generation.

    Attributes:
        path: path of the repository.
        commit: its last commit.
        lineage: ids of the generations that have a commit in it, the first one first.
    """

    path: str
    commit: str
    lineage: tuple[GenId, ...]


def find_generation(archive: Archive, genid: GenId) -> GenerationRecord:
    """Return a finished generation that has its own state.

    Args:
        archive: the finished generations.
        genid: id of the generation, or ``"best"`` for the one with the highest score.

    Raises:
        ArchiveError: the generation does not exist, or it failed before its state was stored.
    """
    record = archive.best() if genid == "best" else archive.get(genid)
    if record is None:
        known = [str(one.genid) for one in archive]
        shown = ", ".join([*known[:3], "...", known[-1]] if len(known) > 4 else known) or "none"
        raise ArchiveError(f"the run has no finished generation {genid!r}; it has: {shown}")
    parent = None if record.parent is None else archive.get(record.parent)
    if parent is not None and record.failure and record.commit == parent.commit:
        raise ArchiveError(
            f"generation {record.genid} has no state of its own, because it failed "
            f"({record.failure}); name another one, for example its parent {record.parent}"
        )
    return record


def export_generation(
    run_dir: str | os.PathLike[str], genid: GenId, target: str | os.PathLike[str]
) -> Export:
    """Write a generation's files and history to a directory; on an error nothing is written.

    Args:
        run_dir: the run directory.
        genid: id of the generation, or ``"best"`` for the one with the highest score.
        target: directory to write; must be missing or empty.

    Raises:
        ArchiveError: ``run_dir`` is not a run directory, or the generation does not exist or has no
            state.
        RepositoryError: ``target`` is not empty or a symbolic link, or a state is missing from the
            store.
        StorageError: a file cannot be written.
    """
    layout = Layout(Path(run_dir))
    _, stored = read_run(layout)
    archive = Archive.load(layout)
    store = RepositoryStore(layout.repository)
    records = _lineage(archive, find_generation(archive, genid))
    commits = [(store.tree(record.commit), _message(record), record.started) for record in records]
    if stored_start(stored).commit != stored["root_commit"]:
        commits.insert(
            0, (store.tree(stored["root_commit"]), "Initial agent, before the meta patches\n", "")
        )
    if os.path.islink(target):
        raise RepositoryError(f"{os.fspath(target)!r} is a symbolic link; name a new directory")
    where = Path(os.path.realpath(target))
    _refuse_full(where)
    make_directory(where.parent)
    with (
        storage_errors(where),
        tempfile.TemporaryDirectory(prefix=f".{where.name}.", dir=where.parent) as temporary,
    ):
        partial = os.path.join(temporary, "repository")
        commit = _write(store, partial, commits)
        _refuse_full(where)
        os.rename(partial, where)
    return Export(path=str(where), commit=commit, lineage=tuple(record.genid for record in records))


def _lineage(archive: Archive, record: GenerationRecord) -> list[GenerationRecord]:
    chain = [record]
    while (parent := chain[-1].parent) is not None:
        if parent not in archive:
            raise ArchiveError(
                f"generation {parent}, an ancestor of {record.genid}, is missing from the archive"
            )
        chain.append(archive[parent])
    return chain[::-1]


def _message(record: GenerationRecord) -> str:
    """Return a commit message: the generation, its score, its parent, the scores of its splits and
    its failure.
    """
    score = "no score" if record.score is None else f"score {record.score:.4f}"
    lines = [f"Generation {record.genid}: {score}", ""]
    lines += [f"Parent: {record.parent}"] if record.parent is not None else []
    for domain, splits in record.scores.items():
        lines += [f"{domain} {split}: {value:.4f}" for split, value in splits.items()]
    lines += [f"Failure: {record.failure}"] if record.failure else []
    return "\n".join(lines).rstrip() + "\n"


def _refuse_full(where: Path) -> None:
    with suppress(FileNotFoundError):
        if not where.is_dir() or os.listdir(where):
            what = "is not empty" if where.is_dir() else "exists and is not a directory"
            if os.path.lexists(where):
                raise RepositoryError(f"{str(where)!r} {what}; name a new directory")


def _write(store: RepositoryStore, path: str, commits: Sequence[tuple[str, str, str]]) -> str:
    """Make a repository from a list of ``(tree, message, date)``, oldest first; return the last
    commit.
    """
    git(
        [
            "init",
            "-q",
            "--template=",
            f"--initial-branch={BRANCH}",
            object_format(commits[-1][0]),
            "--",
            path,
        ]
    )
    inner = os.path.join(path, ".git")
    os.mkdir(os.path.join(inner, "info"))
    write_text(inner, "info/attributes", RAW_ATTRIBUTES)
    write_text(inner, "info/exclude", _EXCLUDE)
    trees = "".join(f"{tree}\n" for tree in dict.fromkeys(tree for tree, _, _ in commits))
    pack = os.path.join(inner, "objects", "pack", "pack")
    store.git("pack-objects", "-q", "--revs", "--threads=1", pack, input=trees.encode())
    commit = ""
    for tree, message, when in commits:
        dates = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when} if when else {}
        parent = ["-p", commit] if commit else []
        made = git(
            ["commit-tree", tree, *parent], env={"GIT_DIR": inner, **dates}, input=message.encode()
        )
        commit = made.decode().strip()
    write_text(inner, f"refs/heads/{BRANCH}", commit + "\n")
    write_files(commit, path, {"GIT_DIR": inner})
    return commit
