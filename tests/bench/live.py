"""The cost of a live page: a run of the loop alone, and the same with a hundred viewers.

.venv/bin/python -m tests.bench.live [--generations 5] [--rounds 12] [--viewers 100]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import attrs

from hyperruntime.images.recipes import BASE, image_reference
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.report.live.followed import FollowedRun
from hyperruntime.report.page.trajectories import RolloutRun
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES
from hyperruntime.runtime import open_runtime
from hyperruntime.secrets.known import Secrets
from tests.bench.generations import new_run
from tests.bench.measure import Row, machine
from tests.bench.page import document
from tests.command import cli
from tests.doubles.fake_runtime import make_agent_repository
from tests.doubles.shown_runs import grow, loop_run, rollout_run

SLEEP_S = 1.0  # of the agent: far less than a model needs, so the server has much to do
READY = "ready"
POSITION = re.compile(r'id="position">"([^"]+)"')


@attrs.frozen
class Server:
    """``hyperrun watch`` as ``--watch`` starts it, with its viewers.

    Attributes:
        process: the server.
        viewers: the process of all viewers.
    """

    process: subprocess.Popen[str]
    viewers: subprocess.Popen[str]

    @classmethod
    def start(cls, run: str, viewers: int) -> Server:
        """Start both, and return when every viewer is connected."""
        words = cli("watch", run, "--with-parent")
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        client = [
            sys.executable,
            "-m",
            "tests.bench.live",
            "--view",
            address,
            "--viewers",
            str(viewers),
        ]
        watching = subprocess.Popen(client, stdout=subprocess.PIPE, text=True)
        assert watching.stdout is not None
        assert watching.stdout.readline().strip() == READY
        return cls(process, watching)

    def processor_s(self) -> float:
        """Return the processor seconds of the server until now."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> int:
        """End both; return the number of events that all viewers got together."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
        out, _ = self.viewers.communicate(timeout=30)
        for stream in (self.process.stdout, self.viewers.stdout):
            if stream is not None:
                stream.close()
        return int(out.split()[-1])


async def view(address: str, viewers: int) -> None:
    """Load a page, and read its events with many connections until the server ends; print how many
    came.
    """
    os.nice(19)  # viewers are elsewhere; their own time is not a cost of the run
    parts, count = urlsplit(address), 0

    with urlopen(address) as page:
        found = POSITION.search(page.read().decode())
    assert found is not None

    async def one() -> None:
        nonlocal count
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
        writer.write(
            f"GET {parts.path}events?after={found[1]} HTTP/1.1\r\nHost: "
            f"{parts.netloc}\r\n\r\n".encode()
        )
        while line := await reader.readline():
            if line.startswith(b"event: news"):
                count += 1
                if count == viewers:
                    print(READY, flush=True)
        writer.close()

    await asyncio.gather(*(one() for _ in range(viewers)))
    print(count)


def generations(run: str, more: int) -> float:
    """Make more generations of a run in a process of its own; return the seconds that it takes."""
    last = len(load_run(run).generations) - 1 + more
    begin = time.monotonic()
    words = cli(
        "resume",
        run,
        f"--max-generation={last}",
        "--json",
    )
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - begin


def run_rows(more: int, rounds: int, viewers: int) -> list[Row]:
    """Measure a real run, alone and with viewers, in short rounds of both; each round is a pair, in
    changing order.
    """
    pairs, used, events = list[dict[bool, float]](), list[float](), 0
    with tempfile.TemporaryDirectory() as folder, open_runtime() as runtime:
        runtime.images.ensure(BASE)
        numbers = range(1, 1 + more * rounds * 2 + 1)
        sleep = f"import time; time.sleep({SLEEP_S}); improve()"
        make_agent_repository(Path(folder, "agent"), dict.fromkeys(numbers, sleep))
        run = new_run(runtime, image_reference(BASE), folder, "run", max_generation=1)
        for number in range(rounds):
            took = dict[bool, float]()
            for is_watched in (number % 2 == 1, number % 2 == 0):
                if not is_watched:
                    took[False] = generations(run, more)
                    continue
                server = Server.start(run, viewers)
                before = server.processor_s()
                took[True] = generations(run, more)
                used.append((server.processor_s() - before) / took[True])
                events += server.end()
            pairs.append(took)
    return [
        paired_row(pairs, f"{more} generations with {viewers} viewers, of {events // (viewers * rounds)} "
            "events each"),
        Row(
            what="processor time of the server, for each second of the run", value=statistics.median(used) * 1e3,
            unit="ms", wanted="at most 10 ms, 1 %", holds=statistics.median(used) <= 0.01,
        ),
    ]  # fmt: skip


def paired_row(pairs: Sequence[Mapping[bool, float]], what: str) -> Row:
    """Return how much longer a run with viewers takes, as the median of the differences within each
    pair.

    It is a figure of this machine and this run. It bounds the cost only as closely as the middle
    half of the differences says, which is in the row too.
    """
    more = [pair[True] / pair[False] - 1 for pair in pairs]
    low, middle, high = (
        statistics.quantiles(more, n=4, method="inclusive") if len(more) > 1 else more * 3
    )
    plain = statistics.median(pair[False] for pair in pairs)
    return Row(
        what=what, value=middle * 100, unit="% longer",
        compared_to=f"alone: {plain:.1f} s; half of {len(more)} differences are between {low:+.1%} and "
            f"{high:+.1%}",
        ratio=1 + middle, wanted="at most 1 % longer", holds=middle <= 0.01,
    )  # fmt: skip


def long_run_row(count: int, viewers: int) -> Row:
    """Measure the server's processor time for a generation of a long run."""
    more = 20
    with tempfile.TemporaryDirectory() as folder:
        run = loop_run(Path(folder, "generate_1"), count + more, made=count, with_files=False)
        server = Server.start(str(run), viewers)
        before = server.processor_s()
        for number in range(more):
            grow(run, count + more, [count + number], with_files=False)
            time.sleep(1.5)
        used = (server.processor_s() - before) / more
        server.end()
    return Row(
        what=f"processor time of the server for a generation of {count:,}",
        value=used * 1e3,
        unit="ms",
    )


