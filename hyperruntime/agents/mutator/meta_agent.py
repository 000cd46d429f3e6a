"""The meta agent: writes the next packing program from this one, without any model.

It reads what earlier generations were and how they scored on the training tasks, then changes the program's
source by seeded operators: blocks are swapped for others from its library or from a better generation, stages
are added, repeated and removed, numbers are tuned. What was never tried, and what did well, is tried first.
Of a few such changes it hands in the one that does best in a short trial of its own.
"""

import hashlib
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import genome
from memory import recall
from operators import Workshop, plan

CANDIDATES = 3
ATTEMPTS = 60
PROGRAM = "packing.py"

# Sizes that are in no task; the sums are weighed as they grow, with the root of n.
TRIAL = (
    "import packing, random; "
    "print(sum(sum(c[2] for c in packing.pack(n, 7, 250_000, 5.0)) / n**0.5 for n in (6, 13, 21)))"
)


class MetaAgent:
    """Edits ``packing.py`` of an agent repository."""

    def __init__(self, model, chat_history_file):
        self.model = model
        self.chat_history_file = chat_history_file

    def forward(self, repo_path, eval_path, iterations_left=None):
        """Write a new, checked packing program and say in the chat history what was done and why."""
        repo = Path(repo_path)
        text = (repo / PROGRAM).read_text(encoding="utf-8")
        past = recall(eval_path, repo, PROGRAM)
        rng, origin = seeded(text, past)
        shop = Workshop(genome.load_library(Path(__file__).resolve().parent), _scored(past), rng)
        parent = next((one for one in reversed(past) if one.text == text), None)
        candidates = _candidates(repo, text, parent and parent.score, shop, {one.text for one in past})
        child, said, _ = max(candidates, key=lambda candidate: candidate[2])
        (repo / PROGRAM).write_text(child, encoding="utf-8")
        origin = f"- random numbers from: {origin}; iterations left: {iterations_left}"
        self._tell([origin, *_account(text, parent, child, candidates, past)])
        return said

    def _tell(self, lines):
        path = Path(self.chat_history_file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("\n".join(["# Meta agent", "", *lines, ""]))


def seeded(text, past):
    """Return random numbers that follow from run seed and generation, else from content; and from what."""
    run, generation = os.environ.get("HYPERRUN_SEED"), os.environ.get("HYPERRUN_GENERATION")
    parts = [f"seed {run}" if run else "no seed"]
    parts.append(f"generation {generation}" if generation else f"{len(past)} generations known")
    if not (run and generation):
        parts.append("content " + hashlib.sha256(text.encode()).hexdigest()[:12])
    origin = ", ".join(parts)
    return random.Random(origin), origin


def _candidates(repo, text, score, shop, known):
    """Return ``(text, what was done, trial result)`` of new programs that compile and run."""
    found, known, parent = [], known | {text}, genome.parse(text)
    for _ in range(ATTEMPTS):
        program = parent.copy()
        said = [operator(program, shop) for operator in plan(program, score, shop)]
        said, child = [sentence for sentence in said if sentence], genome.render(program)
        if not said or child in known:
            continue
        known.add(child)
        result = _trial(child, repo)
        if result is not None:
            found.append((child, said, result))
        if len(found) == CANDIDATES:
            break
    if not found:
        raise RuntimeError(f"no new program that runs in {ATTEMPTS} attempts")
    return found


def _scored(past):
    """Return ``(name, score, program)`` of the generations that have both."""
    scored = []
    for one in past:
        try:
            program = genome.parse(one.text)
        except ValueError:
            continue
        if one.score is not None:
            scored.append((one.name, one.score, program))
    return scored


def _trial(text, repo):
    """Return how well a program packs a few circles in a process of its own; None if it does not run."""
    try:
        genome.check(text)
    except (SyntaxError, ValueError):
        return None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / PROGRAM).write_text(text, encoding="utf-8")
        budget = (repo / "budget.py").read_text(encoding="utf-8")
        (Path(folder) / "budget.py").write_text(budget, encoding="utf-8")
        command = [sys.executable, "-B", "-c", TRIAL]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=60, check=True)
            return float(done.stdout)
        except (subprocess.SubprocessError, ValueError):
            return None


def _account(text, parent, child, candidates, past):
    """Return the lines of the chat history on this generation."""
    score = "unknown" if parent is None or parent.score is None else f"{parent.score:.4f}"
    lines = [
        f"- parent: generation {parent.name if parent else 'unknown'}, training score {score}",
        f"- parent program: {genome.parse(text).describe()}",
        f"- child program: {genome.parse(child).describe()}",
    ]
    for other, said, result in candidates:
        verdict = "handed in" if other == child else "dropped"
        lines += ["", f"## Candidate, {verdict} (trial {result:.5f})", ""]
        lines += [f"{number}. {sentence}" for number, sentence in enumerate(said, 1)]
    lines += ["", "## What was known", ""]
    return lines + [f"- generation {one.name} (from {one.parent}): training score {one.score}" for one in past]
