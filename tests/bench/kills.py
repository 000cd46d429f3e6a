"""Owners killed with SIGKILL while everything is open: how long until nothing of them is left.

    scripts/as-test-user .venv/bin/python -m tests.bench.kills [--runtime podman] [--kills 60]
        [--containers 2] [--services 2] [--seed 1] [--stress 8] [--phases open] [--json FILE]

Each owner has containers, and in each one a process, a terminal, a forwarded port, a shell and,
where the engine has other users, a process of one. It is killed at a random instant of one of the
phases: while the containers start (`starting`), while it opens more of them all the time
(`opening`), or when all are open (`open`). Half of the owners are killed beside `stress-ng`.
Nothing may be left: no container, process, directory, socket or record. On a quiet machine this
takes at most 10 s.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from hyperruntime import Runtime, open_runtime
from hyperruntime.host.process import DEVNULL, find_program, spawn, wait_until
from tests.bench.measure import Row
from tests.bench.owner import OpenOwner, container_spec, start_owner
from tests.bench.page import report

QUIET_S, PATIENCE_S = 10.0, 120.0
PHASES = {"starting": 1, "opening": 2, "open": 2}  # with their weights
_SETTLED_S = 7.0  # then the service of the engine has ended


@contextmanager
def stress(processes: int) -> Iterator[None]:
    """Keep the processors busy, if ``processes`` is not 0.

    Each process has a session of its own: the kernel may give all processes of a session together
    the share of one.
    """
    if not processes:
        yield
        return
    if find_program("stress-ng") is None:
        raise SystemExit("there is no `stress-ng` on PATH: install it, or give --stress 0")
    args = ["stress-ng", "--cpu", "1", "--quiet"]
    busy = [spawn(args, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL) for _ in range(processes)]
    try:
        yield
    finally:
        for one in busy:
            one.terminate()
        for one in busy:
            one.wait()


@attrs.frozen
class Kill:
    """How one kill ended.

    Attributes:
        dead_s: seconds until no process ran in a container.
        clean_s: seconds until nothing was left.
        last: what was left last.
        stays: whether it was still left when the time was up.
    """

    dead_s: float
    clean_s: float
    last: str
    stays: bool


def kill_one(
    runtime: Runtime,
    image: str,
    containers: int,
    chance: random.Random,
    when: str,
    services: int = 0,
) -> Kill:
    """Start an owner and kill it at a random instant of a phase."""
    with start_owner(runtime.name, image, containers, when, services) as owner:
        owner.wait_for("begun" if when == "starting" else "open")
        most_s = 1.2 * containers * (1 + services)
        time.sleep(chance.uniform(0, most_s if when == "starting" else 1))
        return kill(runtime, owner)


def kill(runtime: Runtime, owner: OpenOwner) -> Kill:
    """Kill an owner and wait until nothing of it is left."""
    owner.kill()
    begin, last, dead_s = time.monotonic(), "", 0.0

    def is_clean() -> bool:
        nonlocal last, dead_s
        inside, left = owner.left(runtime)
        last = left or last
        dead_s = time.monotonic() - begin if inside else dead_s
        return not left

    stays = not wait_until(is_clean, PATIENCE_S, 0.05)
    return Kill(dead_s, time.monotonic() - begin, last, stays)


def measure(given: argparse.Namespace) -> list[Row]:
    chance, rows, stays = random.Random(given.seed), list[Row](), list[str]()
    with open_runtime(given.runtime) as runtime:
        image = runtime.images.ensure("base")
        # the first one makes files that stay
        runtime.container(container_spec(runtime, image)).close()
        runtime.containers()
        time.sleep(_SETTLED_S)
        for processes, kills in (
            (0, given.kills - given.kills // 2),
            (given.stress, given.kills // 2),
        ):
            name = f"beside {processes} of stress-ng" if processes else "quiet"
            before, ended = kept_files(), list[Kill]()
            with stress(processes):
                for _ in range(kills):
                    when = chance.choices(given.phases, [PHASES[name] for name in given.phases])[0]
                    ended.append(
                        kill_one(runtime, image, given.containers, chance, when, given.services)
                    )
                    show(given.runtime, name, ended[-1], when)
            stays += [one.last for one in ended if one.stays]
            time.sleep(_SETTLED_S)
            stays += sorted(kept_files() - before)
            rows += time_rows(
                f"{name}, {len(ended)} kills", ended, QUIET_S if not processes else None
            )
    print(*stays, sep="\n", file=sys.stderr)
    what = "containers, processes and files that stay"
    return [*rows, Row(what=what, value=len(stays), unit="", wanted="0", holds=not stays)]


def show(engine: str, name: str, one: Kill, when: str) -> None:
    load = f"load {os.getloadavg()[0]:.1f}"
    times = f"dead {one.dead_s:.2f} s, clean {one.clean_s:.2f} s"
    print(
        f"{engine}, {name}, {when}: {times}, {load}{', STAYS: ' + one.last if one.stays else ''}",
        file=sys.stderr,
    )


def time_rows(name: str, ended: Sequence[Kill], most_s: float | None) -> list[Row]:
    """Return the rows of the times after the kills."""
    if not ended:
        return []
    rows = []
    for what, times in (
        ("no process runs in a container", [one.dead_s for one in ended]),
        ("nothing is left", [one.clean_s for one in ended]),
    ):
        longest = max(times)
        wanted, holds = (f"at most {most_s:g} s", longest <= most_s) if most_s else ("", None)
        rows.append(
            Row(what=f"until {what}, median: {name}", value=statistics.median(times), unit="s")
        )
        rows.append(
            Row(
                what=f"until {what}, longest: {name}",
                value=longest,
                unit="s",
                wanted=wanted,
                holds=holds,
            )
        )
    return rows


def kept_files() -> set[str]:
    """Return what this user's engines keep on disk, to compare it before and after."""
    home = Path.home()
    run = Path(os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}"))
    storage = home / ".local/share/containers/storage"
    state = home / ".local/state/hyperruntime/containers/apptainer"
    found = set[str]()
    for folder in (storage / "overlay-containers", storage / "overlay", storage / "volumes", state):
        found |= {str(path) for path in folder.glob("*")}
    for pattern in (
        "*",
        "containers/*/*",
        "libpod/tmp/exits/*",
        "libpod/tmp/socket/*",
        "crun/*",
        "runc/*",
    ):
        found |= {str(path) for path in run.glob(pattern)}
    found |= {
        str(path) for path in Path(tempfile.gettempdir()).glob(f"hyperruntime-{os.getuid()}-*")
    }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.kills", description=__doc__)
    parser.add_argument("--runtime", default="podman", help="engine")
    parser.add_argument(
        "--kills", type=int, default=60, help="owners to kill; half of them beside stress-ng"
    )
    parser.add_argument("--containers", type=int, default=2, help="containers of each owner")
    parser.add_argument("--services", type=int, default=0, help="services of each container")
    parser.add_argument("--seed", type=int, default=1, help="of the instants")
    parser.add_argument(
        "--stress", type=int, default=8, help="processes of stress-ng; 0: no kills beside it"
    )
    parser.add_argument(
        "--phases", nargs="+", choices=PHASES, default=[*PHASES], help="when an owner is killed"
    )
    parser.add_argument("--json", metavar="FILE", help="write the rows to this file")
    given = parser.parse_args()
    return report(
        f"Owners killed with everything open, {given.runtime}", measure(given), given.json
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
