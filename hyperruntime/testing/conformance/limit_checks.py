"""Checks of limits: the engine or the library's watchdog enforces each limit."""

from __future__ import annotations

import re
import time

from hyperruntime.container import Container
from hyperruntime.errors import ContainerLostError
from hyperruntime.testing.conformance.capability import declares_refusal
from hyperruntime.testing.conformance.check import check, expect, expect_equal, expect_error
from hyperruntime.testing.conformance.context import Context, shell
from hyperruntime.units import MIB

# Uses a processor for two seconds, then prints the used processor time. Source: POSIX.1 sh, `times`.
BURN = "trap 'times; exit 0' USR1; (sleep 2; kill -USR1 $$) & while :; do :; done"
FLOOD = "dd if=/dev/zero of=/dev/null bs=300M count=1 2>/dev/null && echo fits"
WALL_S = 3.0
SOON_S = 10.0
WATCHED_BYTES = 96 * MIB


@check("limits.memory", needs="limits.memory_bytes")
def memory(context: Context) -> None:
    """A command that exceeds the memory limit fails and does not get the memory."""
    with context.start(limits=context.limits(memory_bytes=64 * MIB)) as container:
        try:
            expect_equal(shell(container, FLOOD, timeout_s=40).stdout, b"", "300 MiB in a container of 64 MiB")
            _expect_usable(container)
        except ContainerLostError as error:
            expect(error.post_mortem is not None, f"the container was lost without a post-mortem: {error}")


@check("limits.cpus", needs="limits.cpus")
def cpus(context: Context) -> None:
    """A container does not get more processor time than its limit."""
    with context.start(limits=context.limits(cpus=0.3)) as container:
        result = shell(container, BURN, timeout_s=40)
    found = re.match(rb"(\d+)m([\d.]+)s", result.stdout)
    if found is None:
        raise AssertionError(f"the command did not print its processor time: {result}")
    used, allowed = int(found[1]) * 60 + float(found[2]), 0.3 * result.duration_s
    expect(used < allowed * 1.4 + 0.2, f"{used:.2f} s of processor time in {result.duration_s:.2f} s with 0.3 cpus")


@check("limits.pids", needs="limits.pids")
def pids(context: Context) -> None:
    """A container does not get more processes than its limit, and is usable after they end."""
    with context.start(limits=context.limits(pids=60)) as container:
        script = "i=0; while [ $i -lt 200 ]; do sleep 3 & i=$((i + 1)); done; echo all"
        result = shell(container, script, timeout_s=20)
        expect(b"all" not in result.stdout, "200 processes were made in a container with pids=60")
        _expect_usable(container)


@check("limits.tmpfs", needs="limits.tmpfs_bytes")
def tmpfs(context: Context) -> None:
    """The directory /tmp holds at most its limit; a command that exceeds it fails, and the container lives on."""
    with context.start(limits=context.limits(tmpfs_bytes=4 * MIB)) as container:
        full = shell(container, "dd if=/dev/zero of=/tmp/full bs=1M count=9 2>/dev/null")
        expect(full.exit_code != 0, "9 MiB were written to a /tmp of 4 MiB")
        size = int(shell(container, "wc -c </tmp/full").check().stdout)
        expect(2 * MIB <= size <= 4 * MIB, f"{size} bytes fit into a /tmp of {4 * MIB}")
        _expect_usable(container)


@check("limits.wall-clock")
def wall_clock(context: Context) -> None:
    """A container is ended after its wall-clock limit, and the error names this limit."""
    with context.start(limits=context.limits(wall_s=WALL_S)) as container:
        started = time.monotonic()
        with expect_error(ContainerLostError, "a command past the wall clock", f"limits.wall_s={WALL_S:g}"):
            container.exec(["sleep", "60"])
        took = time.monotonic() - started
        expect(
            took < WALL_S + SOON_S,
            f"the container was ended after {took:.1f} s, with a wall-clock limit of {WALL_S:g} s",
        )
        with expect_error(ContainerLostError, "the next command", "limits.wall_s"):
            container.exec(["true"])


@check("limits.watchdog")
def watchdog(context: Context) -> None:
    """If the engine cannot limit memory, the watchdog ends a container above its limit, and the error says so."""
    limits = context.limits(memory_bytes=WATCHED_BYTES)
    with context.start(limits=limits, limits_mode="watchdog") as container:
        expect_equal(container.exec(["echo", "fits"]).stdout, b"fits\n", "a command below the limit")
        if not declares_refusal(context.info, "limits.memory_bytes"):
            expect_equal(shell(container, FLOOD, timeout_s=40).stdout, b"", "300 MiB in a container of 96 MiB")
            return
        with expect_error(ContainerLostError, "a command past the limit", "watchdog", f"={WATCHED_BYTES}"):
            shell(container, FLOOD.replace("count=1", "count=1000"), timeout_s=40)


def _expect_usable(container: Container) -> None:
    expect_equal(container.exec(["echo", "usable"], timeout_s=20).stdout, b"usable\n", "the next command")
