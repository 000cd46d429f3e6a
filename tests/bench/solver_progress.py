"""Compare the agent ``solver`` with plain restarts of its own search; write the table of
docs/problems.md.

Usage: python tests/bench/solver_progress.py [--discrete] [--problems circles-26 ...]
[--seeds 1 2 3 4 5] [--evaluations 5] [--cpu-s 2] [--jobs 2] [--results FILE] [--write]

There are two tables: that of twelve problems of real numbers, and with ``--discrete`` that of all
other problems.

Both arms are the same program, with the same moves and optimisers and the same processor seconds in
the same number of evaluations. In the arm "solver", the meta agent writes the plans of each
evaluation from what the earlier ones found. In the arm "restarts", it changes only the seed. The
agent's files run as processes of the host. The domain verifies each answer, at tolerance 0. Results
are kept in the file of ``--results``, so an interrupted comparison continues.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "domains")]

from hyperdomain_math.table import PROBLEMS, verify  # noqa: E402 - needs the line above
from hyperruntime.agents import copy_template  # noqa: E402 - likewise

PAGE = ROOT / "docs" / "problems.md"
ARMS = ("solver", "restarts")
COMPARED = (
    "circles-26",
    "circles-32",
    "rectangle-21",
    "heilbronn-triangle-11",
    "heilbronn-convex-13",
    "heilbronn-convex-14",
    "ratio-16",
    "ratio-space-14",
    "autocorrelation-1",
    "autocorrelation-2",
    "autocorrelation-3",
    "overlap",
)
DISCRETE = tuple(name for name in PROBLEMS if name not in COMPARED)
SURE = 0.05
EQUAL = 1e-8
MARKS = ("<!-- table of solver_progress.py -->", "<!-- table of solver_progress.py --discrete -->")
END = "<!-- end of the table -->"
TOGETHER = 8  # problems in a process, which imports numpy and scipy once
# runs: the agent's own files, evaluation after evaluation, as the loop calls them
RUN = """
import json, os, sys, time
repo, folder, seed, count, cpu_s, *problems = sys.argv[1:]
sys.path.insert(0, repo)
os.environ["HYPERRUN_SEED"] = seed
from task_agent import TaskAgent
from meta_agent import MetaAgent
for problem in problems:
    answers, search_s, meta_s, evals = [], 0.0, 0.0, f"{folder}/{problem}"
    for number in range(int(count)):
        here = f"{evals}/gen_{number or 'initial'}/math_{problem}_eval/agent_evals"
        os.makedirs(here)
        os.environ["HYPERRUN_GENERATION"] = str(number)
        started = time.process_time()
        if number:
            MetaAgent(None, f"{evals}/history.md").forward(repo, evals)
        meta_s += time.process_time() - started
        started = time.process_time()
        task = {"name": problem, "seed": int(seed), "cpu_s": float(cpu_s)}
        answers.append(TaskAgent(None, f"{here}/{problem}.md").forward(task)[0])
        search_s += time.process_time() - started
    print(json.dumps({"answers": answers, "search_s": search_s, "meta_s": meta_s}), flush=True)
"""


def run(
    problems: Sequence[str], seed: int, arm: str, evaluations: int, cpu_s: float
) -> list[dict[str, Any]]:
    """Return for each problem the best value after each evaluation, and the processor seconds."""
    with tempfile.TemporaryDirectory() as folder:
        repo = Path(folder, "agent")
        copy_template("solver", repo)
        (repo / "settings.json").write_text(json.dumps({"memory": arm == "solver"}))
        arguments = [str(repo), folder, str(seed), str(evaluations), str(cpu_s), *problems]
        command = [sys.executable, "-B", "-c", RUN, *arguments]
        done = subprocess.run(command, capture_output=True, check=True)
    found = []
    for problem, line in zip(problems, done.stdout.splitlines(), strict=True):
        said = json.loads(line)
        asked = {"problem": problem, "seed": seed, "arm": arm, "cpu_s": cpu_s}
        best = best_values(problem, said.pop("answers"))
        found.append({**asked, "evaluations": evaluations, "best": best, **said})
    return found


def best_values(problem: str, answers: Sequence[Any]) -> list[float]:
    """Return the exact value of the best answer after each evaluation."""
    checked = cache(lambda text: verify(problem, json.loads(text)))
    values = [checked(json.dumps(answer)) for answer in answers]
    choose = max if PROBLEMS[problem].goal == "maximise" else min
    return [float(choose(values[: number + 1])) for number in range(len(values))]


def main() -> None:
    """Run what is missing in the results, print each run, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--discrete", action="store_true", help="the other problems and table")
    parser.add_argument("--problems", nargs="+", help="only these")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--evaluations", type=int, default=5)
    parser.add_argument("--cpu-s", type=float, default=2.0, help="of each evaluation")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--results", type=Path, default=Path("outputs/solver_progress.jsonl"))
    parser.add_argument("--write", action="store_true", help="write the table to docs/problems.md")
    asked = parser.parse_args()
    asked.problems = asked.problems or (DISCRETE if asked.discrete else COMPARED)
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    lines = asked.results.read_text().splitlines() if asked.results.is_file() else []
    budget = (asked.evaluations, asked.cpu_s)
    stored = [json.loads(line) for line in lines]
    known = [
        one
        for one in stored
        if (one["evaluations"], one["cpu_s"]) == budget and one["problem"] in asked.problems
    ]
    had = {(one["problem"], one["seed"], one["arm"]) for one in known}
    with ThreadPoolExecutor(asked.jobs) as pool, asked.results.open("a") as file:
        runs = [
            pool.submit(run, some, seed, arm, asked.evaluations, asked.cpu_s)
            for seed in asked.seeds
            for first in range(0, len(asked.problems), TOGETHER)
            for arm in ARMS
            if (
                some := [
                    name
                    for name in asked.problems[first : first + TOGETHER]
                    if (name, seed, arm) not in had
                ]
            )
        ]
        for done in as_completed(runs):
            if done.exception():
                pool.shutdown(cancel_futures=True)
            for found in done.result():
                known.append(found)
                file.write(json.dumps(found) + "\n")
                print(found["problem"], found["seed"], found["arm"], found["best"], flush=True)
            file.flush()
    table = "\n".join(rows(known, asked.problems))
    print(table)
    if asked.write:
        mark = MARKS[asked.discrete]
        before, _, rest = PAGE.read_text().partition(mark)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{mark}\n{table}\n{END}{after}")


