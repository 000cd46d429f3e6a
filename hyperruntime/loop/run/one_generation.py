"""Evaluate one generation of a run separately, for example on the split ``test``.

The results go to their own directory below ``evaluations/``; no other file of the run is written.
So the run's choices cannot depend on them, no agent sees them, and the run may be in progress.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import attrs
from filelock import FileLock

from hyperruntime.domain import DomainBase
from hyperruntime.errors import ArchiveError, RepositoryError, RunError, SpecError
from hyperruntime.git.bare_repository import object_format, write_text
from hyperruntime.git.command import git
from hyperruntime.git.foreign_files import RAW_ATTRIBUTES
from hyperruntime.git.store import BRANCH, RepositoryStore
from hyperruntime.git.work_files import write_files
from hyperruntime.json_values import parse_json
from hyperruntime.loop.generation.adapter import RunContext
from hyperruntime.loop.generation.generation import make_with_results
from hyperruntime.loop.run.opened_run import OpenedRun, stored_start
from hyperruntime.loop.run.plan import checked_domains, contract_adapter
from hyperruntime.loop.run_files.archive import Archive, read_run
from hyperruntime.loop.run_files.layout import Layout, generation_name
from hyperruntime.loop.run_files.options import ALL_SAMPLES, GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import GenerationRecord, structured
from hyperruntime.loop.workbench.container import GenerationPlan, discard
from hyperruntime.loop.workbench.events import OnEvent
from hyperruntime.loop.workbench.failures import RunInterruptedError
from hyperruntime.loop.workbench.model_access import evaluation_models
from hyperruntime.loop.workbench.open_containers import LoopRuntime, on_interrupt
from hyperruntime.storage.atomic import (
    finish_directory,
    json_document,
    make_directory,
    make_private_directory,
    storage_errors,
    write_file,
)
from hyperruntime.storage.run_files import open_to_append, read_run_file

RESULT = "evaluation.json"


@attrs.frozen(kw_only=True)
class Evaluation:
    """One evaluation of one generation on one split.

    Attributes:
        path: the directory with predictions and reports.
        genid: id of the generation.
        split: name of the split.
        repeat: number of the repetition, from 0.
        score: mean over the domains.
        scores: score of each domain.
        tasks: number of tasks that were run, for each domain.
        known: whether the evaluation existed already.
    """

    path: str
    genid: GenId
    split: str
    repeat: int
    score: float
    scores: dict[str, float] = attrs.field(hash=False)
    tasks: dict[str, int] = attrs.field(hash=False)
    known: bool = False


def evaluate_generation(
    runtime: LoopRuntime,
    run_dir: str | os.PathLike[str],
    genid: GenId,
    *,
    split: str = "test",
    samples: int | None = None,
    repeat: int = 1,
    trust: bool = False,
    on_event: OnEvent | None = None,
) -> tuple[Evaluation, ...]:
    """Evaluate a generation in full on one split of each domain that has it; reuse existing
    evaluations.

    Args:
        runtime: an open runtime.
        run_dir: the run directory.
        genid: id of the generation, or ``"best"`` for the one with the highest score.
        split: ``train``, ``val`` or ``test``.
        samples: maximum number of tasks of each domain; None for all.
        repeat: number of evaluations; each one after the first increases the seed that agents see
            by 1.
        trust: as for :func:`~hyperruntime.loop.run.plan.plan_resume`.
        on_event: as for :func:`~hyperruntime.loop.run.run.start_run`.

    Raises:
        ReceivedRunError: the run was made elsewhere, and asks for something that was not accepted.
        ArchiveError: ``run_dir`` is not a run directory or has a link, or the generation is unknown
            or has no state.
        SpecError: no domain has this split.
        RunError: the evaluation failed, and its files are removed; or a link leads out of the run
            directory.
        RunInterruptedError, StorageError: SIGINT or SIGTERM interrupted it, or a file cannot be
            written.
    """
    layout = Layout(Path(run_dir).absolute()).without_links()
    options, stored = read_run(layout)
    adapter = contract_adapter(options.contract)
    domains, image = checked_domains(options, stored, layout, adapter, trust=trust)
    run = OpenedRun(
        options=_chosen(options, domains, split, samples),
        layout=layout,
        adapter=adapter,
        domains=tuple(domain for domain in domains if _has(domain, split)),
        stored=stored,
        archive=Archive.load(layout),
    )
    image = runtime.images.ensure(image)
    record = find_generation(run.archive, genid)
    names = [_name(record, split, samples, number) for number in range(repeat)]
    with evaluation_models(options, stored, layout, offered=adapter.offers_models) as models:
        context = run.context(runtime, image, on_event, models)
        with on_interrupt(context.containers.stop):
            return context.containers.run(
                lambda: tuple(_one(context, record, split, *p) for p in enumerate(names))
            )


def _name(record: GenerationRecord, split: str, samples: int | None, number: int) -> str:
    """Return the name of an evaluation's directory."""
    return f"{generation_name(record.genid)}_{split}{'' if samples is None else f'_{samples}'}_{number}"


