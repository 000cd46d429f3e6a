"""The completed phases of a generation, so that a resumed run or another attempt continues from
there.

A small journal lies beside the directory of a generation in progress. A line is appended when a
phase is complete and its files exist: the parent was chosen; the meta agent's state was stored; a
split, or its first stage, was evaluated. The journal is removed when the generation is finished. A
line that cannot be read counts as a phase not completed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import ArchiveError, RepositoryError
from hyperruntime.json_values import json_object
from hyperruntime.logs import get_logger
from hyperruntime.loop.evaluation.evaluator import Results, SplitResult
from hyperruntime.loop.evaluation.task_runner import prediction_to_json
from hyperruntime.loop.run_files.layout import PHASES, Layout, parse_genid
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import (
    GenerationRecord,
    record_from_json,
    record_to_json,
    structured,
)
from hyperruntime.loop.workbench.container import GenerationPlan, StepContext
from hyperruntime.storage.atomic import append_line
from hyperruntime.storage.run_files import read_run_file

log = get_logger(__name__)


class Phases:
    """The completed phases of one generation.

    Attributes:
        plan: plan of the generation, or None.
        record: its record at the time when its state was stored, or None.
        results: results of the evaluation so far.
    """

    def __init__(self, path: Path) -> None:
        """Read the journal at ``path``; it may be missing.

        Raises:
            ArchiveError: the file exists but cannot be read.
        """
        self.plan: GenerationPlan | None = None
        self.record: GenerationRecord | None = None
        self.results: Results = {}
        self._path = path
        self._lock = threading.Lock()
        lines = _lines(path)
        # a truncated line is of a phase that was not complete
        for value in filter(None, map(json_object, lines)):
            try:
                self._take(value)
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                log.warning("phase skipped", path=str(path), error=str(error))

    def begin(self, plan: GenerationPlan) -> None:
        """Store the plan.

        Raises:
            StorageError: the journal cannot be written.
        """
        self.plan = plan
        self._append({"phase": "plan", **attrs.asdict(plan)})

    def keep_state(self, record: GenerationRecord) -> None:
        """Store the record of a generation whose state is complete; earlier results are discarded.

        Raises:
            StorageError: the journal cannot be written.
        """
        self.record = record
        self.results.clear()
        self._append({"phase": "state", "record": record_to_json(record)})

    def keep_split(self, domain: str, split: str, result: SplitResult) -> None:
        """Add the result of a split or of its first stage; a result that JSON cannot represent is
        not written.

        Args:
            domain: name of the domain.
            split: name of the split.
            result: the result.

        Raises:
            StorageError: the journal cannot be written.
        """
        with self._lock:  # domains may be evaluated at the same time
            self.results.setdefault(domain, {})[split] = result
        value = {
            "phase": "split",
            "domain": domain,
            "split": split,
            "total": result.total,
            "mean": result.mean,
            "predictions": [prediction_to_json(said) for said in result.predictions],
            "scores": [attrs.asdict(score) for score in result.scores],
        }
        try:
            self._append(value)
        except (TypeError, ValueError) as error:
            log.warning(
                "result not kept for a resume", domain=domain, split=split, error=str(error)
            )

    def _append(self, value: Mapping[str, Any]) -> None:
        with self._lock:
            append_line(self._path, value)

    def _take(self, value: Mapping[str, Any]) -> None:
        phase = value["phase"]
        if phase == "plan":
            self.plan = structured(GenerationPlan, value)
        elif phase == "state":
            self.record = record_from_json(value["record"])
            self.results = {}
        elif phase == "split" and self.record is not None:
            predictions = [{**said, "value": said["prediction"]} for said in value["predictions"]]
            result = structured(SplitResult, {**value, "predictions": predictions})
            self.results.setdefault(str(value["domain"]), {})[str(value["split"])] = result


def _lines(path: Path) -> list[bytes]:
    try:
        return read_run_file(path, below=path.parent).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ArchiveError(f"{str(path)!r} cannot be read: {error.strerror}; remove it") from error


def reached_phases(context: StepContext, plan: GenerationPlan) -> Phases:
    """Return the completed phases of a generation; only the plan if its state was lost, for example
    by a power failure.

    Raises:
        StorageError: the journal cannot be written.
    """
    path = context.layout.phases(plan.genid)
    phases = Phases(path)
    if phases.record is not None:
        try:
            context.store.tree(phases.record.commit)
        except RepositoryError:
            path.unlink(missing_ok=True)
            phases = Phases(path)
            phases.begin(plan)
    return phases


def unfinished(layout: Layout) -> dict[str, GenId]:
    """Return the names in the run's ``work`` directory that a resumed run needs, with their
    generation ids.
    """
    names: dict[str, GenId] = {}
    for name in os.listdir(layout.work) if layout.work.is_dir() else ():
        genid = parse_genid(name.removesuffix(PHASES))
        if genid is not None and layout.phases(genid).is_file():
            names[name] = genid
    return names
