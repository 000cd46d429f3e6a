"""Checks of timeouts: everything that a command started is ended in time, and nothing else."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from hyperruntime.container import Container
from hyperruntime.spec import ExecResult
from hyperruntime.testing.conformance.check import check, expect, expect_equal
from hyperruntime.testing.conformance.context import Context, left_of, marker, shell

LATE_S = 2.0
TRIES = 3  # the command may not have begun in time
LATE_FORKS_S = 10.0  # the fork loop takes processor time from the library


def run_late(
    context: Context, container: Container, script: str, mark: str, timeout_s: float = 0.5
) -> ExecResult:
    """Run a script that exceeds its timeout, and check that the call returns in time.

    Args:
        context: the runtime under test.
        container: the container.
        script: the script of ``sh``.
        mark: ``$1`` of the script.
        timeout_s: the timeout, in seconds.

    Raises:
        AssertionError: the command did not time out, or the call returned late in every try.
    """
    late: list[str] = []
    while len(late) < TRIES:
        started = time.monotonic()
        result = shell(container, script, mark, timeout_s=timeout_s)
        took = time.monotonic() - started
        expect_equal((result.timed_out, result.exit_code), (True, 124), "timed_out and exit code")
        if context.load.allows(took - timeout_s, LATE_S):
            return result
        late.append(f"{took - timeout_s:.1f} s")
    raise AssertionError(f"the call returned {', '.join(late)} after its timeout")


def expect_nothing_escapes(context: Context, script: str) -> None:
    """Check that no process of a script outlives its timeout.

    Args:
        context: the runtime under test.
        script: a script of ``sh`` whose processes all sleep ``$1`` seconds.

    Raises:
        AssertionError: a process is left, or the output before the timeout is missing.
    """
    mark = marker()
    result = run_late(context, context.container, f"echo before; {script}", mark)
    for _ in range(TRIES - 1):
        if result.stdout:
            break
        # it had not started in time
        result = run_late(context, context.container, f"echo before; {script}", mark)
    expect_equal(result.stdout, b"before\n", "the output before the timeout")
    expect_equal(left_of(context.container, mark), [], "remaining processes")


@check("timeout.children")
def children(context: Context) -> None:
    """A timeout ends a command and its children, and keeps the output so far."""
    expect_nothing_escapes(context, "sh -c 'sleep $1; true' x $1; true")


@check("timeout.background-child")
def background_child(context: Context) -> None:
    """A timeout ends background children that hold the output open."""
    expect_nothing_escapes(context, "sleep $1 & sleep $1")


@check("timeout.daemon")
def daemon(context: Context) -> None:
    """A timeout ends a daemon in its own session without a parent, streams or environment."""
    expect_nothing_escapes(
        context, "(env -i /bin/sh -c 'exec setsid sleep $1' x $1 <&- >&- 2>&- &); sleep $1"
    )
    expect_nothing_escapes(context, "ulimit -n 64; ulimit -c 0; setsid sleep $1 & sleep $1")


@check("timeout.ignores-term")
def ignores_term(context: Context) -> None:
    """A timeout ends processes that ignore SIGTERM, SIGINT, SIGHUP and SIGQUIT."""
    expect_nothing_escapes(context, "trap '' TERM INT HUP QUIT; sleep $1; sleep $1")


@check("timeout.stopped")
def stopped(context: Context) -> None:
    """A timeout ends stopped processes."""
    expect_nothing_escapes(context, "sleep $1 & kill -STOP $!; sleep $1")


@check("timeout.fork-loop", needs="limits.pids", when="alone")
def fork_loop(context: Context) -> None:
    """A timeout ends a fork loop, and the container is usable afterwards."""
    with context.start(limits=context.limits(pids=200)) as container:
        mark = marker()
        started = time.monotonic()
        result = shell(container, "f() { f | f & }; f & exec sleep $1", mark, timeout_s=1)
        took = time.monotonic() - started
        expect(
            result.timed_out, f"the command did not time out; its exit code is {result.exit_code}"
        )
        expect(
            context.load.allows(took - 1, LATE_FORKS_S),
            f"the call returned {took - 1:.1f} s after its timeout",
        )
        expect_equal(container.exec(["echo", "usable"]).stdout, b"usable\n", "the next command")
        expect_equal(left_of(container, mark), [], "remaining processes")


@check("timeout.siblings")
def siblings(context: Context) -> None:
    """A timeout does not end concurrent commands, or background processes of earlier commands."""
    earlier = marker()
    mark = marker()
    pid = (
        shell(context.container, "setsid sleep $1 >/dev/null 2>&1 & echo $!", earlier)
        .stdout.decode()
        .strip()
    )
    with ThreadPoolExecutor(1) as threads:
        sibling = threads.submit(
            shell, context.container, "for i in 1 2 3; do sleep 0.5; echo $i; done"
        )
        for _ in range(3):
            run_late(context, context.container, "setsid sleep $1 & sleep $1", mark, 0.3)
        expect_equal(sibling.result().stdout, b"1\n2\n3\n", "the output of a sibling")
    alive = left_of(context.container, earlier)
    shell(context.container, f"kill {pid}")
    expect(bool(alive), "a daemon of an earlier command was ended")


@check("timeout.flood")
def flood(context: Context) -> None:
    """A flood of output does not delay a timeout."""
    for number in range(TRIES):  # on a busy machine it may start too late to write so much
        result = run_late(context, context.container, "exec yes", "", 2.0**number)
        if result.truncated:
            return
    raise AssertionError(f"the output of {2**number} s of `yes` is not reported as truncated")


@check("timeout.many")
def many(context: Context) -> None:
    """Twenty simultaneous timeouts are all in time."""
    mark = marker()
    with ThreadPoolExecutor(20) as threads:
        script = "setsid sleep $1 & sleep $1"
        late = [
            threads.submit(run_late, context, context.container, script, mark, 1.0)
            for _ in range(20)
        ]
        for one in late:
            one.result()
    expect_equal(left_of(context.container, mark), [], "remaining processes")
