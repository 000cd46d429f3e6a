"""Runs on a real Slurm that lose nodes and their head: what was lost, made twice, left, or paid
twice.

    scripts/on-slurm .venv/bin/python -m tests.bench.losses [--losses 100] [--seed 1] [--runtime
    bubblewrap]
                                                            [--only generations|trajectories]
                                                            [--count N] [--json FILE]

Jobs are lost by `scancel`, node servers by SIGKILL, and nodes as when their power fails: Slurm's
daemon and all processes of the job are killed at the same time. The head is killed, and the run
resumed. All counts must be 0, but that of calls in flight at the head's death: only the model's
server could know that they are the same. What is left is looked for once, after the last job: node
servers that come later remove what killed ones left on their machine, and all nodes are one machine
here.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from hyperruntime.host.process import run_process, wait_until
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES as LINES
from hyperruntime.rollout.run_files.run_dir import read_trajectories
from hyperruntime.rollout.run_files.turn_journal import TURNS
from hyperruntime.testing.model import ModelReply, scripted_model
from tests.bench.cluster_runs import NODES, SLURM
from tests.bench.measure import Row
from tests.bench.page import report
from tests.doubles.fake_runtime import make_agent_repository
from tests.e2e.rollout_world import WORLD
from tests.e2e.test_rollout import number_of
from tests.e2e.test_rollout_nodes import TURNS_EACH, counting
from tests.slurm.conftest import containers, jobs, of_jobs, ready, sockets_of_python

# with their weights
KINDS = {"scancel": 4, "node server killed": 8, "node killed": 3, "head killed": 2}
HYPERRUN = (sys.executable, "-m", "hyperruntime.cli")
COUNTS = {"generations": 200, "trajectories": 1000}


class Lossy:
    """A run whose head is started again each time it was killed."""

    def __init__(self, folder: Path, words: Sequence[str], again: Sequence[str] = ()) -> None:
        """Write the configuration, and start the head.

        Args:
            folder: where it runs.
            words: the command, without ``hyperrun``; the first two name the engine.
            again: the command that goes on with the run; none: the same.
        """
        self.folder = folder
        (folder / "tmp").mkdir()
        table = f'max_nodes = {NODES}\npatience_s = 5\nheartbeat_s = 1\nscratch = "{folder}/tmp"\n'
        # more nodes than it may use: those that boot are missing for a while
        table += 'partition = "wide"\n'
        (folder / "cluster.toml").write_text(SLURM + table)
        self._words, self._again = words, again or words
        self.deaths: list[float] = []  # of heads, by the monotonic clock
        self._env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        made = run_process(
            [*HYPERRUN, *words[:2], "image", "bootstrap"], env=self._env, timeout_s=600
        )
        assert made.exit_code == 0, made.stderr.decode()
        self.head = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start the head."""
        with (self.folder / "said").open("ab") as out:
            line = [*HYPERRUN, *self._words]
            return subprocess.Popen(line, cwd=self.folder, env=self._env, stdout=out, stderr=out)

    def lose(self, kind: str, chance: random.Random) -> bool:
        """Lose something; return whether there was something to lose. A head without a node has
        nothing to lose.
        """
        nodes = ready(self.folder)
        if not nodes:
            return False
        if kind == "head killed":
            self.head.kill()
            self.head.wait()
            self.deaths.append(time.monotonic())
            self._words = self._again
            self.head = self.start()
            return True
        node = chance.choice(nodes)
        if kind == "scancel":
            return run_process(["scancel", node["job"]], timeout_s=30).exit_code == 0
        if kind == "node killed":
            # `scripts/on-slurm` reads it, as root
            Path(os.environ["SLURM_CONF"]).with_name("lose").write_text(f"{node['host']}\n")
            return True
        with suppress(psutil.NoSuchProcess):
            psutil.Process(node["pid"]).kill()
            return True
        return False


