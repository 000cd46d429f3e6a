"""Import a run that HyperAgents wrote, in its own directory.

hyperruntime's files are added beside those of HyperAgents; links and unfinished generations move to
``left_over``. The state of each generation is rebuilt from the root commit and the diffs of its
lineage. Containers could write to the work tree, so only git objects of its history are read, with
a separate repository: nothing that an agent put into its ``.git`` is executed. ``run.json`` is
written last; without it the import starts again from the beginning.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import attrs

from hyperruntime.errors import ArchiveError, PatchError, ReclaimError, RepositoryError
from hyperruntime.git.change_rules import ChangeRules
from hyperruntime.git.store import RepositoryStore
from hyperruntime.logs import get_logger
from hyperruntime.loop.evaluation.evaluator import mean_score, selected_split
from hyperruntime.loop.generation.publish import stores_lineage_patch
from hyperruntime.loop.hyperagents.domains import repository_domain
from hyperruntime.loop.hyperagents.initial import hide_labels, reference_folder
from hyperruntime.loop.hyperagents.original import (
    REPOSITORY,
    finished_ids,
    is_original,
    links_below,
    original_options,
    patch_of,
    read_generation,
    root_candidates,
)
from hyperruntime.loop.run_files.archive import Archive, write_run
from hyperruntime.loop.run_files.contract import repository_contract
from hyperruntime.loop.run_files.layout import (
    LEFT_OVER,
    LINEAGE,
    METADATA,
    Layout,
    parse_genid,
    read_json,
)
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import GenerationMark, GenerationRecord, parent_problem
from hyperruntime.loop.workbench.container import protected_paths
from hyperruntime.reclaim.trees import reclaim_trees
from hyperruntime.runs.lock import RunLock
from hyperruntime.storage.atomic import (
    make_directory,
    make_private_directory,
    storage_errors,
    write_file,
)
from hyperruntime.storage.run_files import (
    is_run_directory,
    is_run_file,
    make_run_directory,
    read_run_file,
)

log = get_logger(__name__)

_AUTHOR = b"you@example.com"
_STRIP_S = 600.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def import_run(run_dir: str | os.PathLike[str]) -> bool:
    """Import a run of HyperAgents; return False if the directory is not such a run or was imported
    before.

    Raises:
        ArchiveError: the archive, the options or the root commit cannot be read.
        RunLockedError: another process owns the run.
        SpecError: a domain of the run cannot be evaluated by hyperruntime.
        StorageError: a file cannot be written.
    """
    layout = Layout(Path(run_dir).absolute())
    if not is_original(layout):
        return False
    layout.without_links(generations=False)  # links in generations are moved away
    with RunLock(layout.root):
        if is_original(layout):
            _Import(layout).run()
    return True


class _Import:
    """One import."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._ids = finished_ids(layout)
        self._options = original_options(layout, self._ids)
        self._domains = [repository_domain(name) for name in self._options.domains]
        self._protected = protected_paths(self._domains)
        self._store = RepositoryStore(layout.repository)
        self._archive = Archive(layout)
        self._commits: dict[GenId, str] = {}

    def run(self) -> None:
        """Run all steps of the import."""
        self._remove_earlier_attempt()
        _move_left_overs(self._layout, set(self._ids))
        _move_links(self._layout, self._ids)
        _strip_special_bits(self._layout)
        root = self._make_root()
        start = self._apply_meta_patches(root)
        self._archive.expect(self._ids)
        only_ensemble = self._options.optimize_option == "only_ensemble"
        for genid in self._ids:
            found = read_generation(self._layout, genid, self._domains, only_ensemble=only_ensemble)
            self._check_parent(found)
            self._take(found, start)
        facts = {
            "root_commit": root,
            "start": {"genid": self._ids[0], "commit": start},
            "agent": REPOSITORY,
            "imported": True,
            "gateway": False,
            "contract": attrs.asdict(repository_contract(str(self._options.run_id))),
        }
        write_run(self._layout, self._options, facts, mark=False)  # anybody may have made this run
        log.info("run imported", run=str(self._layout.root), generations=len(self._ids))

    def _remove_earlier_attempt(self) -> None:
        """Remove the files of a killed import; HyperAgents wrote none of them."""
        layout = self._layout
        self._layout.journal.unlink(missing_ok=True)
        for folder in (layout.repository, layout.work, layout.view, reference_folder(layout)):
            shutil.rmtree(folder, ignore_errors=True)
        make_directory(layout.view)
        make_private_directory(layout.work)

    def _make_root(self) -> str:
        """Put the root state into the store, without labels and ``.env`` files."""
        staging = make_directory(self._layout.work / "checkout")
        with storage_errors(staging):
            _check_out_root(self._layout, staging)
            for name in staging.rglob(".env*"):
                name.unlink()
        hide_labels(staging / "domains", reference_folder(self._layout) / "domains", self._domains)
        root = self._store.from_directory(staging)
        shutil.rmtree(staging, ignore_errors=True)
        return root

    def _apply_meta_patches(self, root: str) -> str:
        commit = root
        for number, name in enumerate(self._options.meta_patch_paths):
            path = self._layout.root / name
            try:
                patch = read_run_file(path, below=self._layout.root)
                commit = self._apply(commit, patch, f"meta_{number}")
            except (OSError, PatchError) as error:
                raise ArchiveError(
                    f"meta patch {str(path)!r} cannot be applied: {error}"
                ) from error
        return commit

    def _check_parent(self, found: GenerationRecord) -> None:
        if problem := parent_problem(found, self._archive):
            name = str(self._layout.generation(found.genid))
            raise ArchiveError(f"{name!r} cannot be imported: {problem}; correct its {METADATA}")

    def _take(self, found: GenerationRecord, start: str) -> None:
        """Add a generation to the journal; its state is its parent's state with its diff
        applied.
        """
        parent = start if found.parent is None else self._commits.get(found.parent, start)
        commit = parent
        detail = ""
        failure = found.failure
        if found.parent is not None and failure is None:
            try:
                commit = self._apply(parent, patch_of(self._layout, found.genid), found.genid)
            except PatchError as error:
                failure = "refused-patch"
                detail = f"its diff does not apply to its parent's state: {error}"
        self._commits[found.genid] = commit
        score = mean_score(
            [found.scores.get(one.name, {}).get(selected_split(one)) for one in self._domains]
        )
        record = attrs.evolve(
            found,
            score=score if failure is None else None,
            valid_parent=found.valid_parent and failure is None and score is not None,
            failure=failure,
            detail=detail,
            commit=commit,
            archived=len(self._archive),
        )
        if failure is None and stores_lineage_patch(self._archive, record):
            patch = self._store.patch_between(start, commit)
            write_file(self._layout.generation(found.genid) / LINEAGE, patch)
        self._archive.add(record)
        metadata = read_json(self._layout.generation(found.genid) / METADATA, self._layout.root)
        if metadata.get("can_select_next_parent") is False:
            self._archive.mark(GenerationMark(kind="no-selection", genid=found.genid))

    def _apply(self, parent: str, patch: bytes, name: GenId) -> str:
        rules = ChangeRules.without_sizes(self._protected)
        return self._store.apply_patch(parent, patch, name, rules, fuzz=True).commit


