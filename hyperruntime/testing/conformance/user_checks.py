"""Checks of other users and of groups: they are kept apart, and each is ended to its last
process.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hyperruntime.container import Container
from hyperruntime.run_as import RunAs
from hyperruntime.testing.conformance.check import check, expect, expect_equal
from hyperruntime.testing.conformance.context import Context, fields_of, left_of, marker, shell

ONE = RunAs(uid=20_001, gid=20_007, umask=0o027)
TWO = RunAs(uid=20_002)
FEW = RunAs(uid=20_011, pids=12)
EXIT_KILLED = 137
_QUIET = ">/dev/null 2>&1"
_IDENTITY = "umask; echo $HOME; id -u; id -g; id -G; cat /proc/self/status"
# The processes stay: bash tries a failed fork again for 15 seconds, and succeeds if some have ended
# by then.
_MANY = f"i=0; while [ $i -lt 30 ]; do sleep 300 {_QUIET} & i=$((i + 1)); done; echo all"
# Prints what a user can do to processes of others: list the exchange, send a signal, read their
# files in /proc.
_HUNT = """
ls /run/hyperruntime 2>/dev/null
for p in /proc/[0-9]*; do
    [ -O "$p" ] && continue
    kill -0 "${p#/proc/}" 2>/dev/null && echo "signals $p"
    for f in environ maps mem auxv; do
        [ "$(dd if="$p/$f" bs=1 count=1 2>/dev/null | wc -c)" -gt 0 ] && echo "reads $p/$f"
    done
    ls "$p/fd/" >/dev/null 2>&1 && echo "lists $p/fd"
    readlink "$p/cwd" "$p/root" "$p/exe"
done
:
"""
_HARD_TO_END = (
    "setsid env -i /bin/sh -c 'exec sleep '$1 & (trap '' TERM; sleep $1; :) & sleep $1 & kill "
    "-STOP $!"
)


@check("users.identity", needs="exec.user")
def identity(context: Context) -> None:
    """A command of another user has its ids and umask, no home, and no other group, capability or
    new privilege.
    """
    printed = shell(context.container, _IDENTITY, user=ONE).stdout.decode()
    *found, status = printed.split("\n", 5)
    expect_equal(
        found, ["0027", "/", "20001", "20007", "20007"], "umask, home, uid, gid and groups"
    )
    fields = fields_of(status)
    held = {name: int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}
    expect_equal(held, dict.fromkeys(held, 0), "its capabilities")
    expect_equal(fields["NoNewPrivs"], "1", "NoNewPrivs")


@check("users.name", needs="exec.user")
def name(context: Context) -> None:
    """A user of the image's /etc/passwd is found by name."""
    context.container.exec(["true"], user=ONE).check()
    with suppress(FileNotFoundError):
        rows = [
            line.split(":")
            for line in context.container.read_file("/etc/passwd").decode().splitlines()
        ]
        known = next(
            (row for row in rows if len(row) > 3 and row[0].isalpha() and 0 < int(row[2]) < 60_000),
            None,
        )
        if known is not None:
            ids = (
                shell(context.container, "id -u; id -g", user=known[0])
                .check()
                .stdout.decode()
                .split()
            )
            expect_equal(ids, known[2:4], f"the ids of the user {known[0]!r}")


@check("users.processes", needs="exec.user")
def process_limit(context: Context) -> None:
    """A user's limit of processes holds for this user, and for no other."""
    with context.start() as container:
        expect(
            b"all" not in shell(container, _MANY, user=FEW, timeout_s=3).stdout,
            "30 processes with a limit of 12",
        )
        expect(
            b"all" in shell(container, _MANY, user=TWO, timeout_s=20).stdout,
            "the limit holds for another user too",
        )
        expect(container.end_user(FEW), "its processes could not be ended")
        expect_equal(
            container.exec(["echo", "on"], user=FEW).stdout,
            b"on\n",
            "the next command of this user",
        )


@check("users.apart", needs="exec.user")
def apart(context: Context) -> None:
    """A user can neither list nor signal the processes of another user, nor read their files in
    /proc.
    """
    with context.start() as container:
        shell(container, f"sleep $1 {_QUIET} &", marker(), user=TWO)
        found = shell(container, _HUNT, user=ONE, timeout_s=40)
        expect_equal((found.stdout, found.timed_out), (b"", False), "what a user can do to others")


@check("users.end", needs="exec.user")
def end(context: Context) -> None:
    """Ending a user ends every process of this user, and no other."""
    mine = marker()
    other = marker()
    with context.start() as container:
        shell(container, f"setsid sleep $1 {_QUIET} &", other, user=TWO)
        shell(container, f"({_HARD_TO_END}) {_QUIET}", mine, user=ONE)
        expect(container.end_user(ONE), "processes of the user are left")
        expect_equal(left_of(container, mine), [], "remaining processes of the user")
        expect(bool(left_of(container, other)), "a process of another user was ended")
        expect_equal(
            container.exec(["echo", "on"], user=ONE).stdout,
            b"on\n",
            "the next command of this user",
        )


@check("groups.end")
def end_group(context: Context) -> None:
    """Ending a group ends everything that its commands started, and no other process."""
    mine = marker()
    other = marker()
    running = marker()
    with context.start() as container:
        shell(container, f"setsid sleep $1 {_QUIET} &", other)
        shell(container, f"setsid sleep $1 {_QUIET} &", other, group="other")
        for _ in range(2):  # a group that was ended may be used again
            shell(container, f"({_HARD_TO_END}) {_QUIET}", mine, group="one")
            _end_with_running(context, container, running)
            expect_equal(left_of(container, mine), [], "remaining processes of the group")
        expect_equal(len(left_of(container, other)), 2, "processes of another group, and of none")
        expect(
            container.end_group("other") and container.end_group("unknown"),
            "a group could not be ended",
        )


def _end_with_running(context: Context, container: Container, mark: str) -> None:
    """End the group ``one`` while one of its commands runs."""
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(container.exec, ["sleep", mark], group="one")
        expect(
            context.load.wait_until(lambda: bool(left_of(container, mark)), 10),
            "a command did not start",
        )
        expect(container.end_group("one"), "processes of the group are left")
        expect_equal(
            running.result().exit_code, EXIT_KILLED, "exit code of a running command of the group"
        )
