"""The meta agent: derives the next packing program from the current one, without a model.

It reads the programs, training scores and trials of earlier generations. Seeded operators draft
changes of the program's source: they replace blocks by others from the library or from a better
generation, add, repeat and remove stages, and tune numbers. Untried blocks and blocks with good
scores are preferred. Of many drafts, the one that earlier trials make most promising gets a short
trial. Of a few such candidates, the best in its trial becomes the next program. All trials are
written down for later generations.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import genome
from forecast import Forecast
from memory import TRIALS, recall, recall_trials
from operators import Workshop, plan

CANDIDATES = 3
NEW_KINDS = 2  # candidates with a combination of blocks and stages that was never tried
DRAFTS = 12
ATTEMPTS = 60
PROGRAM = "packing.py"

# Sizes that are in no task. A sum of radii grows with the root of n, so each sum is divided by it.
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
        """Write a new, checked packing program; report the changes and their reasons in the chat
        history.

        Args:
            repo_path: the repository to change.
            eval_path: the folder of evaluations of earlier generations; None means none.
            iterations_left: only written to the chat history.
        """
        repo = Path(repo_path)
        text = (repo / PROGRAM).read_text(encoding="utf-8")
        past = recall(eval_path, repo, PROGRAM)
        rng, origin = seeded(text, past)
        trials = recall_trials(eval_path)
        if past and text not in trials:  # no earlier generation tried the first program
            trials[text] = _trial(text, repo) or 0.0
        shop = Workshop(genome.load_library(Path(__file__).resolve().parent), _scored(past), rng)
        candidates = _candidates(repo, text, past, trials, shop)
        child, said, _ = max(candidates, key=lambda candidate: candidate[2])
        (repo / PROGRAM).write_text(child, encoding="utf-8")
        origin = f"- random numbers from: {origin}; iterations left: {iterations_left}"
        self._tell([origin, *_account(text, child, candidates, past, trials)])
        results = {other: trials[other] for other in (text,) if other in trials}
        results.update({other: result for other, _, result in candidates})
        Path(self.chat_history_file).with_name(TRIALS).write_text(
            json.dumps(results), encoding="utf-8"
        )
        return said

    def _tell(self, lines):
        path = Path(self.chat_history_file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("\n".join(["# Meta agent", "", *lines, ""]))


def seeded(text, past):
    """Return a random generator and a text about its seed: the run's seed and generation, else the
    content.

    Args:
        text: the current program.
        past: the known generations.
    """
    run, generation = os.environ.get("HYPERRUN_SEED"), os.environ.get("HYPERRUN_GENERATION")
    parts = [f"seed {run}" if run else "no seed"]
    parts.append(f"generation {generation}" if generation else f"{len(past)} generations known")
    if not (run and generation):
        parts.append("content " + hashlib.sha256(text.encode()).hexdigest()[:12])
    origin = ", ".join(parts)
    return random.Random(origin), origin


def _candidates(repo, text, past, trials, shop):
    """Return ``(text, sentences about the changes, trial result)`` of new programs that run.

    Each is the most promising of several drafts; if no trial is known, the first draft.
    """
    found, forecast = [], Forecast(shop.library, trials)
    known, count = {text, *trials, *(one.text for one in past)}, DRAFTS if trials else 1
    for number in range(CANDIDATES):
        kinds = forecast.kinds if trials and number < NEW_KINDS else ()
        drafts = _drafts(genome.parse(text), known, kinds, shop, count)
        for child, said in sorted(
            drafts.items(), key=lambda draft: -forecast.expect(genome.parse(draft[0]))
        ):
            known.add(child)
            result = _trial(child, repo)
            if result is not None:
                forecast.learn(genome.parse(child), result)
                found.append((child, said, result))
                break
    if not found:
        raise RuntimeError(
            f"none of {CANDIDATES} times {ATTEMPTS} attempts gave a new program that runs"
        )
    return found


def _drafts(parent, known, kinds, shop, count):
    """Return ``{text: sentences about the changes}`` of changed programs.

    Args:
        parent: the program to change.
        known: texts of programs that are not new.
        kinds: kinds of programs that are not wanted.
        shop: the library, the scores and the random generator.
        count: the largest number of drafts.
    """
    drafts = {}
    for _ in range(ATTEMPTS):
        program = parent.copy()
        said = [
            sentence for operator in plan(program, shop) if (sentence := operator(program, shop))
        ]
        child = genome.render(program)
        if said and child not in known and program.describe() not in kinds:
            drafts.setdefault(child, said)
        if len(drafts) == count:
            break
    return drafts


def _scored(past):
    """Return ``(name, score, program)`` of the generations with a score and a valid program."""
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
    """Return a program's result in a short trial, in its own process; None if it does not run."""
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


def _account(text, child, candidates, past, trials):
    """Return the lines of the chat history about this generation."""
    parent = next((one for one in reversed(past) if one.text == text), None)
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
    lines += ["", "## What was known", "", f"- {len(trials)} trials of programs"]
    return lines + [
        f"- generation {one.name} (from {one.parent}): training score {one.score}" for one in past
    ]
