"""Show what its memory is worth to the shipped agent ``mutator``: generations to a score, with and
without it.

Usage: python tests/bench/mutator_progress.py [--generations 12] [--seeds 1 2 3] [--score 0.97 0.98]
[--jobs 2]

Each run is the generate loop of ``hyperrun demo``, with commands on the host in place of
containers: the same clones, the same evaluations folder, the same choice of parents, three trials
in a generation. "Without" is the same agent whose ``memory.py`` knows nothing. Work is counted in
pair evaluations, so the machine's load changes no score.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "domains")]

from hyperruntime.agents import copy_template  # noqa: E402 - needs the line above
from hyperruntime.git.command import git  # noqa: E402 - likewise
from hyperruntime.loop.run.plan import plan_run  # noqa: E402 - likewise
from hyperruntime.loop.run.run import start_run  # noqa: E402 - likewise
from hyperruntime.loop.run_files.options import GenerateOptions  # noqa: E402 - likewise
from tests.doubles.fake_runtime import FakeRuntime  # noqa: E402 - likewise

NO_MEMORY = """

def recall(evals_folder, repo_path, program=None):
    return []


def recall_trials(evals_folder):
    return {}
"""
ARMS = ("with memory", "without")
Results = Mapping[int, Sequence[float]]


def scores(agent: str, generations: int, seed: int) -> list[float]:
    """Return the best score after each generation of one run, the initial agent's first."""
    with tempfile.TemporaryDirectory() as folder:
        options = GenerateOptions(
            domains="circle_packing",
            agent=agent,
            max_generation=generations,
            seed=seed,
            output_dir_parent=folder,
        )
        found = [
            record.score or 0.0
            for record in start_run(FakeRuntime(), plan_run(options)).generations
        ]
    return [max(found[: number + 1]) for number in range(len(found))]


def without_memory(folder: Path) -> str:
    """Make a repository of the agent that knows no earlier generation; return its path."""
    copy_template("mutator", folder)
    with (folder / "memory.py").open("a") as file:
        file.write(NO_MEMORY)
    git(["init", "-q", str(folder)])
    git(["-C", str(folder), "add", "--all"])
    git(["-C", str(folder), "commit", "-q", "-m", "without memory"])
    return str(folder)


def reached(best: Sequence[float], score: float) -> int:
    """Return the first generation with a score; one more than there are if none has it."""
    return next((number for number, value in enumerate(best) if value >= score), len(best))


def main() -> None:
    """Run all seeds of both arms; print the generations to the score, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--generations", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 17)))
    parser.add_argument("--score", type=float, nargs="+", default=[0.96, 0.97, 0.98, 0.985, 0.99])
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.jobs) as pool:
        agents = {"with memory": "mutator", "without": without_memory(Path(folder, "agent"))}
        runs = {
            pool.submit(scores, agents[arm], asked.generations, seed): (arm, seed)
            for seed in asked.seeds
            for arm in ARMS
        }
        print(f"{'seed':>6} {'arm':>12}  best score after 0, 1, 2, ... generations", flush=True)
        for run in as_completed(runs):
            (arm, seed), best = runs[run], run.result()
            print(f"{seed:>6} {arm:>12} ", *(f"{value:.4f}" for value in best), flush=True)
    mine, other = (
        {seed: run.result() for run, (name, seed) in runs.items() if name == arm} for arm in ARMS
    )
    compare(mine, other, asked.score, asked.generations)


def compare(mine: Results, other: Results, wanted: Sequence[float], generations: int) -> None:
    """Print the medians of both arms side by side, and the seeds on which each is sooner or
    better.
    """
    print(
        f"\nmedian of generations to a score, {len(mine)} seeds ({generations + 1}: not reached "
        f"in {generations})"
    )
    print(f"{'score':>8} {ARMS[0]:>12} {ARMS[1]:>12}  seeds: {ARMS[0]} sooner, later, equal")
    for score in wanted:
        pairs = [(reached(mine[seed], score), reached(other[seed], score)) for seed in mine]
        print(f"{score:>8} {_row(pairs)}  {_wins([(late, soon) for soon, late in pairs])}")
    pairs_at_end = [(mine[seed][-1], other[seed][-1]) for seed in mine]
    print(f"{'at end':>8} {_row(pairs_at_end)}  {_wins(pairs_at_end)} (higher, lower, equal)")


def _row(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{statistics.median(arm):>12.5g}" for arm in zip(*pairs, strict=True))


def _wins(pairs: Sequence[tuple[float, float]]) -> str:
    wins, losses = sum(one > two for one, two in pairs), sum(one < two for one, two in pairs)
    return f"{wins}, {losses}, {len(pairs) - wins - losses}"


if __name__ == "__main__":
    main()