def rows(known: Sequence[Mapping[str, Any]], problems: Sequence[str]) -> list[str]:
    """Return the table of all problems with results, and a sentence about it."""
    table = [
        "| problem | published | baseline | restarts | solver | better | p | passed | seeds | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    wins = equal = 0
    for name in problems:
        mine, other = (
            [one for one in known if (one["problem"], one["arm"]) == (name, arm)] for arm in ARMS
        )
        if mine and other:
            cells = row(name, mine, other)
            wins += cells[5].startswith("yes")
            equal += cells[5] == "equal"
            table.append(f"| {' | '.join(cells)} |")
    share = sum(one["meta_s"] for one in known) / max(sum(one["search_s"] for one in known), 1e-9)
    evaluations = max((len(one["best"]) for one in known), default=0)
    text = (
        f"Medians of runs of {evaluations} evaluations. *passed*: the evaluation in which the solver "
        f"passed the median of the restarts' ends. *CPU s*: processor seconds of a run. The solver is "
        f"better on {wins} of {len(table) - 2} problems, and equal on {equal}. {signs(known)} Writing its plans took "
        f"{100 * share:.2f} % of the processor time of the searches."
    )
    return [*table, "", *textwrap.wrap(text, 120)]


def signs(known: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence about the pairs of runs with the same problem and seed, by a sign test."""
    from scipy.stats import binomtest

    ends = {(one["problem"], one["seed"], one["arm"]): one["best"][-1] for one in known}
    gaps = [
        (value - ends[name, seed, ARMS[1]]) * (1 if PROBLEMS[name].goal == "maximise" else -1)
        for (name, seed, arm), value in ends.items()
        if arm == ARMS[0] and (name, seed, ARMS[1]) in ends
    ]
    better, worse = sum(gap > EQUAL for gap in gaps), sum(gap < -EQUAL for gap in gaps)
    p = float(binomtest(better, max(1, better + worse), alternative="greater").pvalue)
    equal = len(gaps) - better - worse
    return (
        f"In pairs of runs with the same seed it is better {better} times, worse {worse} times, and "
        f"equal {equal} times (one-sided sign test: p = {p:.2g})."
    )


def row(
    name: str, mine: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return the cells of a problem."""
    problem = PROBLEMS[name]
    larger = problem.goal == "maximise"
    baseline = float(problem.verify(json.loads(json.dumps(problem.baseline()))))
    ends = [[one["best"][-1] for one in arm] for arm in (mine, other)]
    medians = [statistics.median(end) for end in ends]
    word, p = verdict(ends[0], ends[1], larger=larger)
    passed = statistics.median(_first(one["best"], medians[1], larger=larger) for one in mine)
    seconds = statistics.median(one["search_s"] for one in (*mine, *other))
    return [
        f"`{name}`", problem.record, f"{baseline:.6g}", f"{medians[1]:.10g}", f"{medians[0]:.10g}",
        word, f"{p:.3f}", f"{passed:g}" if word.startswith("yes") else "-", str(min(len(mine), len(other))),
        f"{seconds:.1f}",
    ]  # fmt: skip


def _first(best: Sequence[float], aim: float, *, larger: bool) -> int:
    """Return the number of the first evaluation that passed a value; one more if none did."""
    found = (k for k, value in enumerate(best, 1) if (value > aim if larger else value < aim))
    return next(found, len(best) + 1)


def verdict(mine: Sequence[float], other: Sequence[float], *, larger: bool) -> tuple[str, float]:
    """Return whether the median of the first is better or equal, and the p of the one-sided
    test.
    """
    from scipy.stats import mannwhitneyu

    sign = 1 if larger else -1
    gap = sign * (statistics.median(mine) - statistics.median(other))
    p = float(mannwhitneyu(mine, other, alternative="greater" if larger else "less").pvalue)
    if gap <= EQUAL:
        return "no" if gap < -EQUAL else "equal", p
    return ("yes" if p < SURE else "yes, not sure"), p


if __name__ == "__main__":
    main()