def _move_left_overs(layout: Layout, finished: set[GenId]) -> None:
    """Move directories of unfinished generations to ``left_over``; the run makes these generations
    again.
    """
    with storage_errors(layout.root):
        for name in sorted(os.listdir(layout.root)):
            genid = parse_genid(name)
            if genid is None or genid in finished or name == REPOSITORY.partition("/")[0]:
                continue
            target = make_run_directory(layout.root / LEFT_OVER, below=layout.root) / name
            shutil.rmtree(target, ignore_errors=True)
            os.rename(layout.root / name, target)


def _move_links(layout: Layout, finished: Sequence[GenId]) -> None:
    """Move links of agents to ``left_over``: HyperAgents unpacked them, and they may lead to any
    file of the host.
    """
    with storage_errors(layout.root):
        for genid in finished:
            for path in links_below(layout.generation(genid)):
                target = layout.root / LEFT_OVER / path.relative_to(layout.root)
                make_run_directory(target.parent, below=layout.root)
                os.replace(path, target)
                log.warning("link left out", path=str(path))


def _strip_special_bits(layout: Layout) -> None:
    """Remove special bits from files that containers wrote: HyperAgents unpacked them with the
    agents' modes.

    A directory with files that this user may not change is closed to all other users instead.

    Raises:
        ArchiveError: neither is possible.
    """
    for path in sorted(layout.root.iterdir()):
        if path.is_symlink():
            continue
        try:
            reclaim_trees([path], (), _STRIP_S)
        except (ReclaimError, TimeoutError) as error:
            log.warning("files may run as their owner", path=str(path), reason=str(error))
            _close_to_others(path)


