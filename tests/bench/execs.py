"""Benchmarks of containers: exec, start, removal, streams, copies."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import hyperruntime as hr
from hyperruntime.runtime import Runtime
from tests.bench.measure import Row, from_threads, in_turn, memory_growth, seconds, under
from tests.bench.rivals import Rival, fresh_args, rivals, run_quiet

GIB = 1 << 30
HIDING = [
    "sleep 60 & sleep 60",
    "trap '' TERM HUP INT; while :; do sleep 60; done",
    "setsid env -i sh -c 'trap \"\" TERM; sleep 60 & sleep 60' </dev/null >/dev/null 2>&1 & "
    "sleep 60",
    "f() { sleep 60 & [ $1 -gt 0 ] && f $(($1 - 1)); }; f 40; wait",
]


def exec_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure an exec of `true`: ours, a bare subprocess, and the engine's own ways."""
    bare = {"bare": lambda: subprocess.run(["true"], check=True)}
    with runtime.container(hr.ContainerSpec(image=image)) as container:
        ours = {"ours": lambda: container.exec(["true"])}
        with rivals(runtime, container, image) as others:
            slow = in_turn({**ours, **{other.name: other.run for other in others}}, rounds=40)
        fine = in_turn({**ours, **bare}, rounds=500)
        rates = [
            (from_threads(lambda: check(container), 50, 20), from_threads(bare["bare"], 50, 20))
            for _ in range(7)
        ]
    threads, bare_threads = (statistics.median(rate) for rate in zip(*rates, strict=True))
    ratio = fine["ours"] / fine["bare"]
    return [
        Row(
            what="exec of `true`",
            value=fine["ours"] * 1e3,
            unit="ms",
            compared_to=f"bare subprocess.run: {fine['bare'] * 1e3:.2f} ms",
            ratio=ratio,
            wanted="at most 2x",
            holds=ratio <= 2,
        ),
        *(rival_row(other, slow["ours"], slow[other.name]) for other in others),
        Row(
            what="execs from 50 threads in one container",
            value=threads,
            unit="execs/s",
            compared_to=f"bare subprocess.run: {bare_threads:.0f}/s",
            ratio=threads / bare_threads,
            wanted="at least 1000",
            holds=threads >= 1000,
        ),
    ]


def rival_row(rival: Rival, ours_s: float, theirs_s: float) -> Row:
    """Return a row that compares our time with that of a rival, measured in turn."""
    ratio = theirs_s / ours_s
    return Row(
        what=f"in turn with {rival.name}",
        value=ours_s * 1e3,
        unit="ms",
        compared_to=f"{theirs_s * 1e3:.0f} ms",
        ratio=ratio,
        wanted="" if rival.wanted is None else f"{rival.wanted}x faster",
        holds=None if rival.wanted is None else ratio >= rival.wanted,
    )


def file_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure the methods for single files, of 1 KiB, in turn with an exec of `true` in the same
    container.
    """
    data = os.urandom(1024)
    with runtime.container(hr.ContainerSpec(image=image)) as container:
        verbs = {
            "write_file": lambda: container.write_file("/tmp/one/file", data),
            "read_file": lambda: container.read_file("/tmp/one/file"),
            "stat": lambda: container.stat("/tmp/one/file"),
            "listdir": lambda: container.listdir("/tmp/one"),
        }
        took = in_turn({**verbs, "exec": lambda: container.exec(["true"])}, rounds=300)
    beside = f"exec of `true`: {took['exec'] * 1e3:.2f} ms"
    return [
        Row(
            what=f"`{name}`, 1 KiB",
            value=took[name] * 1e3,
            unit="ms",
            compared_to=beside,
            ratio=took[name] / took["exec"],
        )
        for name in verbs
    ]


def deadline_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure how long after its deadline an exec returns, for commands that hide."""
    late: list[float] = []
    with runtime.container(hr.ContainerSpec(image=image)) as container:
        for script in HIDING * 5:
            took = seconds(
                lambda script=script: container.exec(["sh", "-c", script], timeout_s=0.3)  # type: ignore[misc]
            )
            late.append(took - 0.3)
    worst = max(late)
    return [
        Row(
            what="return after a deadline, worst of 20 commands that hide",
            value=worst * 1e3,
            unit="ms",
            compared_to=f"median: {statistics.median(late) * 1e3:.0f} ms",
            wanted="within 2000 ms",
            holds=worst <= 2,
        )
    ]


def check(container: hr.Container) -> None:
    """Run one exec and check its result."""
    result = container.exec(["echo", "x"])
    if (result.stdout, result.stderr, result.exit_code) != (b"x\n", b"", 0):
        raise AssertionError(result)


