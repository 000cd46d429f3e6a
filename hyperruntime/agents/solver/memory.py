"""Read what earlier generations found: their answers, and what each move cost and gained.

Every file may be missing, truncated or of another shape; unreadable lines are skipped.
"""

import json
from pathlib import Path


def recall(evals_folder):
    """Return ``{problem: [history]}``, oldest first; a history is a line of a task agent.

    Args:
        evals_folder: the folder of evaluations; None or empty means none.
    """
    found = {}
    folders = Path(evals_folder).glob("gen_*") if evals_folder else []
    for folder in sorted(folders, key=_age):
        for path in sorted(folder.glob("*_eval/agent_evals/*.md")):
            for history in _lines(path):
                found.setdefault(history["problem"], []).append(history)
    return found


def _age(folder):
    number = folder.name.removeprefix("gen_")
    return int(number) if number.isdigit() else -1


def _lines(path):
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        try:
            history = json.loads(line)
            if {"problem", "moves", "answers", "chains"} <= history.keys() and history["answers"]:
                yield history
        except (ValueError, AttributeError):
            continue
