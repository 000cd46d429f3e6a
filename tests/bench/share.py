"""Our share of a run's processor time, beside what its evaluations use.

.venv/bin/python -m tests.bench.share [--runtime podman] [--generations 6]

Ours is the processor time of this process and of the programs that it started and waited for: the
loop, git, checks of answers and the engine's commands. The containers are not in it. The agent
`solver` uses up the processor seconds that `math` gives it for each evaluation. The start of the
run is not counted, which takes as long for a thousand generations as for one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from hyperdomain_math import CPU_S
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import resume_run
from hyperruntime.runtime import Runtime, open_runtime
from tests.bench.measure import Row, machine
from tests.runs import start

MOST = 0.05


def used() -> tuple[float, float]:
    """Return the processor seconds that this process used so far, and those of its programs."""
    times = os.times()
    return times.user + times.system, times.children_user + times.children_system


def share_row(runtime: Runtime, generations: int) -> Row:
    """Measure a run of the solver on one problem."""
    with tempfile.TemporaryDirectory() as folder:
        run = start(
            runtime, Path(folder), agent="solver", domains="math:circles-26",
            max_generation=0, seed=1, run_id="share",
        ).run_dir  # fmt: skip
        began = used()
        summary = resume_run(runtime, plan_resume(run, max_generation=generations))
        here, programs = (
            (now - then) / generations for now, then in zip(used(), began, strict=True)
        )
    assert [one.failure for one in summary.generations] == [None] * (generations + 1)
    return Row(
        what="our processor time of a generation of `solver`",
        value=here + programs,
        unit="s",
        compared_to=f"{programs:.2f} s in programs such as git and the engine's; evaluation: {CPU_S:g} s",
        ratio=(here + programs) / CPU_S,
        wanted=f"at most {MOST:.0%}",
        holds=here + programs <= MOST * CPU_S,
    )


def main() -> int:
    """Measure, and print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", default="auto")
    parser.add_argument("--generations", type=int, default=6)
    given = parser.parse_args()
    with open_runtime(given.runtime) as runtime:
        row = share_row(runtime, given.generations)
    print(machine())
    print(
        f"{row.what}: {row.value:.2f} {row.unit}; {row.compared_to}; {row.ratio:.1%}, {row.wanted}"
    )
    return 0 if row.holds else 1


if __name__ == "__main__":
    sys.exit(main())
