"""Show what its memory is worth to the shipped agent ``mutator``: generations to a score, with and without it.

Usage: python tests/bench/mutator_progress.py [--generations 20] [--seeds 1 2 3] [--score 0.97 0.99] [--jobs 2]

Each run is the generate loop of ``hyperrun demo``, with commands on the host in place of containers: the same clones,
the same evaluations folder, the same choice of parents. "Without" is the same agent whose ``memory.py`` knows nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "domains")]

from hyperruntime.agents import copy_template  # noqa: E402 - needs the line above
from hyperruntime.git.command import git  # noqa: E402 - likewise
from hyperruntime.loop.run.plan import plan_run  # noqa: E402 - likewise
from hyperruntime.loop.run.run import start_run  # noqa: E402 - likewise
from hyperruntime.loop.run_files.options import GenerateOptions  # noqa: E402 - likewise
from hyperruntime.testing import FakeRuntime  # noqa: E402 - likewise

NO_MEMORY = "\n\ndef recall(evals_folder, repo_path, program=None):\n    return []\n"
ARMS = ("with memory", "without")


def scores(agent: str, generations: int, seed: int) -> list[float]:
    """Return the best score after each generation of one run, the initial agent's first."""
    with tempfile.TemporaryDirectory() as folder:
        options = GenerateOptions(
            domains="circle_packing", agent=agent, max_generation=generations, seed=seed, output_dir_parent=folder
        )
        found = [record.score or 0.0 for record in start_run(FakeRuntime(), plan_run(options)).generations]
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
    parser.add_argument("--generations", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 10)))
    parser.add_argument("--score", type=float, nargs="+", default=[0.95, 0.97, 0.98, 0.99])
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
    print(f"\nmedian over {len(asked.seeds)} seeds: generations to a score ({asked.generations + 1}: not reached)")
    for arm in ARMS:
        results = [run.result() for run, (name, _) in runs.items() if name == arm]
        medians = (statistics.median(reached(best, score) for best in results) for score in asked.score)
        last = statistics.median(best[-1] for best in results)
        shown = ", ".join(f"{number:g} to {score}" for number, score in zip(medians, asked.score, strict=True))
        print(f"{arm:>12}: {shown}; best score at the end {last:.4f}")


if __name__ == "__main__":
    main()
