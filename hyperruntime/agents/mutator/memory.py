"""Read the programs, scores and trials of earlier generations from the folder of evaluations.

Every file may be missing, truncated or of another shape; unreadable parts are skipped.
"""

import json
import math
import subprocess
import tempfile
from pathlib import Path

TRIALS = "trials.json"


class Generation:
    """One earlier generation: its id, its parent's id, its mean training score (or None) and its
    program's text.
    """

    def __init__(self, name, parent, score, text):
        self.name = name
        self.parent = parent
        self.score = score
        self.text = text


def recall(evals_folder, repo_path, program="packing.py"):
    """Return the generations of a run whose program can be rebuilt, oldest first.

    The first generation's files are in its folder; each other program is its parent's with the
    generation's patch. A generation that is alone in the folder is the one that the repository
    holds.

    Args:
        evals_folder: the folder of evaluations; None or empty means none.
        repo_path: the repository.
        program: the path of the program in the repository.
    """
    folder = Path(evals_folder) if evals_folder else None
    if not folder or not folder.is_dir():
        return []
    parents = {path.name[4:]: _parent(path) for path in folder.glob("gen_*") if path.is_dir()}
    texts = {
        name: (Path(repo_path) / program).read_text(encoding="utf-8")
        for name in parents
        if len(parents) == 1
    }
    for name in parents:
        for step in _lineage(name, parents):
            if step not in texts:
                texts[step] = _text(folder / f"gen_{step}", texts.get(parents.get(step)), program)
    names = sorted(parents, key=lambda name: (name.isdigit(), int(name) if name.isdigit() else 0))
    known = [name for name in names if texts[name] is not None]
    return [
        Generation(name, parents[name], _score(folder / f"gen_{name}"), texts[name])
        for name in known
    ]


def recall_trials(evals_folder):
    """Return ``{program text: trial result}`` of all candidates of earlier generations, dropped
    ones too.

    Args:
        evals_folder: the folder of evaluations; None or empty means none.
    """
    files = sorted(Path(evals_folder).glob(f"gen_*/agent_output/{TRIALS}")) if evals_folder else []
    results = {text: _number(result) for path in files for text, result in _json(path).items()}
    return {text: result for text, result in results.items() if result is not None}


def _parent(folder):
    value = _json(folder / "metadata.json").get("parent_genid")
    return None if value is None else str(value)


def _lineage(name, parents):
    """Return the generations from the root to ``name``; a missing or repeated parent ends the
    chain.
    """
    chain = []
    while name is not None and name not in chain:
        chain.append(name)
        name = parents.get(name)
    return chain[::-1]


def _score(folder):
    """Return the mean training score of the reports, else the score of the metadata, else None."""
    scores = [
        _number(_json(path).get("score")) for path in sorted(folder.glob("*_eval/report.json"))
    ]
    scores = [score for score in scores if score is not None]
    if scores:
        return sum(scores) / len(scores)
    noted = _json(folder / "metadata.json").get("hyperruntime")
    return _number(noted.get("score")) if isinstance(noted, dict) else None


def _number(value):
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def _json(path):
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _text(folder, before, program):
    """Return the program of a generation, or None if it cannot be rebuilt or the generation changed
    nothing.

    Args:
        folder: the generation's folder.
        before: the program of its parent; None if it is unknown.
        program: the path of the program.
    """
    try:
        first, patch = folder / "agent" / program, folder / "agent_output" / "model_patch.diff"
        if first.is_file():
            return first.read_text(encoding="utf-8")
        if before is None or not patch.is_file() or not patch.stat().st_size:
            return None
        changed = f" b/{program}\n".encode() in patch.read_bytes()
        return _patched(before, patch, program) if changed else before
    except (OSError, ValueError):
        return None


def _patched(text, patch, program):
    """Return the text with the changes of a patch; None if they do not apply."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / program).write_text(text, encoding="utf-8")
        if (
            _git(
                place, "apply", f"--include={program}", "--whitespace=nowarn", str(patch.resolve())
            )
            is None
        ):
            return None
        return (place / program).read_text(encoding="utf-8")


def _git(folder, *arguments):
    """Return git's output, or None if git fails."""
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        return done.stdout.decode("utf-8") if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
