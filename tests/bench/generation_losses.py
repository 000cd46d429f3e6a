"""A run of 200 generations on a real Slurm that loses nodes and its head: what was lost, made twice, or left.

    scripts/on-slurm .venv/bin/python -m tests.bench.generation_losses [--losses 100] [--seed 1] [--runtime bubblewrap]

Nodes are lost by `scancel` and by SIGKILL of their node servers; the head is killed, and the run resumed. All counts
must be 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import attrs
import psutil

from hyperruntime.host.process import run_process, wait_until
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.testing import make_agent_repository
from tests.bench.__main__ import document
from tests.bench.cluster_runs import NODES, SLURM
from tests.bench.measure import Row, machine
from tests.slurm.conftest import containers, jobs, of_jobs, ready

KINDS = {"scancel": 5, "node server killed": 10, "head killed": 1}  # with their weights
RUN = "generate_lossy"


class Lossy:
    """A run whose head is started again each time it was killed."""

    def __init__(self, folder: Path, runtime: str, generations: int) -> None:
        """Make the agent and the configuration, and start the head."""
        self.folder = folder
        sleeps = "import time; time.sleep(1); improve()"
        make_agent_repository(folder / "agent", dict.fromkeys(range(1, generations + 1), sleeps))
        (folder / "tmp").mkdir()
        table = f'max_nodes = {NODES}\npatience_s = 5\nheartbeat_s = 1\nscratch = "{folder}/tmp"\n'
        (folder / "cluster.toml").write_text(SLURM + table)
        words = ["--runtime", runtime, "generate", "--domains", "circle_packing", "--agent", str(folder / "agent")]
        words += ["--seed", "5", "--eval-samples", "1", "--run-id", "lossy", "--max-generation", str(generations)]
        self._words = [*words, "--parallel", str(2 * NODES), "--cluster", "cluster.toml", "--resume-or-start"]
        self.head = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        env = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}
        line = [sys.executable, "-m", "hyperruntime.cli", *self._words]
        with (self.folder / "said").open("ab") as out:
            return subprocess.Popen(line, cwd=self.folder, env=env, stdout=out, stderr=out)

    def lose(self, kind: str, chance: random.Random) -> bool:
        """Lose something; return whether there was something to lose."""
        if kind == "head killed":
            self.head.kill()
            self.head.wait()
            self.head = self.start()
            return True
        nodes = ready(self.folder)
        if not nodes:
            return False
        node = chance.choice(nodes)
        if kind == "scancel":
            return run_process(["scancel", node["job"]], timeout_s=30).exit_code == 0
        with suppress(psutil.NoSuchProcess):
            psutil.Process(node["pid"]).kill()
            return True
        return False


def lose_and_count(folder: Path, runtime: str, generations: int, losses: int, seed: int) -> list[Row]:
    chance, kinds, begin = random.Random(seed), dict.fromkeys(KINDS, 0), time.monotonic()
    before = containers()
    run = Lossy(folder, runtime, generations)
    while sum(kinds.values()) < losses and run.head.poll() is None:
        time.sleep(chance.uniform(0, 2))
        kind = chance.choices(tuple(KINDS), tuple(KINDS.values()))[0]
        if run.lose(kind, chance):
            kinds[kind] += 1
            print(f"{time.monotonic() - begin:6.1f} s  {kind}", file=sys.stderr, flush=True)
    if (code := run.head.wait()) != 0:
        raise SystemExit(f"the run ended with exit code {code}:\n{(folder / 'said').read_text()[-3000:]}")
    took = time.monotonic() - begin
    assert wait_until(lambda: not jobs(), 120, 0.2), "jobs do not end"
    time.sleep(10)
    place = folder / "outputs" / RUN
    lines = [json.loads(line) for line in (place / "journal.jsonl").read_bytes().splitlines()]
    made = [str(line["current_genid"]) for line in lines if "current_genid" in line]
    wanted = {"initial", *map(str, range(1, generations + 1))}
    records = load_run(place).generations
    files = [*(folder / "tmp").iterdir(), *(place / "work").glob("*"), *(folder / "outputs").glob(".*")]
    left = [*of_jobs(), *(containers() - before), *map(str, files)]
    if left:
        print("left:", *left, sep="\n", file=sys.stderr)
    counts = {
        "generations lost": len(wanted - set(made)),
        "generations made twice": len(made) - len(set(made)),
        "generations that failed": sum(record.failure is not None for record in records),
        "processes, containers and files left 10 s after the last job": len(left),
    }
    told = ", ".join(f"{count} by {kind}" for kind, count in kinds.items())
    attempts = sum(record.attempts for record in records) - len(records)
    return [
        *(Row(what=name, value=count, unit="", wanted="0", holds=count == 0) for name, count in counts.items()),
        Row(what=f"losses, seed {seed}: {told}", value=sum(kinds.values()), unit=f"in {took:.0f} s"),
        Row(what=f"attempts that were lost, of {len(records)} generations", value=attempts, unit=""),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.generation_losses", description=__doc__)
    parser.add_argument("--runtime", default="bubblewrap", help="engine on the nodes")
    parser.add_argument("--generations", type=int, default=200, help="number of the last generation")
    parser.add_argument("--losses", type=int, default=100, help="nodes and heads to lose")
    parser.add_argument("--seed", type=int, default=1, help="of what is lost, and when")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        rows = lose_and_count(Path(place), given.runtime, given.generations, given.losses, given.seed)
    found = [attrs.asdict(row) for row in rows]
    print(document({"title": f"Losses, {given.runtime} on Slurm", "machine": machine(), "rows": found}))
    return 0 if all(row.holds is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
