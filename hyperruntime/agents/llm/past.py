"""Summarise earlier generations, from the folder of evaluations, in a few lines.

Every file may be missing, truncated or of another shape; unreadable parts are skipped.
"""

import csv
import json
import math
import os
import subprocess
from pathlib import Path

_READ_GENERATIONS = 400  # bounds the cost of a summary in long runs
_SHOWN_GENERATIONS = 12
_SHOWN_TASKS = 8
_REPORT_CHARS = 1500
_VALUE_CHARS = 300
_SUMMARY_CHARS = 16_000
_READ_BYTES = 32 * 1024 * 1024


class Generation:
    """One earlier generation: its id, its parent's id, its mean training score (or None), and its
    failure (or '').
    """

    def __init__(self, folder):
        """Read the generation's folder."""
        self.folder = folder
        self.name = folder.name.removeprefix("gen_")
        metadata = _json(folder / "metadata.json")
        ours = (
            metadata.get("hyperruntime") if isinstance(metadata.get("hyperruntime"), dict) else {}
        )
        self.parent = _id(metadata.get("parent_genid"))
        self.failure = ": ".join(str(ours[key]) for key in ("failure", "detail") if ours.get(key))
        self.evaluations = sorted(path.parent for path in folder.glob("*_eval/report.json"))
        scores = [
            score
            for path in self.evaluations
            if (score := _score(_json(path / "report.json"))) is not None
        ]
        self.score = _number(ours.get("score"))
        if self.score is None and scores:
            self.score = sum(scores) / len(scores)


def read_generations(evals_folder, parent=None):
    """Return the number of generations, and the newest ones, oldest first, with the first one and
    the parent.

    Args:
        evals_folder: the folder of evaluations; None or empty means none.
        parent: the id of the parent generation; None means unknown.
    """
    folder = Path(evals_folder) if evals_folder else None
    if folder is None or not folder.is_dir():
        return 0, []
    names = [
        entry.name.removeprefix("gen_")
        for entry in os.scandir(folder)
        if entry.name.startswith("gen_")
    ]
    names.sort(key=lambda name: (name.isdecimal(), int(name) if name.isdecimal() else 0, name))
    chosen = [name for name in names[:-_READ_GENERATIONS] if name == parent or name == names[0]]
    found = [Generation(folder / f"gen_{name}") for name in chosen + names[-_READ_GENERATIONS:]]
    return len(names), found


