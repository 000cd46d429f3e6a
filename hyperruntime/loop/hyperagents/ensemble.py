"""Evaluate the ensemble of a generation, which combines the answers of all generations.

The repository's ``utils.run_ensemble`` runs in its own container with the state of the generation.
It reads the answers of all generations without labels; scores of a first stage are already
multiplied by the fraction of tasks. The score that it reports is ignored: its answers are scored
like those of an agent. If the generation was evaluated only in the first stage, this score is
multiplied by the same fraction. The program also exits with 0 after an error; then its table of
answers is missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from hyperruntime.domain import DomainBase
from hyperruntime.errors import AgentError, PatchError
from hyperruntime.loop.evaluation.evaluator import Results, evaluated_splits
from hyperruntime.loop.generation.adapter import Attempt
from hyperruntime.loop.generation.generation_view import (
    add_evaluations,
    add_generation,
    archive_line,
    shown_report,
    write_figures,
)
from hyperruntime.loop.hyperagents import commands
from hyperruntime.loop.hyperagents.domains import DOMAINS, TRAIN, OriginalDomain
from hyperruntime.loop.hyperagents.labels import blank
from hyperruntime.loop.hyperagents.original import links_below
from hyperruntime.loop.hyperagents.scoring import TABLE, Judge, repository_container
from hyperruntime.loop.run_files.contract import AGENT_ARCHIVE
from hyperruntime.loop.run_files.layout import (
    AGENT_OUTPUT,
    ARCHIVE_FILE,
    METADATA,
    PATCH,
    REPORT,
    Layout,
    ensemble_answers,
    ensemble_report,
    generation_name,
    generations_in,
    read_json,
)
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.workbench.container import AgentContainer, read_below
from hyperruntime.loop.workbench.failures import GenerationFailedError
from hyperruntime.spec import Mount
from hyperruntime.storage.atomic import json_document, make_directory, storage_errors, write_file
from hyperruntime.storage.run_files import is_run_file, open_to_append, read_run_file

FOLDER = "answers"
AGENT_ARCHIVE_FOLDER = "agent_archive"
AGENT_ARCHIVE_VIEW = "agent_archive_view"
LOG = "ensemble.log"
_INSIDE = "/opt/hyperruntime/generations"


def has_ensembles(options: GenerateOptions, domains: Iterable[DomainBase]) -> bool:
    """Return whether a run evaluates ensembles."""
    wanted = "ensemble" in options.optimize_option and "no_archive" not in (
        options.run_baseline or ""
    )
    return wanted and all(DOMAINS[domain.name].ensemblable for domain in domains)


def evaluates_agents(options: GenerateOptions) -> bool:
    """Return whether a run evaluates generations as agents."""
    return "agent" in options.optimize_option.split("_")


def check_ensembles(options: GenerateOptions, domains: Iterable[DomainBase]) -> None:
    """Check that the ensemble of ``agent_archive_path`` can evolve; do nothing without this option.

    Args:
        options: options of the run.
        domains: domains of the run.

    Raises:
        AgentError: a domain has no ensembles, or the run in ``agent_archive_path`` is missing or
            contains a link.
    """
    if options.agent_archive_path is None:
        return
    without = [domain.name for domain in domains if not DOMAINS[domain.name].ensemblable]
    if without:
        raise AgentError(
            f"--optimize-option {options.optimize_option}: an ensemble cannot combine answers "
            f"to {', '.join(without)}; remove these domains or the option"
        )
    for genid in _agent_archive(options.agent_archive_path):
        for link in links_below(Path(options.agent_archive_path, generation_name(genid))):
            raise AgentError(
                f"--agent-archive-path: {str(link)!r} is a link, possibly made by an agent; "
                "remove it"
            )


def _agent_archive(path: str) -> list[GenId]:
    ids = generations_in(Path(path)) if os.path.isdir(path) else []
    if not ids:
        raise AgentError(
            f"--agent-archive-path {path!r} has no gen_<id>; give a generate_<run_id> directory"
        )
    return ids


def add_answers(domain: DomainBase, split: str, source: Path, target: Path, *, full: bool) -> None:
    """Write the view of one split for ensembles: answers without labels, and a scaled score.

    Args:
        domain: domain of the split.
        split: name of the split.
        source: directory of the results.
        target: directory of the view.
        full: whether all tasks were run, not only the first stage.
    """
    original = DOMAINS[domain.name]
    report = shown_report(read_json(source / REPORT, source.parent), split, needs=original.needs)
    score = report.get(original.score_key)
    if not full and isinstance(score, (int, float)):
        report[original.score_key] = score * original.fraction
    write_file(target / REPORT, json_document(report))
    _show_table(original, source / TABLE, target / TABLE)


def _show_table(domain: OriginalDomain, source: Path, target: Path) -> None:
    """Copy a table without its labels; skip a table that is missing or invalid."""
    try:
        data = read_run_file(source, below=source.parent.parent)
        write_file(target, blank(data, domain.label_columns, source.name))
    except (OSError, AgentError):
        return


def show_training_answers(domain: OriginalDomain, source: Path, target: Path) -> None:
    """Show meta agents an ensemble's answers to the split ``train`` without labels, and the report
    on them.

    Args:
        domain: the domain.
        source: directory of the generation; it may have no ensemble.
        target: directory that agents see.

    Raises:
        StorageError: a file cannot be written.
    """
    table = ensemble_answers(domain.name, TRAIN)
    report = ensemble_report(domain.name, TRAIN)
    if is_run_file(source / report, below=source.parent):
        write_figures(domain, TRAIN, source / report, target / report)
        _show_table(domain, source / table, target / table)


def prepare_agent_archive(
    options: GenerateOptions, domains: tuple[DomainBase, ...], layout: Layout
) -> None:
    """Copy the views of the run in ``agent_archive_path`` for the ensemble and for meta agents.

    Args:
        options: options of the run.
        domains: domains of the run.
        layout: paths of the run.

    Raises:
        AgentError: the other run does not exist.
        StorageError: a file cannot be written.
    """
    if options.agent_archive_path is None:
        return
    ids = _agent_archive(options.agent_archive_path)
    source = Path(options.agent_archive_path)
    target = make_directory(layout.root / AGENT_ARCHIVE_FOLDER)
    write_file(layout.root / AGENT_ARCHIVE_VIEW / ARCHIVE_FILE, archive_line(ids))
    for genid in ids:
        name = generation_name(genid)
        add_generation(domains, source / name, target / name, add_answers)
        shown = make_directory(layout.root / AGENT_ARCHIVE_VIEW) / name
        add_generation(domains, source / name, shown, add_answers, training=True)
        patch = Path(AGENT_OUTPUT) / PATCH
        if is_run_file(source / name / patch, below=source):
            data = read_run_file(source / name / patch, below=source)
            write_file(layout.root / AGENT_ARCHIVE_VIEW / name / patch, data)


class Ensemble:
    """The ensemble of one generation."""

    def __init__(self, attempt: Attempt, results: Results) -> None:
        """Prepare nothing; :meth:`run` does the work.

        Args:
            attempt: the attempt at the generation.
            results: receives the results, per domain and split.
        """
        self._attempt = attempt
        self._results = results
        self._context = attempt.context
        self._plan = attempt.plan
        self._folder = attempt.folder
        context = self._context
        fixed = context.options.agent_archive_path is not None
        self._shared = context.layout.root / (AGENT_ARCHIVE_FOLDER if fixed else FOLDER)
        self._inside = AGENT_ARCHIVE if fixed else context.contract.evals
        self._fixed = fixed

    def run(self, commit: str, judge: Judge, *, full: bool) -> None:
        """Run the ensemble on every split of every domain and score its answers.

        Args:
            commit: state of the generation.
            judge: scores the answers.
            full: whether this generation was evaluated in full, not only in the first stage.

        Raises:
            GenerationFailedError: the ensemble failed, or a time limit passed.
            ContainerLostError: a container ended during the evaluation.
        """
        mount = Mount(source=str(make_directory(self._shared)), target=_INSIDE)
        place = repository_container(self._attempt, "ensemble", mount)
        self._context.store.export(commit, place.repo)
        self._lay_out(place.out / PurePosixPath(self._inside).name, full=full)
        try:
            place.start()
            for domain in self._context.domains:
                for split in evaluated_splits(domain, test=self._context.options.eval_test):
                    self._run_split(place, judge, DOMAINS[domain.name], split.name, full=full)
        finally:
            place.close()

    def _run_split(
        self, place: AgentContainer, judge: Judge, domain: OriginalDomain, split: str, *, full: bool
    ) -> None:
        samples = judge.samples(domain)
        timeout_s = self._context.options.timeout_ensemble_s
        args = commands.with_python(
            commands.ensemble(domain, split, folder=self._inside, samples=samples)
        )
        name = f"ensemble_{domain.name}_{split}"
        result = place.run(args, f"the {name}", timeout_s, self._attempt.steps.write)
        self._log(f"== {name}\n".encode() + result.stdout + result.stderr)
        place.reclaim_files()
        table = ensemble_answers(domain.name, split)
        report = ensemble_report(domain.name, split)
        said = self._read(place, result.stdout, table, judge.table_limit(domain, split))
        labelled = judge.label(domain, split, said, samples)
        scratch = self._attempt.private / "ensemble" / name
        scored = judge.score(domain, split, scratch, labelled, full=full)
        write_file(self._folder / table, labelled.table)
        write_file(self._folder / report, (scratch / REPORT).read_bytes())
        # the last lines that the program prints, with the score of the host
        self._log(f"\n-- {name}, scored by the host\n{scored.mean}\n{table}\n{report}\n".encode())
        self._results.setdefault(domain.name, {})[split] = scored

    def _log(self, text: bytes) -> None:
        with storage_errors(self._folder), open_to_append(self._folder / LOG) as file:
            file.write(text)

    def _read(self, place: AgentContainer, printed: bytes, name: str, limit: int) -> bytes:
        """Return the table of answers, from a path in the last lines of output or else from the
        usual path.
        """
        lines = [line.strip() for line in printed.decode(errors="replace").split("\n")]
        paths = [line for line in lines[-4:] if line.startswith(f"{commands.TMP}/")]
        usual = f"{self._inside}/{name}"
        for path in (*[path for path in paths if path.endswith(".csv")], usual):
            try:
                return read_below(place.out, path.removeprefix(f"{commands.TMP}/"), limit)
            except PatchError:
                continue
        why = next((f": {line}" for line in reversed(lines) if line not in ("", "None")), "")
        raise GenerationFailedError("evaluation", f"the ensemble wrote no {name}{why}")

    def _lay_out(self, folder: Path, *, full: bool) -> None:
        """Fill the input directory of the ensemble: links to the shared view, and this generation's
        own view.
        """
        make_directory(folder)
        ids = generations_in(self._shared)
        with storage_errors(folder):
            for genid in ids:
                name = generation_name(genid)
                os.symlink(f"{_INSIDE}/{name}", folder / name)
        if not self._fixed and self._plan.genid not in ids:
            mine = folder / generation_name(self._plan.genid)
            facts = {
                "current_genid": self._plan.genid,
                "parent_genid": self._plan.parent,
                "valid_parent": True,
            }
            write_file(mine / METADATA, json_document(facts))
            add_evaluations(self._context.domains, self._folder, mine, add_answers, full=full)
            ids.append(self._plan.genid)
        write_file(folder / ARCHIVE_FILE, archive_line(ids))


def best_results(agent: Results, ensemble: Results) -> Results:
    """Return the better one of two results for each split, by weighted score."""
    merged: Results = {domain: dict(splits) for domain, splits in agent.items()}
    for domain, splits in ensemble.items():
        for split, result in splits.items():
            known = merged.setdefault(domain, {}).get(split)
            if known is None or result.weighted > known.weighted:
                merged[domain][split] = result
    return merged