def lose(run: Lossy, losses: int, seed: int) -> tuple[Row, list[object]]:
    """Lose nodes and heads of a run, so many times, and wait for its end; return what was lost, and
    what is left.
    """
    chance, kinds, begin = random.Random(seed), dict.fromkeys(KINDS, 0), time.monotonic()
    before, sockets = containers(), sockets_of_python()
    while sum(kinds.values()) < losses and run.head.poll() is None:
        time.sleep(chance.uniform(0, 2))
        kind = chance.choices(tuple(KINDS), tuple(KINDS.values()))[0]
        if run.lose(kind, chance):
            kinds[kind] += 1
            print(f"{time.monotonic() - begin:6.1f} s  {kind}", file=sys.stderr, flush=True)
    if (code := run.head.wait()) != 0:
        raise SystemExit(
            f"the run ended with exit code {code}:\n{(run.folder / 'said').read_text()[-3000:]}"
        )
    took = time.monotonic() - begin
    # Slurm asks a node that is away again after some minutes
    assert wait_until(lambda: not jobs(), 400, 0.2), "jobs do not end"
    time.sleep(10)
    left: list[object] = [
        *of_jobs(),
        *(containers() - before),
        *map(str, (run.folder / "tmp").iterdir()),
    ]
    left += sockets_of_python() - sockets
    told = ", ".join(f"{count} by {kind}" for kind, count in kinds.items())
    total = sum(kinds.values())
    what, unit = f"losses, seed {seed}: {told}", f"in {took:.0f} s"
    return Row(what=what, value=total, unit=unit, wanted=str(losses), holds=total >= losses), left


def zero(counts: Mapping[str, int]) -> list[Row]:
    return [
        Row(what=name, value=count, unit="", wanted="0", holds=count == 0)
        for name, count in counts.items()
    ]


def generation_rows(folder: Path, runtime: str, count: int, losses: int, seed: int) -> list[Row]:
    sleeps = "import time; time.sleep(1); improve()"
    make_agent_repository(folder / "agent", dict.fromkeys(range(1, count + 1), sleeps))
    words = [
        "--runtime",
        runtime,
        "generate",
        "--domains=circle_packing",
        f"--agent={folder / 'agent'}",
    ]
    words += ["--seed=5", "--eval-samples=1", "--run-id=lossy", f"--max-generation={count}"]
    words += ["--parallel", str(2 * NODES), "--cluster", "cluster.toml", "--resume-or-start"]
    lost, left = lose(Lossy(folder, words), losses, seed)
    place = folder / "outputs" / "generate_lossy"
    left += [*map(str, (place / "work").glob("*")), *map(str, (folder / "outputs").glob(".*"))]
    lines = [json.loads(line) for line in (place / "journal.jsonl").read_bytes().splitlines()]
    made = [str(line["current_genid"]) for line in lines if "current_genid" in line]
    wanted = {"initial", *map(str, range(1, count + 1))}
    records = load_run(place).generations
    print(*left, sep="\n", file=sys.stderr)
    counts = {
        "generations lost": len(wanted - set(made)),
        "generations made twice": len(made) - len(set(made)),
        "generations that failed": sum(record.failure is not None for record in records),
        "processes, containers and files left 10 s after the last job": len(left),
    }
    attempts = sum(record.attempts for record in records) - len(records)
    what = f"attempts that were lost, of {len(records)} generations"
    return [*zero(counts), lost, Row(what=what, value=attempts, unit="")]


_ANSWER_S = 0.05
_WAY_S = 1.0  # of an answer to the head's journal