def parent_of(repo):
    """Return the id of a repository's generation, from its last commit, or None if git fails."""
    command = ["git", "-c", "safe.directory=*", "-C", str(repo), "log", "-1", "--format=%s"]
    try:
        said = (
            subprocess.run(command, capture_output=True, timeout=60, check=True)
            .stdout.decode("utf-8")
            .strip()
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return said.removeprefix("generation ") if said.startswith("generation ") else "initial"


def summary(evals_folder, repo):
    """Return a summary as Markdown: all scores, or the best and the newest, and the parent's failed
    tasks.

    Args:
        evals_folder: the folder of evaluations; None or empty means none.
        repo: the repository, which is at the parent generation.
    """
    here = parent_of(repo)
    total, generations = read_generations(evals_folder, here)
    if not generations:
        return "Nothing: there is no earlier generation to read about."
    by_name = {one.name: one for one in generations}
    parent = by_name.get(here)
    lines = [*_table(generations, parent, total)]
    if parent is not None:
        lines += ["", f"This repository is generation {parent.name}; what it did:"]
        for evaluation in parent.evaluations:
            lines += ["", *_evaluation(evaluation)]
        children = [one for one in generations if one.parent == parent.name]
        lines += ["", *_children(parent, children)] if children else []
    text = "\n".join(lines)
    return (
        text
        if len(text) <= _SUMMARY_CHARS
        else text[:_SUMMARY_CHARS] + "\n[... the rest is in the folder]"
    )


def _table(generations, parent, total):
    """Return one line per generation; if there are many, only for the best, the newest and the
    parent.
    """
    shown = generations
    if len(generations) > 2 * _SHOWN_GENERATIONS:
        best = sorted(
            (one for one in generations if one.score is not None), key=lambda one: -one.score
        )
        chosen = {
            *best[:_SHOWN_GENERATIONS],
            *generations[-_SHOWN_GENERATIONS:],
            parent or generations[0],
        }
        shown = [one for one in generations if one in chosen]
    lines = [f"{total} generations; shown are {len(shown)}. Scores are of the training tasks."]
    for one in shown:
        score = "no score" if one.score is None else f"score {one.score:.4f}"
        origin = f", from {one.parent}" if one.parent is not None else ""
        failure = f", failed: {_short(one.failure)}" if one.failure else ""
        here = " (this repository)" if one is parent else ""
        lines.append(f"- generation {one.name}{here}{origin}: {score}{failure}")
    return lines


def _children(parent, children):
    """Return lines about the earlier children of the same parent."""
    lines = [
        f"From generation {parent.name} these were made already; do something else than what "
        "did not help:"
    ]
    for one in children[-_SHOWN_GENERATIONS:]:
        score = one.failure or ("no score" if one.score is None else f"score {one.score:.4f}")
        files = _changed_files(one.folder / "agent_output" / "model_patch.diff")
        lines.append(
            f"- generation {one.name}: {_short(score)}; changed {', '.join(files) or 'nothing'}"
        )
    return lines


def _changed_files(patch):
    lines = _lines(patch)
    return [line.rpartition(" b/")[2] for line in lines if line.startswith("diff --git ")][
        :_SHOWN_TASKS
    ]


def _evaluation(folder):
    """Return a short report and the tasks with the lowest scores."""
    report = _json(folder / "report.json")
    short = {
        key: value
        for key, value in report.items()
        if key != "tasks" and not key.startswith("question_ids")
    }
    text = json.dumps(short, ensure_ascii=False)
    text = text if len(text) <= _REPORT_CHARS else text[:_REPORT_CHARS] + " ..."
    rows = sorted(
        (row for row in predictions(folder) if row[1] is None or row[1] < 1),
        key=lambda row: row[1] or 0.0,
    )
    lines = [f"## {folder.name}", "", f"Report: {text}"]
    if rows:
        lines += ["", f"{len(rows)} tasks were not answered as well as can be; for example:"]
    for name, score, said, detail in rows[:_SHOWN_TASKS]:
        lines.append(f"- {name}: {detail or score}; answered {_short(said)}")
    return lines


def predictions(folder):
    """Return ``(task, score, answer, detail)`` of each task, from the JSON lines or the CSV
    file.
    """
    rows = []
    for line in _lines(folder / "predictions.jsonl"):
        value = _parse(line)
        if isinstance(value, dict):
            detail = value.get("error") or value.get("detail") or ""
            said = json.dumps(value.get("prediction"), ensure_ascii=False)
            rows.append(
                (str(value.get("task_id")), _number(value.get("score")), said, _short(str(detail)))
            )
    if rows:
        return rows
    failed = {str(name) for name in _list(_json(folder / "report.json").get("question_ids_failed"))}
    for value in csv.DictReader(_lines(folder / "predictions.csv")):
        name = str(value.get("question_id") or "")
        rows.append((name, 0.0 if name in failed else 1.0, str(value.get("prediction") or ""), ""))
    return rows


def _score(report):
    for key in ("score", "overall_accuracy", "accuracy_score", "points_percentage"):
        if (value := _number(report.get(key))) is not None:
            return value
    value = _number(report.get("average_progress"))
    return _number(report.get("average_fitness")) if value is None else value / 100


def _number(value):
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def _id(value):
    return None if value is None else str(value)


def _list(value):
    return value if isinstance(value, list) else []


def _short(text):
    text = " ".join(str(text).split())
    return text if len(text) <= _VALUE_CHARS else text[:_VALUE_CHARS] + " ..."


def _json(path):
    value = _parse(_text(path))
    return value if isinstance(value, dict) else {}


def _parse(text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _lines(path):
    return _text(path).split("\n") if path.is_file() else []


def _text(path):
    try:
        with path.open("rb") as file:
            return file.read(_READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
