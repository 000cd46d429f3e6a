"""Checks of terminals: a program on one works as on a terminal of the host, and is confined as
every command.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time

from hyperruntime.container import Container
from hyperruntime.errors import ContainerLostError, SpecError
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.run_as import RunAs
from hyperruntime.testing.conformance.check import (
    check,
    expect,
    expect_equal,
    expect_error,
    expect_soon,
)
from hyperruntime.testing.conformance.context import Context, fields_of, left_of, marker

_WAIT_S = 20.0
_DATA_BYTES = 10_000_000
_RAW = "stty raw -echo; echo go; "
# Without the limits that mark commands: locks, and the resident set. Shells call them differently.
_FACTS = (
    "id; ulimit -a | grep -vE '^locks|file locks|: locks|resident|^memory|^max memory'; echo "
    "$GIVEN; env | grep with.dot; grep -E 'Cap|NoNew|Seccomp|Sig(Blk|Ign)' /proc/self/status"
)
_ENV = {"GIVEN": "it's", "with.dot": "a b"}
_SIZE = 'trap "stty size" WINCH; tty; stty size; while :; do sleep 0.05; done'
_STUBBORN = (
    "trap '' HUP TERM; setsid sleep $1 & nohup sleep $1 >/dev/null 2>&1 & echo up; while :; do "
    "sleep 1; done"
)
OWNER = RunAs(uid=20_031)


def start(container: Container, script: str, *args: str, user: RunAs | None = None) -> Terminal:
    """Start a script with ``sh`` on a terminal."""
    return container.terminal(
        ["sh", "-c", script, "check", *args], rows=33, cols=77, user=user, env=_ENV
    )


def read_until(context: Context, terminal: Terminal, text: bytes) -> bytes:
    """Return the output up to a text.

    Args:
        context: the runtime under test; on a loaded machine, the wait is longer.
        terminal: the terminal, which is read.
        text: the awaited bytes.

    Raises:
        AssertionError: the text does not come in time.
    """
    deadline = time.monotonic() + context.load.bound(_WAIT_S)
    said = bytearray()
    while text not in said:
        try:
            chunk = terminal.read(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            chunk = b""
        said += chunk
        expect(bool(chunk), f"a terminal says {bytes(said[-200:])!r} and not {text!r}")
    return bytes(said)


def read_all(terminal: Terminal) -> bytes:
    """Return the output to its end."""
    return b"".join(iter(terminal.read, b""))


@check("terminal.size", needs="terminal")
def size(context: Context) -> None:
    """A program on a terminal sees its name and its size, and hears of each change of the size."""
    with start(context.container, _SIZE) as terminal:
        said = read_until(context, terminal, b"33 77\r\n")
        expect_equal(said, f"{terminal.name}\r\n33 77\r\n".encode(), "the name and the size")
        terminal.resize(50, 132)
        read_until(context, terminal, b"50 132\r\n")
        for rows, cols in ((0, 80), (24, 70_000)):
            with expect_error(SpecError, f"a terminal of {rows} rows and {cols} columns"):
                terminal.resize(rows, cols)


@check("terminal.job-control", needs="terminal")
def job_control(context: Context) -> None:
    """On a terminal Ctrl-C interrupts the program in front, Ctrl-Z stops it, and `fg` continues
    it.
    """
    script = (
        "set -m; trap : INT; cat; echo first $?; cat; echo second $?; fg; echo third $?; exit 7"
    )
    with start(context.container, script) as terminal:
        for key, answer in (
            (b"\x03", b"first 130\r\n"),
            (b"\x1a", b"cat\r\n"),
            (b"\x04", b"third 0\r\n"),
        ):
            terminal.write(b"word\r")
            read_until(context, terminal, b"word\r\nword\r\n")  # from the terminal, and from cat
            terminal.write(key)
            read_until(context, terminal, answer)  # fg prints the command
        expect_equal(terminal.wait(context.load.bound(_WAIT_S)), 7, "the exit code")
    with start(context.container, "echo up; sleep 300; exit 9") as terminal:
        read_until(context, terminal, b"up")
        # dash loses a signal that comes at the instant in which it starts `sleep`
        expect_soon(
            context,
            lambda: not terminal.interrupt() or terminal.poll() is not None,
            "the end by an interrupt",
        )
        expect_equal(
            terminal.wait(context.load.bound(_WAIT_S)),
            130,
            "the exit code of an interrupted command",
        )


@check("terminal.exact", needs="terminal")
def exact(context: Context) -> None:
    """A terminal in raw mode passes 10 MB unchanged in each direction, and all output of a command
    that has ended.
    """
    data = os.urandom(_DATA_BYTES)
    with start(context.container, f"{_RAW} head -c {_DATA_BYTES} | sha256sum") as terminal:
        read_until(context, terminal, b"go\n")
        terminal.write(data)
        expect_equal(
            read_all(terminal)[:64], hashlib.sha256(data).hexdigest().encode(), "the input's hash"
        )
    path = f"/tmp/{marker()}"  # noqa: S108 - inside
    with start(
        context.container,
        f'{_RAW} head -c {_DATA_BYTES} /dev/urandom >"$1"; cat "$1"; exit 3',
        path,
    ) as terminal:
        found = hashlib.sha256(read_all(terminal).partition(b"go\n")[2]).hexdigest()
        wanted = context.container.exec(["sha256sum", path]).stdout[:64].decode()
        expect_equal((found, terminal.wait()), (wanted, 3), "the output's hash, and the exit code")
    context.container.exec(["rm", path])


@check("terminal.confined", needs="terminal")
def confined(context: Context) -> None:
    """A program on a terminal has the user, rights, limits and environment of an exec, and no
    terminal of the host.
    """
    container = context.container
    wanted = container.exec(["sh", "-c", _FACTS], env=_ENV).stdout.decode()
    with start(container, _FACTS) as terminal:
        found = read_all(terminal).decode().replace("\r\n", "\n")
    expect_equal(found, wanted, "user, limits, environment, capabilities and seccomp")
    expect_equal(fields_of(found)["NoNewPrivs"], "1", "NoNewPrivs")
    with start(container, "ls /dev/pts; ls -l /proc/self/fd; echo $TERM") as terminal:
        said = read_all(terminal).decode()
    number = terminal.name.rpartition("/")[2]
    expect_equal(
        said.split()[: said.split().index("ptmx") + 1],
        [number, "ptmx"],
        "all terminals of the container",
    )
    expect("xterm-256color" in said, f"TERM is not set: {said!r}")


@check("terminal.user", needs="terminal")
def other_user(context: Context) -> None:
    """A terminal belongs to the command's user, who can open it by name; no other user of the
    container can.
    """
    container = context.container
    script = 'id -u; echo by-name >"$(tty)"; echo by-dev >/dev/tty; read -r line'
    own = 0 if context.info.root else os.geteuid()
    user, uid = (OWNER, OWNER.uid) if context.info.users else (None, own)
    with start(container, script, user=user) as terminal:
        said = read_until(context, terminal, b"by-dev\r\n")
        expect_equal(
            said, b"%d\r\nby-name\r\nby-dev\r\n" % uid, "the user, and both ways to its terminal"
        )
        if user is not None:
            other = container.exec(
                ["sh", "-c", 'echo >"$1"', "check", terminal.name], user=RunAs(uid=20_032)
            )
            expect(other.exit_code != 0, "another user may write to the terminal")
        terminal.write(b"\r")
        expect_equal(terminal.wait(context.load.bound(_WAIT_S)), 0, "the exit code")


def _start_stubborn(context: Context, container: Container, mark: str) -> Terminal:
    terminal = start(container, _STUBBORN, mark)
    read_until(context, terminal, b"up")
    expect_soon(
        context,
        lambda: len(left_of(container, f"sleep {mark}")) >= 2,
        "the start of hidden processes",
    )
    return terminal


@check("terminal.end", needs="terminal")
def end(context: Context) -> None:
    """Closing a terminal kills all its processes, also hidden ones, and a terminal ends with its
    container.
    """
    mark = marker()
    with context.start() as container:
        terminal = _start_stubborn(context, container, mark)
        expect(terminal.close(), "processes of a closed terminal are left")
        expect_equal(left_of(container, mark), [], "the processes of a closed terminal")
        expect_equal(
            (terminal.read(), terminal.wait()),
            (b"", 137),
            "output and exit code of a closed terminal",
        )
        terminal = _start_stubborn(context, container, mark)
        container.close()
        expect_equal(read_all(terminal), b"", "the output after the container's end")
        with expect_error(ContainerLostError, "a wait for a terminal of a closed container"):
            terminal.wait(context.load.bound(_WAIT_S))
        with expect_error(BrokenPipeError, "input for a terminal of a closed container"):
            terminal.write(b"x")
        terminal.close()


@check("terminal.async", needs="terminal")
def asynchronous(context: Context) -> None:
    """Terminals work from an event loop, many at once, and each gets its own input and output."""

    async def talk(number: int) -> None:
        terminal = await context.container.aterminal(
            ["sh", "-c", "read -r line; echo got $line; exit 6"]
        )
        async with terminal:
            await terminal.awrite(b"%d\r" % number)
            said = b""
            while chunk := await terminal.aread(context.load.bound(_WAIT_S)):
                said += chunk
            expect(b"got %d\r\n" % number in said, f"terminal {number} says {said!r}")
            expect_equal(await terminal.await_end(), 6, "the exit code")

    async def scenario() -> None:
        await asyncio.gather(*map(talk, range(8)))

    asyncio.run(scenario())
