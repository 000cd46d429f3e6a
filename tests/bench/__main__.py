"""Run the benchmarks of a suite and print one table; `--json FILE` saves the rows,
`--write FILE...` its page.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Any

import hyperruntime as hr
from hyperruntime.runtime import Runtime
from tests.bench import (
    crowds,
    egress,
    execs,
    gateway,
    generations,
    processor,
    rollouts,
    searches,
    slots,
    snapshots,
)
from tests.bench.measure import Row
from tests.bench.page import facts, finish, write

HEAD = """# {title}

`{command}` measures all of this again, as root and rootless, and writes this page. All figures are medians. Compared
actions run in turn within one run, so the ratios are more reliable than the figures.
"""
CLUSTER_HEAD = """# Benchmarks of many nodes

`make bench-cluster` measures all of this again and writes this page. It measures slots on nodes that are processes of
this machine, 10,000 leases on simulated nodes, and runs on a real Slurm with four nodes on this machine, as an ordinary
user.
The nodes share its processors. A simulated node is a process without containers; those of the campaign are 256 node
servers in four processes, each with a connection of its own. Execs at a rate are measured in 16
blocks, on both sides in turn. The 8 count in which the host of this virtual machine took least processor time away; a
figure is the median of theirs.
"""
# suite: (page, title, the command that writes it, parts)
SUITES = {
    "core": (
        "docs/benchmarks.md",
        "Benchmarks",
        "make bench",
        ("execs", "snapshots", "crowds", "egress", "generations", "gateway"),
    ),
    "slots": (
        "docs/benchmarks-slots.md",
        "Benchmarks of slots and rollouts",
        "make bench-slots",
        ("slots", "rollouts", "searches"),
    ),
    # measured by cluster.py, cluster_runs.py, losses.py and campaign.py
    "cluster": ("docs/benchmarks-cluster.md", "", "", ()),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--runtime", default="podman", help="engine to measure")
    parser.add_argument("--json", metavar="FILE", help="write the rows to this file")
    parser.add_argument(
        "--write",
        metavar="FILE",
        nargs="+",
        help="only write the suite's page, from files of --json",
    )
    parser.add_argument("--suite", choices=SUITES, default="core", help="suite to measure")
    parser.add_argument(
        "--only",
        choices=sorted({part for *_, parts in SUITES.values() for part in parts}),
        help="part to measure",
    )
    parser.add_argument(
        "--trajectories", type=int, default=1000, help="number of trajectories of rollouts"
    )
    parser.add_argument(
        "--cycles", type=int, default=10_000, help="number of acquires and releases of slots"
    )
    options = parser.parse_args()
    page, title, command, parts = SUITES[options.suite]
    if options.write:
        if options.suite == "cluster":
            return write(page, CLUSTER_HEAD, options.write)
        head = HEAD.format(title=title, command=command)
        return write(page, head, options.write, with_overview=True)
    wanted = (options.only,) if options.only else parts
    made = measure(options.runtime, wanted, options.cycles, options.trajectories)
    return finish(made, options.json)


def measure(name: str, wanted: Sequence[str], cycles: int, trajectories: int) -> dict[str, Any]:
    rows: list[Row] = []
    hr.raise_file_limit()
    with hr.open_runtime(name) as runtime:
        image = runtime.images.ensure("base")
        parts = []
        if "execs" in wanted:
            parts += [execs.exec_rows, processor.shell_rows, execs.file_rows]
            parts += [execs.deadline_rows, execs.life_rows, execs.stream_rows]
        parts += [snapshots.snapshot_rows] if "snapshots" in wanted else []
        parts += [crowds.crowd_rows, crowds.stall_rows] if "crowds" in wanted else []
        parts += [egress.egress_rows] if "egress" in wanted else []
        parts += [generations.overhead_rows] if "generations" in wanted else []
        if "generations" in wanted and name == "podman":
            parts += [generations.long_run_rows, generations.parallel_rows]
        parts += (
            [gateway.gateway_rows, gateway.share_rows]
            if "gateway" in wanted and name == "podman"
            else []
        )
        parts += slot_parts(_share(runtime, cycles)) if "slots" in wanted else []
        if "rollouts" in wanted:
            parts += [rollouts.down_rows, rollouts.journal_rows, rollouts.judging_rows]
            parts += [functools.partial(rollouts.trajectory_rows, trajectories=trajectories)]
        parts += [searches.group_rows, searches.search_rows] if "searches" in wanted else []
        for part in parts:
            print(f"measuring {_name(part)} on {name} ...", file=sys.stderr, flush=True)
            rows += part(runtime, image)
        info = runtime.info
    kind = "rootless" if info.rootless else "root"
    engine = [f"{name} {info.version}", kind, info.oci_runtime, info.storage]
    return facts(", ".join(filter(None, engine)), f"{name}, {kind}", rows)


def _share(runtime: Runtime, cycles: int) -> int:
    """Return the number of cycles for an engine: all on Podman as root, fewest if each needs a new
    container.
    """
    if not runtime.info.users:
        return cycles // 50
    return cycles if runtime.name == "podman" and not runtime.info.rootless else cycles // 5


def _name(part: Any) -> str:
    return str(getattr(part, "func", part).__name__)


def slot_parts(cycles: int) -> list[Any]:
    """Return the measurements of slots."""
    single = [
        slots.sleep_rows,
        slots.throughput_rows,
        slots.lease_rows,
        slots.loss_rows,
        slots.owner_rows,
    ]
    return [processor.call_rows, *single, functools.partial(slots.cycle_rows, cycles=cycles)]


if __name__ == "__main__":
    sys.exit(main())
