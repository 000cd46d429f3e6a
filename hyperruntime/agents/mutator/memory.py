"""Read the programs and scores of earlier generations from the folder of evaluations.

Every file may be missing, truncated or of another shape; unreadable parts are skipped.
"""

import json
import subprocess
import tempfile
from pathlib import Path


class Generation:
    """One earlier generation: its id, its parent's id, its mean training score (or None) and its program's text."""

    def __init__(self, name, parent, score, text):
        self.name = name
        self.parent = parent
        self.score = score
        self.text = text


def recall(evals_folder, repo_path, program="packing.py"):
    """Return the generations of a run whose program can be rebuilt, oldest first.

    A program is rebuilt by applying the patches of its lineage to the root's file.

    Args:
        evals_folder: the folder of evaluations; None or empty means none.
        repo_path: the repository.
        program: the path of the program in the repository.
    """
    folder = Path(evals_folder) if evals_folder else None
    if not folder or not folder.is_dir():
        return []
    parents = {path.name[4:]: _parent(path) for path in folder.glob("gen_*") if path.is_dir()}
    roots = _root_texts(Path(repo_path), program)
    known = []
    for name in sorted(parents, key=lambda name: (name.isdigit(), int(name) if name.isdigit() else 0)):
        patches = [folder / f"gen_{step}" / "agent_output" / "model_patch.diff" for step in _lineage(name, parents)]
        patches = [path for path in patches if path.is_file() and path.stat().st_size]
        for root in roots:
            text = _patched(root, patches, program)
            if text is not None:
                known.append(Generation(name, parents[name], _score(folder / f"gen_{name}"), text))
                break
    return known


def _parent(folder):
    value = _json(folder / "metadata.json").get("parent_genid")
    return None if value is None else str(value)


def _lineage(name, parents):
    """Return the generations from the root to ``name``; a missing or repeated parent ends the chain."""
    chain = []
    while name is not None and name not in chain:
        chain.append(name)
        name = parents.get(name)
    return chain[::-1]


def _score(folder):
    """Return the mean training score of the reports, else the score of the metadata, else None."""
    scores = [_number(_json(path).get("score")) for path in sorted(folder.glob("*_eval/report.json"))]
    scores = [score for score in scores if score is not None]
    if scores:
        return sum(scores) / len(scores)
    noted = _json(folder / "metadata.json").get("hyperruntime")
    return _number(noted.get("score")) if isinstance(noted, dict) else None


def _number(value):
    return float(value) if type(value) in (int, float) and value == value else None


def _json(path):
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _root_texts(repo, program):
    """Return candidates for the program's first version: of root commits, of HEAD, and the current file."""
    roots = _git(repo, "rev-list", "--max-parents=0", "HEAD") or ""
    texts = [_git(repo, "show", f"{commit}:{program}") for commit in (*roots.split(), "HEAD")]
    texts.append((repo / program).read_text(encoding="utf-8"))
    return list(dict.fromkeys(text for text in texts if text))


def _patched(text, patches, program):
    """Return the text after all patches, applied in order; None if a patch does not apply."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / program).write_text(text, encoding="utf-8")
        for patch in patches:
            if _git(place, "apply", f"--include={program}", "--whitespace=nowarn", str(patch.resolve())) is None:
                return None
        try:
            return (place / program).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None


def _git(folder, *arguments):
    """Return git's output, or None if git fails."""
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        return done.stdout.decode("utf-8") if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