def image_to_evaluate(run_dir: str | os.PathLike[str], *, trust: bool) -> str:
    """Return the image in which generations of a run are evaluated, after a check of what the run
    asks of the host.

    Args:
        run_dir: the run directory.
        trust: as for :func:`~hyperruntime.loop.run.plan.plan_resume`.

    Raises:
        ReceivedRunError: as for :func:`evaluate_generation`.
        ArchiveError: as for :func:`evaluate_generation`.
        HyperRuntimeError: as for :func:`~hyperruntime.loop.run.plan.plan_run`.
    """
    layout = Layout(Path(run_dir).absolute()).without_links()
    options, stored = read_run(layout)
    return checked_domains(
        options, stored, layout, contract_adapter(options.contract), trust=trust
    )[1]


def _has(domain: DomainBase, split: str) -> bool:
    return any(part.name == split for part in domain.splits)


def _chosen(
    options: GenerateOptions, domains: Sequence[DomainBase], split: str, samples: int | None
) -> GenerateOptions:
    """Return the options of the evaluation, with only the domains that have the split."""
    names = [
        name for name, domain in zip(options.domains, domains, strict=True) if _has(domain, split)
    ]
    if not names:
        known = dict.fromkeys(part.name for domain in domains for part in domain.splits)
        raise SpecError(
            "split", split, f"{' and '.join(options.domains)} has only {', '.join(known)}"
        )
    count = ALL_SAMPLES if samples is None else samples
    return attrs.evolve(options, domains=names, eval_samples=(count,) * len(names))


def _one(
    context: RunContext, record: GenerationRecord, split: str, number: int, name: str
) -> Evaluation:
    """Return one evaluation, and make it if it does not exist; a lock prevents two processes from
    making it.
    """
    home = make_directory(context.layout.evaluations)
    final = home / name
    with _locked(home / f".{name}.lock"):
        if final.exists():
            return _read(final, known=True)
        work = home / f".{name}.work"
        discard(context, work)  # of a killed evaluation
        make_private_directory(work)
        try:
            finish_directory(_make(context, record, split, number, work), final)
        except RunInterruptedError as error:
            raise RunInterruptedError(
                "the evaluation was interrupted; its files are removed"
            ) from error
        finally:
            discard(context, work)
        return _read(final, known=False)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file, which the lock's package would also open if it were a pipe or another file
    of the user.
    """
    with storage_errors(path):
        open_to_append(path).close()  # fails if it is not a regular file
        lock = FileLock(path)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(
    context: RunContext, record: GenerationRecord, split: str, number: int, work: Path
) -> Path:
    """Evaluate a generation, as one without a meta agent; return the directory with the results,
    below ``work``.
    """
    options = attrs.evolve(context.options, seed=(context.options.seed or 0) + number)
    separate = attrs.evolve(context, options=options, layout=Layout(context.layout.root, work))
    plan = GenerationPlan(genid=record.genid, parent=None, commit=record.commit, split=split)
    made, results = make_with_results(separate, plan)
    if made.failure is not None:
        raise RunError(
            f"generation {record.genid} could not be evaluated: {made.failure}: {made.detail}"
        )
    scores = {domain: splits[split].mean for domain, splits in results.items()}
    facts = {
        "genid": record.genid,
        "split": split,
        "repeat": number,
        "score": sum(scores.values()) / len(scores),
        "scores": scores,
        "tasks": {domain: len(splits[split].scores) for domain, splits in results.items()},
        "seed": options.seed,
        "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    folder = separate.layout.partial(record.genid)
    write_file(folder / RESULT, json_document(facts))
    return folder


def _read(path: Path, *, known: bool) -> Evaluation:
    """Return an evaluation from its directory; ``known``: whether it existed already."""
    try:
        value = parse_json(read_run_file(path / RESULT, below=path.parent))
        return structured(Evaluation, {**value, "path": str(path), "known": known})
    except (OSError, ValueError) as error:
        raise RunError(
            f"{str(path / RESULT)!r} cannot be read: {error}; remove {str(path)!r}"
        ) from error


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
