"""Read the predictions and the raw figures of a generation from a run's files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyperruntime.loop.run_files.layout import PREDICTIONS, REPORT, Layout, evaluation_name
from hyperruntime.loop.run_files.parent_rules import GenId


def read_predictions(run_dir: str | Path, genid: GenId, domain: str, split: str) -> dict[str, Any]:
    """Return a generation's predictions by task id; empty if the file cannot be read, invalid lines are skipped.

    Args:
        run_dir: the run directory.
        genid: the generation.
        domain: name of the domain.
        split: name of the split.
    """
    path = _evaluation(run_dir, genid, domain, split) / PREDICTIONS
    answers: dict[str, Any] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return answers
    for line in lines:
        try:
            value = json.loads(line)
            answers[str(value["task_id"])] = value["prediction"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return answers


def read_figures(run_dir: str | Path, genid: GenId, domain: str, split: str) -> dict[str, Mapping[str, Any]]:
    """Return the raw figures that the domain reported, by task id; empty if the file is missing or invalid.

    Args:
        run_dir: the run directory.
        genid: the generation.
        domain: name of the domain.
        split: name of the split.
    """
    path = _evaluation(run_dir, genid, domain, split) / REPORT
    try:
        tasks = json.loads(path.read_bytes())["tasks"]
        return {str(task): facts for task, facts in tasks.items() if isinstance(facts, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _evaluation(run_dir: str | Path, genid: GenId, domain: str, split: str) -> Path:
    return Layout(Path(run_dir)).generation(genid) / evaluation_name(domain, split)
