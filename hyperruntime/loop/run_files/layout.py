"""Where the files of a run are.

::

    generate_<run_id>/
        run.json            options, seed and what the agent offers; written once
        journal.jsonl       one line per finished generation: what a run goes by
        archive.jsonl       which generations there are, as other tools read it
        exchanges.jsonl     one line per request to a model, where agents have any
        owner.json          which process works on it
        repository.git/     every state as a commit
        view/               what meta agents see of earlier generations
        work/               of generations that run now; removed when a run starts
        evaluations/        evaluations on their own; below .<name>.work one that runs now
        gen_<id>/           a finished generation

Only the run's user may enter ``work``, ``evaluations/.*.work`` and ``repository.git``, or read ``exchanges.jsonl``; the
rest is made as the user's umask says. Why: docs/decisions/0031-private-directories.md.
"""

from __future__ import annotations

from pathlib import Path

from hyperruntime.loop.run_files.parent_rules import GenId

PREFIX = "generate_"
INITIAL = "initial"
SELECTED_SPLIT, FIRST_SPLIT = "val", "train"
PATCH = "model_patch.diff"
CHAT_HISTORY = "meta_agent_chat_history.md"
AGENT_OUTPUT = "agent_output"
METADATA = "metadata.json"
LINEAGE = "lineage.diff"
REPORT = "report.json"
PREDICTIONS = "predictions.jsonl"
LOG = "generate.log"
PHASES = ".phases.jsonl"


def generation_name(genid: GenId) -> str:
    """Return the name of a generation's directory."""
    return f"gen_{genid}"


def evaluation_name(domain: str, split: str) -> str:
    """Return the name of the directory of one split's evaluation; ``train`` has no suffix."""
    return f"{domain}_eval" if split == FIRST_SPLIT else f"{domain}_eval_{split}"


def parse_genid(text: str) -> GenId | None:
    """Return the generation that a directory's name names, or None."""
    name = text.removeprefix("gen_")
    if name == text:
        return None
    if name == INITIAL:
        return INITIAL
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else None


class Layout:
    """The paths of one run.

    Attributes:
        root: the run directory.
    """

    def __init__(self, root: Path) -> None:
        """Name the run directory."""
        self.root = root
        self.run = root / "run.json"
        self.journal = root / "journal.jsonl"
        self.archive = root / "archive.jsonl"
        self.exchanges = root / "exchanges.jsonl"
        self.repository = root / "repository.git"
        self.view = root / "view"
        self.work = root / "work"
        self.evaluations = root / "evaluations"

    def generation(self, genid: GenId) -> Path:
        """Return the directory of a finished generation."""
        return self.root / generation_name(genid)

    def phases(self, genid: GenId) -> Path:
        """Return the journal of a generation that is being made."""
        return self.work / f"{generation_name(genid)}{PHASES}"

    def partial(self, genid: GenId) -> Path:
        """Return the directory of a generation that is being made."""
        return self.work / generation_name(genid)