def rollout_row(count: int) -> Row:
    """Measure the processor time of a look at a long rollout that has one new trajectory."""
    group_size, used = 4, list[float]()
    with tempfile.TemporaryDirectory() as folder:
        run = rollout_run(Path(folder, "rollout_1"), count // group_size, group_size)
        journal = run / TRAJECTORIES
        line = json.loads(journal.read_bytes().partition(b"\n")[0])
        followed = FollowedRun(RolloutRun(run, Secrets(), reads=False))
        followed.read_new()
        for number in range(21):
            position = followed.position
            with journal.open("ab") as file:
                file.write(json.dumps({**line, "id": f"new {number}/0"}).encode() + b"\n")
            before = time.process_time()
            followed.read_new()
            news = followed.news(position)
            used.append(time.process_time() - before)
            assert news is not None
            assert len(news["rows"]["ids"]) == 1
    what = f"processor time of a look at a rollout of {count:,} with one new trajectory"
    return Row(what=what, value=statistics.median(used) * 1e3, unit="ms")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.live", description=__doc__)
    parser.add_argument("--generations", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--viewers", type=int, default=100)
    parser.add_argument("--long", type=int, default=10_000)
    parser.add_argument("--view", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.view:
        asyncio.run(view(given.view, given.viewers))
        return 0
    found = [
        *run_rows(given.generations, given.rounds, given.viewers),
        long_run_row(given.long, given.viewers),
        rollout_row(given.long),
    ]
    shown = [attrs.asdict(row) for row in found]
    print(document({"title": "The live page of a run", "machine": machine(), "rows": shown}))
    return 0 if all(row.holds is not False for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