def life_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure start to first result, and removal, against the engine's own command in a new
    container.
    """
    starts: list[float] = []
    removals: list[float] = []
    theirs: list[float] = []
    name, args = fresh_args(runtime, image)
    run_quiet(*args)
    for _ in range(15):
        begin = time.perf_counter()
        container = runtime.container(hr.ContainerSpec(image=image))
        container.exec(["true"])
        starts.append(time.perf_counter() - begin)
        removals.append(seconds(container.close))
        theirs.append(seconds(lambda: run_quiet(*args)))
    most = 1.6 if runtime.name == "bubblewrap" else 1.5  # a bare bwrap has no exec
    start, removal, run = (statistics.median(values) for values in (starts, removals, theirs))
    return [
        Row(
            what="start to first exec result",
            value=start * 1e3,
            unit="ms",
            compared_to=f"{name} IMAGE true: {run * 1e3:.0f} ms",
            ratio=start / run,
            wanted=f"at most {most}x",
            holds=start / run <= most,
        ),
        Row(
            what="start, one exec and removal",
            value=(start + removal) * 1e3,
            unit="ms",
            compared_to=f"{name} IMAGE true: {run * 1e3:.0f} ms",
            ratio=(start + removal) / run,
            wanted="at most 2x",
            holds=(start + removal) / run <= 2,
        ),
        under("removal", removal * 1e3, "ms", 500),
    ]


def stream_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure 1 GiB through a command and by copy, and the memory growth of all transfers."""
    rows = []
    spec = hr.ContainerSpec(image=image, limits=hr.Limits(tmpfs_bytes=3 * GIB // 2))
    with runtime.container(spec) as container, memory_growth() as grown:
        with tempfile.TemporaryDirectory() as disk:
            big = make_big(disk)
            rows.append(
                rate(
                    "1 GiB out of a command",
                    7,
                    lambda: container.exec(
                        ["dd", "if=/dev/zero", "bs=1M", "count=1024"],
                        on_output=lambda stream, chunk: None,
                        output_limit_bytes=1024,
                    ),
                )
            )
            rows.append(rate("1 GiB into a command", 7, lambda: feed(container, big)))
            put, get, cp = copies(container, disk, big, "/big")
            for name, speed in (("put", put), ("get", get)):
                rows.append(
                    Row(
                        what=f"{name} of 1 GiB, on disk",
                        value=speed,
                        unit="MiB/s",
                        compared_to=f"cp on the same disk: {cp:.0f} MiB/s",
                        ratio=speed / cp,
                    )
                )
        with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
            put, get, cp = copies(container, memory, make_big(memory), "/tmp/big")
            for name, speed in (("put", put), ("get", get)):
                rows.append(
                    Row(
                        what=f"{name} of 1 GiB, in memory",
                        value=speed,
                        unit="MiB/s",
                        compared_to=f"cp in memory: {cp:.0f} MiB/s",
                        ratio=speed / cp,
                        wanted="at least 500 MiB/s",
                        holds=speed >= 500,
                    )
                )
    return [*rows, under("memory growth over all of these", max(grown[0], 0.0), "MiB", 64)]


def make_big(folder: str) -> Path:
    """Write a file of 1 GiB without holes; return its path."""
    path = Path(folder, "big")
    run_quiet("sh", "-c", 'yes 0123456789abcdef | head -c 1073741824 > "$1"', "x", str(path))
    return path


def copies(
    container: hr.Container, folder: str, big: Path, inside: str
) -> tuple[float, float, float]:
    """Return the median MiB/s of put, get and `cp`, measured in turn."""
    back, plain = str(Path(folder, "back")), str(Path(folder, "plain"))
    speeds: dict[str, list[float]] = {"put": [], "get": [], "cp": []}
    for _ in range(5):
        speeds["put"].append(1024 / seconds(lambda: container.put(big, inside)))
        speeds["get"].append(1024 / seconds(lambda: container.get(inside, back)))
        os.unlink(back)
        speeds["cp"].append(
            1024 / seconds(lambda: run_quiet("cp", "--reflink=never", str(big), plain))
        )
        os.unlink(plain)
        container.exec(["rm", inside]).check()
    return tuple(statistics.median(speeds[name]) for name in ("put", "get", "cp"))  # type: ignore[return-value]


def rate(what: str, rounds: int, action: Any) -> Row:
    """Return a row with the median MiB/s of an action that moves 1 GiB."""
    speed = statistics.median(GIB / 2**20 / seconds(action) for _ in range(rounds))
    return Row(
        what=what, value=speed, unit="MiB/s", wanted="at least 500 MiB/s", holds=speed >= 500
    )


def feed(container: hr.Container, path: Path) -> None:
    """Send a file to a command that discards it."""
    with open(path, "rb", buffering=0) as source:
        container.exec(["dd", "of=/dev/null", "bs=1M"], input=source).check()
