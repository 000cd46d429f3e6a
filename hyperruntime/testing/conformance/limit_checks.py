"""Checks of limits: the engine or the library's watchdog enforces each limit."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from hyperruntime.container import Container
from hyperruntime.driver import PostMortem
from hyperruntime.errors import ContainerLostError
from hyperruntime.spec import Mount
from hyperruntime.testing.conformance.check import (
    check,
    expect,
    expect_equal,
    expect_error,
    expect_in_time,
)
from hyperruntime.testing.conformance.context import Context, declares_refusal, shell
from hyperruntime.units import MIB

# Uses a processor for two seconds, then prints the used processor time. Source: POSIX.1 sh,
# `times`.
BURN = "trap 'times; exit 0' USR1; (sleep 2; kill -USR1 $$) & while :; do :; done"
FLOOD = "dd if=/dev/zero of=/dev/null bs=300M count=1 2>/dev/null && echo fits"
WALL_S = 3.0
SOON_S = 10.0
WATCHED_BYTES = 96 * MIB
DISK_BYTES = 64 * MIB
_WRITE = 'mkdir -p "${1%/*}"; dd if=/dev/zero of="$1" bs=1M count=300 2>/dev/null; sleep 60'
_WRITE_DELETED = (
    'mkdir -p "${1%/*}"; exec 3>"$1"; rm -f "$1"; dd if=/dev/zero bs=1M count=300 >&3 '
    "2>/dev/null; sleep 60"
)
PLACES = (
    ("/data/file", _WRITE),
    ("/data/deleted", _WRITE_DELETED),
    ("/var/file", _WRITE),
    ("/var/deleted", _WRITE_DELETED),
    ("/tmp/file", _WRITE),  # noqa: S108 - inside a container
)


@check("limits.memory", needs="limits.memory_bytes")
def memory(context: Context) -> None:
    """A command that exceeds the memory limit fails and does not get the memory."""
    with context.start(limits=context.limits(memory_bytes=64 * MIB)) as container:
        try:
            expect_equal(
                shell(container, FLOOD, timeout_s=40).stdout,
                b"",
                "300 MiB in a container of 64 MiB",
            )
            _expect_usable(container)
        except ContainerLostError as error:
            expect(
                error.post_mortem is not None,
                f"the container was lost without a post-mortem: {error}",
            )


@check("limits.cpus", needs="limits.cpus")
def cpus(context: Context) -> None:
    """A container does not get more processor time than its limit."""
    with context.start(limits=context.limits(cpus=0.3)) as container:
        result = shell(container, BURN, timeout_s=40)
    found = re.match(rb"(\d+)m([\d.]+)s", result.stdout)
    if found is None:
        raise AssertionError(f"the command did not print its processor time: {result}")
    used = int(found[1]) * 60 + float(found[2])
    allowed = 0.3 * result.duration_s
    expect(
        used < allowed * 1.4 + 0.2,
        f"{used:.2f} s of processor time in {result.duration_s:.2f} s with 0.3 cpus",
    )


# engines may count all processes of the user
@check("limits.pids", needs="limits.pids", when="alone")
def pids(context: Context) -> None:
    """A container has its own process limit, cannot exceed it, and is usable after the processes
    end.
    """
    with context.start(limits=context.limits(pids=60)) as container:
        script = "i=0; while [ $i -lt 200 ]; do sleep 3 & i=$((i + 1)); done; echo all"
        result = shell(container, script, timeout_s=20)
        expect(b"all" not in result.stdout, "200 processes were made in a container with pids=60")
        _expect_usable(container)
    with ExitStack() as stack:
        for _ in range(3):  # at the same time
            container = stack.enter_context(context.start(limits=context.limits(pids=60)))
            made = shell(
                container,
                "i=0; while [ $i -lt 30 ]; do sleep 60 & i=$((i + 1)); done; echo made $i",
            )
            expect_equal(
                (made.stdout, made.stderr),
                (b"made 30\n", b""),
                "30 processes in each of three containers",
            )


@check("limits.tmpfs", needs="limits.tmpfs_bytes")
def tmpfs(context: Context) -> None:
    """The directory /tmp holds at most its limit; a command that exceeds it fails, and the
    container lives on.
    """
    with context.start(limits=context.limits(tmpfs_bytes=4 * MIB)) as container:
        _expect_size(container, "/tmp", 4)  # noqa: S108 - in the container


@check("limits.shm", needs="limits.shm_bytes")
def shm(context: Context) -> None:
    """The directory /dev/shm has the size of its limit, smaller or larger than the engine's own."""
    with context.start(limits=context.limits(shm_bytes=4 * MIB)) as container:
        _expect_size(container, "/dev/shm", 4)  # noqa: S108 - in the container
    with context.start(limits=context.limits(shm_bytes=100 * MIB)) as container:
        _expect_size(container, "/dev/shm", 100)  # noqa: S108