class Watched:
    """A model that counts the calls that are asked again, by their causes.

    Attributes:
        deaths: when heads were killed, by the monotonic clock.
        asked: all calls.
        repeated: those whose turn a journal has, or that no death of a head explains: paid twice.
        in_flight: those that a head had asked when it was killed.
        anew: those with another conversation for a turn that a journal has: what a command said was
            void, because the batch system ended its job.
    """

    def __init__(self, run_dir: Path) -> None:
        """Have been asked nothing."""
        self.deaths: Sequence[float] = ()
        self.asked = self.repeated = self.in_flight = self.anew = 0
        self._run_dir = run_dir
        # when a conversation was asked last, and when its answer was on its way to the journal
        self._last: dict[str, tuple[float, float]] = {}

    def __call__(self, request: Mapping[str, Any]) -> ModelReply:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        conversation = json.dumps(request["messages"], sort_keys=True)
        self.asked += 1
        is_known = self._known(f"n{number_of(request)}/0") > turn
        before = self._last.get(conversation)
        if before is None:
            self.anew += is_known
        elif is_known or not any(before[0] < death < before[1] for death in self.deaths):
            self.repeated += 1
        else:
            self.in_flight += 1
        started = time.monotonic()
        time.sleep(_ANSWER_S)
        self._last[conversation] = (started, time.monotonic() + _WAY_S)
        return counting(request)

    def _known(self, trajectory: str) -> int:
        """Return how many turns of a trajectory are in its journal."""
        for path in (self._run_dir / TURNS).glob("*"):
            with suppress(OSError, ValueError):
                head, *lines = path.read_bytes().splitlines(keepends=True)
                if json.loads(head)["trajectory"] == trajectory:
                    whole = [line for line in lines if line.endswith(b"\n")]
                    return sum(line.startswith(b'{"is":"turn"') for line in whole)
        return 0


def trajectory_rows(folder: Path, runtime: str, count: int, losses: int, seed: int) -> list[Row]:
    run_dir = folder / "run"
    watched = Watched(run_dir)
    with scripted_model(watched) as model:
        words = ["--runtime", runtime, "rollout", "run"]
        first = ["--environment", WORLD, "--option", f"count={count}", "--parallel", str(4 * NODES)]
        first += ["--seed", "5", "--model", "m", "--base-url", model.url, "--output-dir", "run"]
        again = ["--resume-from", "run"]
        on_nodes = ["--cluster", "cluster.toml"]
        run = Lossy(folder, [*words, *first, *on_nodes], [*words, *again, *on_nodes])
        watched.deaths = run.deaths
        lost, left = lose(run, losses, seed)
    ids = [json.loads(line)["id"] for line in (run_dir / LINES).read_bytes().splitlines()]
    made = read_trajectories(run_dir)
    print(*left, sep="\n", file=sys.stderr)
    counts = {
        "trajectories lost": count - len(set(ids)),
        "trajectories recorded twice": len(ids) - len(set(ids)),
        "trajectories without the right reward": sum(each.reward != 1.0 for each in made),
        "model calls paid twice": watched.repeated,
        "processes, containers and files left 10 s after the last job": len(left),
    }
    needed = count * (TURNS_EACH + 1)
    what = f"model calls for {count} trajectories"
    void = "model calls after commands whose job the batch system ended, asked again"
    return [
        *zero(counts),
        lost,
        Row(what=void, value=watched.anew, unit=""),
        Row(
            what="model calls in flight at a head's death, asked again",
            value=watched.in_flight,
            unit="",
        ),
        Row(
            what=what,
            value=watched.asked,
            unit="",
            compared_to=f"without a loss: {needed}",
            ratio=watched.asked / needed,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.losses", description=__doc__)
    parser.add_argument("--runtime", default="bubblewrap", help="engine on the nodes")
    parser.add_argument("--losses", type=int, default=100, help="nodes and heads to lose")
    parser.add_argument("--seed", type=int, default=1, help="of what is lost, and when")
    parser.add_argument(
        "--count", type=int, help="generations or trajectories; by default 200 and 1000"
    )
    parser.add_argument("--only", choices=("generations", "trajectories"), help="which runs")
    parser.add_argument("--json", metavar="FILE", help="write the rows to this file")
    given = parser.parse_args()
    rows: list[Row] = []
    for name, measure in (("generations", generation_rows), ("trajectories", trajectory_rows)):
        if given.only in (None, name):
            with tempfile.TemporaryDirectory() as place:
                count = given.count or COUNTS[name]
                rows += measure(Path(place), given.runtime, count, given.losses, given.seed)
    return report(f"Runs that lose nodes and heads, {given.runtime} on Slurm", rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
