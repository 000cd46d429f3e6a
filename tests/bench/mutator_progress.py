"""Show how the shipped agent ``mutator`` improves: a small generate loop with git and without containers.

Usage: python tests/bench/mutator_progress.py [--generations 12] [--seeds 1 2 3] [--selection best]

Each generation is a clone of its parent's state in a temporary directory. ``run_meta_agent.py`` changes it and
``task_agent.py`` evaluates it, each in its own process, as the real loop does in containers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "domains")]

from hyperdomain_circle_packing import CirclePacking  # noqa: E402 - needs the line above
from hyperruntime.agents import copy_template  # noqa: E402 - likewise

AGENT = ROOT / "hyperruntime" / "agents" / "mutator"
RUN_TASK = (
    "import json, sys; from task_agent import TaskAgent; "
    "print(json.dumps(TaskAgent(None, None).forward(json.load(sys.stdin))[0]))"
)


@attrs.define(kw_only=True)
class Node:
    """One generation of a simulated run."""

    name: str
    parent: str | None
    commit: str
    train: float
    val: float
    sums: dict[int, float]
    meta_s: float
    eval_s: float
    children: int = 0


def git(folder: Path, *arguments: str, stdin: bytes | None = None) -> str:
    """Run git; return its output."""
    command = ["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", *arguments]
    done = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, check=True)
    return done.stdout.decode()


def evaluate(agent: Path, split: str, report: Path | None) -> tuple[float, dict[int, float]]:
    """Return the score of a split and the sum of radii per n; write the report if a path is given."""
    domain, scores = CirclePacking(), []
    for task in domain.tasks(split):
        command = [sys.executable, "-B", "-c", RUN_TASK]
        done = subprocess.run(command, cwd=agent, input=json.dumps(dict(task.inputs)).encode(), capture_output=True)
        prediction = json.loads(done.stdout) if done.returncode == 0 else None
        scores.append(domain.score(task, prediction))
    summary = domain.report(split, scores)
    if report:
        report.parent.mkdir(parents=True)
        report.write_text(json.dumps(summary))
    return summary["score"], {s.facts["n"]: s.facts.get("sum_of_radii", 0.0) for s in scores}


def select(nodes: Sequence[Node], rule: str, rng: random.Random) -> Node:
    """Return a parent by validation score: ``best``, or a sigmoid of it damped by the number of children."""
    if rule == "best":
        return max(nodes, key=lambda node: node.val)
    middle = statistics.fmean(sorted((node.val for node in nodes), reverse=True)[:3])
    weights = [1 / (1 + math.exp(-10 * (node.val - middle))) * math.exp(-((node.children / 8) ** 3)) for node in nodes]
    return rng.choices(nodes, weights)[0]


def next_generation(home: Path, run: Path, parent: Node, number: int, seed: int) -> Node:
    """Clone a parent, change and evaluate the clone, and commit it; return the child."""
    work, folder = home / f"work_{number}", run / f"gen_{number}"
    git(home, "clone", "-q", str(home / "root"), str(work))
    git(work, "checkout", "-q", parent.commit)
    outdir, started = folder / "agent_output", time.monotonic()
    subprocess.run(
        [sys.executable, "-B", "run_meta_agent.py", "--evals_folder", str(run), "--outdir", str(outdir),
         "--git_dir", str(work), "--base_commit", parent.commit],
        cwd=work, check=True,
        env={**os.environ, "HYPERRUN_SEED": f"{seed}", "HYPERRUN_GENERATION": f"{number}"},
    )  # fmt: skip
    patch, meta_s = (outdir / "model_patch.diff").read_bytes(), time.monotonic() - started
    git(work, "checkout", "-q", "-f", parent.commit)
    git(work, "apply", "-", stdin=patch)
    git(work, "add", "-A")
    git(work, "commit", "-qm", f"generation {number}")
    git(work, "push", "-q", "origin", f"HEAD:refs/heads/gen_{number}")
    return finish(work, folder, str(number), parent, meta_s)


def finish(work: Path, folder: Path, name: str, parent: Node | None, meta_s: float) -> Node:
    """Evaluate a committed state and return its node; the run keeps only the training report."""
    started = time.monotonic()
    train, _ = evaluate(work, "train", folder / "circle_packing_eval" / "report.json")
    val, sums = evaluate(work, "val", None)
    genid = parent.name if parent else None
    (folder / "metadata.json").write_text(json.dumps({"parent_genid": genid, "current_genid": name}))
    commit = git(work, "rev-parse", "HEAD").strip()
    eval_s = time.monotonic() - started
    return Node(name=name, parent=genid, commit=commit, train=train, val=val, sums=sums, meta_s=meta_s, eval_s=eval_s)


def simulate(generations: int, seed: int, rule: str, home: Path) -> list[Node]:
    """Return the generations of one run, the initial one first."""
    root, run, rng = home / "root", home / "run", random.Random(seed)
    copy_template("mutator", root)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "initial")
    nodes = [finish(root, run / "gen_initial", "initial", None, 0.0)]
    for number in range(1, generations + 1):
        parent = select(nodes, rule, rng)
        nodes.append(next_generation(home, run, parent, number, seed))
        parent.children += 1
        with (run / "archive.jsonl").open("a") as file:
            file.write(json.dumps({"current_genid": number, "archive": [node.name for node in nodes]}) + "\n")
    return nodes


def show(nodes: Sequence[Node], seed: int) -> None:
    """Print one line per generation, with its own figures and the best so far."""
    names = ("gen", "parent", "train", "val", "n=26", "n=32", "best 26", "meta s", "eval s")
    print(f"\nseed {seed}", " ".join(f"{name:>8}" for name in names), sep="\n")
    for index, node in enumerate(nodes):
        best = max(nodes[: index + 1], key=lambda one: one.val)
        figures = (
            node.train,
            node.val,
            node.sums[26],
            node.sums[32],
            best.sums[26],
            node.meta_s,
            node.eval_s,
        )
        print(f"{node.name:>8} {node.parent or '-':>8}", *(f"{figure:8.4f}" for figure in figures))


def main() -> None:
    """Simulate one run per seed and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--generations", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--selection", choices=["best", "score_child_prop"], default="score_child_prop")
    options = parser.parse_args()
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            show(simulate(options.generations, seed, options.selection, Path(folder)), seed)


if __name__ == "__main__":
    main()
