"""The paths of the files of a run.

::

    generate_<run_id>/
        run.json            options, seed and contract of the agent, and why the run ended early
        journal.jsonl       one line per finished generation; a resumed run relies on it
        archive.jsonl       the list of generations, for other tools
        exchanges.jsonl     one line per request to a model, if the run has models
        owner.json          the process that owns the run
        repository.git/     every state as a commit
        view/               the earlier generations as meta agents see them; the first one with its
        files work/               files of generations in progress; cleaned when a run resumes
        evaluations/        separate evaluations; .<name>.work is one in progress
        gen_<id>/           a finished generation

Only the run's user may enter ``work``, ``evaluations/.*.work`` and ``repository.git``, or read
``exchanges.jsonl``; the user's umask decides for the rest. Why:
docs/design/containers.md#files-on-the-host.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from hyperruntime.loop.run_files.parent_rules import GenId, number_of
from hyperruntime.runs.run_file import RUN
from hyperruntime.storage.run_files import read_run_json, refuse_links

PREFIX = "generate_"
INITIAL = "initial"
SELECTED_SPLIT = "val"
FIRST_SPLIT = "train"
PATCH = "model_patch.diff"
CHAT_HISTORY = "meta_agent_chat_history.md"
AGENT_OUTPUT = "agent_output"
AGENT_FILES = "agent"
METADATA = "metadata.json"
LINEAGE = "lineage.diff"
REPORT = "report.json"
PREDICTIONS = "predictions.jsonl"
LOG = "generate.log"
CONNECTIONS = "egress.jsonl"
RUN_LOG = "generate_loop.log"
ARCHIVE_FILE = "archive.jsonl"
PHASES = ".phases.jsonl"
META_PATCHES = "meta_patch_files"
# what a run of HyperAgents had beside its generations, links too; nothing is written there
LEFT_OVER = "left_over"


def generation_name(genid: GenId) -> str:
    """Return the name of a generation's directory."""
    return f"gen_{genid}"


def evaluation_name(domain: str, split: str) -> str:
    """Return the name of the directory of one split's evaluation; ``train`` has no suffix."""
    return f"{domain}_eval" if split == FIRST_SPLIT else f"{domain}_eval_{split}"


def ensemble_report(domain: str, split: str) -> str:
    """Return the name of the report on an ensemble's answers to one split, in the directory of a
    generation.
    """
    return f"report_ensemble_{domain}_{split}.json"


def ensemble_answers(domain: str, split: str) -> str:
    """Return the name of the table of an ensemble's answers to one split, in the directory of a
    generation.
    """
    return f"predictions_ensemble_{domain}_{split}.csv"


def certificate_name(task_id: str) -> str:
    """Return the name of the certificate of a record, beside the predictions of a split."""
    return f"certificate_{task_id}.json"


def parse_genid(text: str) -> GenId | None:
    """Return the generation id in a directory's name, or None."""
    name = text.removeprefix("gen_")
    if name == text:
        return None
    if name == INITIAL:
        return INITIAL
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else None


def generations_in(folder: Path) -> list[GenId]:
    """Return the ids of the generations whose directories are in a directory, the first generation
    first.
    """
    with os.scandir(folder) as entries:
        ids = [parse_genid(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return sorted((genid for genid in ids if genid is not None), key=number_of)


def read_json(path: Path, below: Path) -> dict[str, Any]:
    """Return a JSON object from a file below a directory; empty if it cannot be read or is not an
    object.
    """
    return read_run_json(path, below=below) or {}


class Layout:
    """The paths of one run.

    Attributes:
        root: the run directory.
    """

    def __init__(self, root: Path, work: Path | None = None) -> None:
        """Compute the paths below a run directory, which need not exist; ``work`` may be
        elsewhere.
        """
        self.root = root
        self.run = root / RUN
        self.journal = root / "journal.jsonl"
        self.archive = root / ARCHIVE_FILE
        self.exchanges = root / "exchanges.jsonl"
        self.repository = root / "repository.git"
        self.view = root / "view"
        self.work = work or root / "work"
        self.evaluations = root / "evaluations"

    def contains(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a path, as written or with its links resolved, is in the run directory."""
        roots = [resolve(self.root) for resolve in (os.path.abspath, os.path.realpath)]
        places = [resolve(path) for resolve in (os.path.abspath, os.path.realpath)]
        return any(os.path.commonpath((root, place)) == root for root in roots for place in places)

    def without_links(self, *, generations: bool = True) -> Self:
        """Return these paths, after a check that no name to which a run writes is a symbolic link.

        Args:
            generations: whether to look also into the directories of generations.

        Raises:
            ArchiveError: an entry of the directory, or of a directory in it, is a symbolic link.
        """
        refuse_links(self.root)
        for folder in self.root.glob("*/"):
            if folder.name != LEFT_OVER and (generations or parse_genid(folder.name) is None):
                refuse_links(folder)
        refuse_links(*(self.root / "work").glob("gen_*"))
        return self

    def generation(self, genid: GenId) -> Path:
        """Return the directory of a finished generation."""
        return self.root / generation_name(genid)

    def phases(self, genid: GenId) -> Path:
        """Return the phase journal of a generation in progress."""
        return self.work / f"{generation_name(genid)}{PHASES}"

    def partial(self, genid: GenId) -> Path:
        """Return the directory of a generation in progress."""
        return self.work / generation_name(genid)