@check("limits.wall-clock")
def wall_clock(context: Context) -> None:
    """A container is ended after its wall-clock limit, and the error names this limit."""
    limits = context.limits(wall_s=WALL_S)
    with context.start(limits=limits) as container, context.start(limits=limits) as idle:
        started = time.monotonic()
        with expect_error(
            ContainerLostError, "a command past the wall clock", f"limits.wall_s={WALL_S:g}"
        ):
            container.exec(["sleep", "60"])
        expect_in_time(context, started, WALL_S + SOON_S, f"ending a container of {WALL_S:g} s")
        with expect_error(ContainerLostError, "the next command", "limits.wall_s"):
            container.exec(["true"])
        expect(
            context.load.wait_until(lambda: not idle.is_alive, SOON_S),
            "a container without a command lives on",
        )
        with expect_error(ContainerLostError, "a command in it", "limits.wall_s"):
            idle.exec(["true"])


@check("limits.disk")
def disk(context: Context) -> None:
    """A container whose files exceed the disk limit is ended, and the error names this limit.

    Another user's daemon hides its store: there, only writable directories of this machine count.
    """
    places = PLACES if context.info.owns_processes else PLACES[:1]
    with ThreadPoolExecutor(len(places)) as threads:
        for place in [threads.submit(_fill, context, path, script) for path, script in places]:
            place.result()


def _fill(context: Context, path: str, script: str) -> None:
    mount = Mount(source=str(context.place()), target="/data", read_only=False)
    with context.start(limits=context.limits(disk_bytes=DISK_BYTES), mounts=(mount,)) as container:
        try:
            result = shell(container, script, path, timeout_s=40)
        except ContainerLostError as error:
            named = (
                isinstance(error.post_mortem, PostMortem)
                and error.post_mortem.limit == "disk_bytes"
            )
            expect(
                named and f"disk_bytes={DISK_BYTES}" in str(error),
                f"the error does not name the limit: {error}",
            )
        else:
            raise AssertionError(f"a container with too much in {path} was not ended: {result}")


@check("limits.watchdog")
def watchdog(context: Context) -> None:
    """If the engine cannot limit memory, the watchdog ends a container above its limit, and the
    error says so.
    """
    limits = context.limits(memory_bytes=WATCHED_BYTES)
    with context.start(limits=limits, limits_mode="watchdog") as container:
        expect_equal(
            container.exec(["echo", "fits"]).stdout, b"fits\n", "a command below the limit"
        )
        if not declares_refusal(context.info, "limits.memory_bytes"):
            expect_equal(
                shell(container, FLOOD, timeout_s=40).stdout,
                b"",
                "300 MiB in a container of 96 MiB",
            )
            return
        with expect_error(
            ContainerLostError, "a command past the limit", "watchdog", f"={WATCHED_BYTES}"
        ):
            shell(container, FLOOD.replace("count=1", "count=1000"), timeout_s=40)


def _expect_size(container: Container, path: str, mib: int) -> None:
    """Check that a directory holds about its size and no more, and that the writer learns the
    reason.
    """
    full = shell(container, f"dd if=/dev/zero of={path}/full bs=1M count={mib + 5}", timeout_s=60)
    expect(full.exit_code != 0, f"{mib + 5} MiB were written to a {path} of {mib} MiB")
    expect(
        b"No space left" in full.stderr, f"the command does not learn the reason: {full.stderr!r}"
    )
    size = int(shell(container, f"wc -c <{path}/full").check().stdout)
    expect((mib - 2) * MIB <= size <= mib * MIB, f"{size} bytes fit into a {path} of {mib} MiB")
    _expect_usable(container)


def _expect_usable(container: Container) -> None:
    expect_equal(
        container.exec(["echo", "usable"], timeout_s=20).stdout, b"usable\n", "the next command"
    )
