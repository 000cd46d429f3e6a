"""The meta agent: writes the plans of the next generation from what all earlier ones found.

The search continues its chains, and knows the best answers of earlier ones. The tries go to the
moves that gained most in a processor second, and the size of changes follows those that gained.
Each move keeps a small share, because one that does not pay now may pay later.
"""

import hashlib
import json
import math
import os
from pathlib import Path

from memory import recall
from plans import read_plan, write_plan
from search_pool import KEPT

FADE = 0.7  # the weight of a generation beside the next one
PRIOR_S = 1.0  # processor seconds at the mean rate that each move has in advance
PRIOR_SIZES = 3
LEAST_SHARE = 0.04
SETTINGS = "settings.json"


class MetaAgent:
    """Writes ``plans/`` of an agent repository."""

    def __init__(self, model, chat_history_file):
        self.chat_history_file = chat_history_file

    def forward(self, repo_path, eval_path, iterations_left=None):
        """Write a plan for each problem that was tried, and the reasons in the chat history.

        Args:
            repo_path: the repository to change.
            eval_path: the folder of evaluations of earlier generations; None means none.
            iterations_left: only written to the chat history.
        """
        repo = Path(repo_path)
        settings = json.loads((repo / SETTINGS).read_text("utf-8"))
        seed = next_seed(repo)
        lines = ["# Meta agent", "", f"- seed {seed}, iterations left: {iterations_left}"]
        for problem, histories in recall(eval_path).items():
            plan = {**read_plan(repo, problem), "seed": seed}
            if settings["memory"]:
                plan = improved(plan, histories)
            write_plan(repo, problem, plan)
            lines += ["", f"## {problem}", "", *account(plan, histories)]
        path = Path(self.chat_history_file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
        return lines


def next_seed(repo):
    """Return a seed from the run's seed and generation, else from the plans."""
    parts = [os.environ.get(f"HYPERRUN_{name}", "") for name in ("SEED", "GENERATION")]
    parts += [] if all(parts) else [path.read_text("utf-8") for path in repo.glob("plans/*.json")]
    return int(hashlib.sha256("/".join(parts).encode()).hexdigest()[:8], 16)


def improved(plan, histories):
    """Return the plan that spends tries, and makes changes, as they paid so far."""
    moves = {}
    for age, history in enumerate(reversed(histories)):
        for name, one in history["moves"].items():
            known = moves.setdefault(name, {"tries": 0.0, "seconds": 0.0, "gains": 0.0})
            for key in known:
                known[key] += FADE**age * one[key]
    sizes = [size for one in histories[-1]["moves"].values() for size in one["sizes"]]
    factor = math.exp(sum(map(math.log, sizes)) / (len(sizes) + PRIOR_SIZES))
    return {
        "seed": plan["seed"],
        "size": round(plan["size"] * factor, 4),
        "moves": shares(moves),
        "answers": best_answers(histories),
        "chains": histories[-1]["chains"],
    }


def shares(moves):
    """Return each move's share of the tries: its gains in a second, divided by the cost of a try.

    Args:
        moves: the ``tries``, ``seconds`` and ``gains`` of each move.
    """
    tries, seconds, gains = (
        sum(one[key] for one in moves.values()) for key in ("tries", "seconds", "gains")
    )
    mean, cost = (gains + 0.1) / max(seconds, 1e-3), seconds / max(tries, 1)
    worth = {}
    for name, one in moves.items():
        rate = (one["gains"] + mean * PRIOR_S) / (one["seconds"] + PRIOR_S)
        worth[name] = rate * (one["tries"] + 1) / max(one["seconds"] + cost, 1e-6)
    total = sum(worth.values())
    return {name: round(max(LEAST_SHARE, one / total), 3) for name, one in worth.items()}


def best_answers(histories):
    """Return the best answer of each chain of all generations; the best chains, by their names."""
    best = {}
    for history in histories:
        for merit, answer, chain in history["answers"]:
            if chain not in best or merit > best[chain][0]:
                best[chain] = (merit, answer)
    chains = sorted(best, key=lambda chain: -best[chain][0])[:KEPT]
    return [[chain, best[chain][1]] for chain in chains]


def account(plan, histories):
    """Return the lines of the chat history about one problem."""
    best = [history["answers"][0][0] for history in histories]
    lines = [f"- best merit of each generation: {', '.join(f'{value:.10g}' for value in best)}"]
    lines.append(f"- chains that continue: {', '.join(one[0] for one in plan['chains']) or 'none'}")
    lines += [f"- size of changes {plan['size']}, {len(plan['answers'])} answers known"]
    return lines + [f"- share of {name}: {share}" for name, share in plan["moves"].items()]
