"""Benchmarks of runs of the loop on a real Slurm with four nodes.

scripts/on-slurm .venv/bin/python -m tests.bench.cluster_runs [--runtime bubblewrap] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from hyperruntime.host.process import run_process
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.record import GenerationRecord
from tests.bench.measure import Row
from tests.bench.page import report
from tests.command import cli
from tests.doubles.fake_runtime import make_agent_repository

SLURM = '[cluster]\nprovider = "slurm"\nwalltime = "00:20:00"\naddress = "127.0.0.1"\ndrain_s = 0\n'
NODES, EACH, SLEEP_S = 4, 5, 10
STARTS = 5


def generate(
    folder: Path, runtime: str, name: str, last: int, parallel: int, *more: str
) -> list[GenerationRecord]:
    words = [
        "--runtime",
        runtime,
        "generate",
        "--domains=circle_packing",
        f"--agent={folder / 'agent'}",
    ]
    words += ["--seed", "5", "--eval-samples", "1", "--run-id", name, "--max-generation", str(last)]
    done = run_process(
        cli(*words, "--parallel", str(parallel), *more),
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        timeout_s=1200,
    )
    assert done.exit_code == 0, done.stderr.decode()
    return list(load_run(folder / "outputs" / f"generate_{name}").generations)


def started(record: GenerationRecord) -> float:
    return datetime.fromisoformat(record.started).timestamp()


@contextmanager
def queue_time() -> Iterator[list[float]]:
    """Note how long the first job of a block is pending, in seconds."""
    found, over = [0.0], threading.Event()

    def look() -> None:
        first = 0.0
        while not over.wait(0.1):  # a tenth of a core
            states = (
                run_process(["squeue", "--noheader", "--format=%T"], timeout_s=30)
                .stdout.decode()
                .split()
            )
            if states and not first:
                first = time.time()
            if first and "RUNNING" in states:
                found[0] = time.time() - first
                return

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield found
    finally:
        over.set()
        watching.join()


def start_row(folder: Path, runtime: str) -> Row:
    """From the command to the first generation's start, less what the first job waited in the
    queue.
    """
    times, waits, alone = [], [], []
    for number in range(STARTS):
        begin = time.time()
        with queue_time() as wait:
            (first,) = generate(folder, runtime, f"start{number}", 0, 1, "--cluster", "one.toml")
        times.append(started(first) - begin - wait[0])
        print(f"{times[-1]:.2f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        waits.append(wait[0])
        begin = time.time()
        (first,) = generate(folder, runtime, f"alone{number}", 0, 1)
        alone.append(started(first) - begin)
    took, here = statistics.median(times), statistics.median(alone)
    return Row(
        what="`generate --cluster` to the first generation's start, less "
        f"{statistics.median(waits):.1f} s of queue",
        value=took,
        unit="s",
        compared_to=f"without a cluster: {here:.1f} s",
        ratio=took / here,
        wanted="at most 3 s beyond the queue",
        holds=took <= 3,
    )


def rate_row(folder: Path, runtime: str) -> Row:
    """Generations an hour on four nodes, one at a time on each, and on one."""
    rates = []
    for name, nodes in (("one", 1), ("four", NODES)):
        records = generate(folder, runtime, name, EACH * nodes, nodes, "--cluster", f"{name}.toml")[
            1:
        ]
        last = max(started(record) + sum(record.durations.values()) for record in records)
        rates.append(len(records) / (last - min(map(started, records))) * 3600)
    return Row(
        what=f"generations an hour on {NODES} nodes, whose agents sleep {SLEEP_S} s",
        value=rates[1],
        unit="/h",
        compared_to=f"one node: {rates[0]:.0f}/h",
        ratio=rates[1] / rates[0],
        wanted="at least 3.6 times",
        holds=rates[1] >= 3.6 * rates[0],
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cluster_runs", description=__doc__)
    parser.add_argument("--runtime", default="bubblewrap", help="engine on the nodes")
    parser.add_argument("--only", choices=("start", "rate"), help="what to measure")
    parser.add_argument("--json", metavar="FILE", help="write the rows to this file")
    given = parser.parse_args()
    runtime = given.runtime
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sleeps = f"import time; time.sleep({SLEEP_S}); improve()"
        make_agent_repository(folder / "agent", dict.fromkeys(range(1, EACH * NODES + 1), sleeps))
        for name, count in (("one", 1), ("four", NODES)):
            (folder / f"{name}.toml").write_text(
                f"{SLURM}min_nodes = {count}\nmax_nodes = {count}\n"
            )
        measured = {"start": start_row, "rate": rate_row}
        chosen = [given.only] if given.only else measured
        rows = [measured[name](folder, runtime) for name in chosen]
    return report(f"Runs on Slurm, {runtime}", rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