def _close_to_others(path: Path) -> None:
    try:
        if path.is_dir():
            path.chmod(0o700)
            return
    except PermissionError:
        pass
    raise ArchiveError(
        f"{str(path)!r} belongs to another user and may contain files that run as their owner; "
        "change its owner (`chown -R`, as root), then resume the run"
    )


def _check_out_root(layout: Layout, target: Path) -> None:
    """Write the files of the root commit, read with a separate repository.

    Raises:
        ArchiveError: the root commit is unknown or incomplete.
    """
    git_dir = layout.root / REPOSITORY / ".git"
    if not is_run_directory(git_dir / "objects", below=layout.root):
        raise ArchiveError(f"{str(git_dir)!r} is not a git directory; the run cannot be resumed")
    reader = RepositoryStore(layout.work / "original.git")
    reader.make(None)
    reader.borrow(git_dir / "objects")
    commit = _root_commit(layout, reader, git_dir)
    try:
        reader.export(commit, target)
    except RepositoryError as error:
        raise ArchiveError(
            f"the root commit {commit} of {str(git_dir)!r} cannot be read: {error}"
        ) from error
    shutil.rmtree(reader.path, ignore_errors=True)


def _root_commit(layout: Layout, reader: RepositoryStore, git_dir: Path) -> str:
    """Return the commit that all diffs start from: the one in the log, else HyperAgents' oldest one
    before HEAD.
    """
    for name in root_candidates(layout):
        try:
            return reader.git("rev-parse", "--verify", f"{name}^{{commit}}").decode().strip()
        except RepositoryError:
            continue
    head = _head(git_dir)
    if head is None:
        raise ArchiveError(
            f"neither generate_loop.log nor {str(git_dir / 'HEAD')!r} names the root commit of "
            "the run"
        )
    try:
        lines = reader.git("log", "--first-parent", "--format=%H %ae", head).splitlines()
    except RepositoryError as error:
        raise ArchiveError(f"the history of {str(git_dir)!r} cannot be read: {error}") from error
    root = lines[0].split()[0]
    for line in lines:
        commit, _, author = line.partition(b" ")
        if author != _AUTHOR:
            break
        root = commit
    return root.decode()


def _head(git_dir: Path) -> str | None:
    """Return the commit of HEAD, read as text, or None."""
    try:
        text = _text(git_dir / "HEAD", git_dir)
        if text.startswith("ref: refs/heads/") and ".." not in text:
            text = _branch(git_dir, text.removeprefix("ref: "))
    except (OSError, UnicodeDecodeError):
        return None
    return text if _COMMIT.fullmatch(text) else None


def _branch(git_dir: Path, reference: str) -> str:
    if is_run_file(git_dir / reference, below=git_dir):
        return _text(git_dir / reference, git_dir)
    packed = _text(git_dir / "packed-refs", git_dir).splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {reference}")), "")


def _text(path: Path, git_dir: Path) -> str:
    return read_run_file(path, below=git_dir).decode().strip()
