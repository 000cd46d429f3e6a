"""A command on a terminal in a container, such as an interactive shell or an editor.

The command is one exec, as every other. It waits for the name of its terminal, which the host opens
for it (:mod:`hyperruntime.exec.spawn.pty`), and becomes the leader of a session with that terminal.
"""

from __future__ import annotations

import io
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Unpack

import attrs

from hyperruntime.concurrency.blocking import run_cancellable
from hyperruntime.concurrency.closing import AsyncClosing
from hyperruntime.concurrency.exhaustion import too_many_files
from hyperruntime.errors import ExecStartError, SpecError, UnsupportedOptionError
from hyperruntime.exec.execution import CancelledExecError
from hyperruntime.exec.options import ExecKeywords, ExecOptions
from hyperruntime.exec.spawn.process import (
    ContainerCommand,
    Process,
    ProcessExecution,
    TakesSignals,
)
from hyperruntime.exec.spawn.pty import TerminalEnd, open_pty
from hyperruntime.exec.user_sessions import UserSessions

DEFAULT_TERM = "xterm-256color"
_MOST = 65535  # source: ioctl_tty(2), struct winsize
_CHUNK_BYTES = 65536
_TRY_AGAIN_S = 0.05
_END_S = 1.0  # until the end of a dead command is known here
# $1 is PATH, or empty: it must not hide setsid. The shell leads the session that setsid made, so
# the first terminal that it opens becomes the terminal of the session.
# A shell that cannot execute a program names a line of this script; so it says first what it can
# know.
_ENTER = """read -r _hr_tty && exec <>"$_hr_tty" >&0 2>&0 || exit
[ -z "$1" ] || export PATH="$1"
shift
case $1 in
    */*) if [ -f "$1" ] && [ -x "$1" ]; then exec "$@"; fi
        [ ! -e "$1" ] || { echo "hyperruntime: the program '$1' cannot be executed in the container"; exit 126; } ;;
    *) if command -v "$1" >/dev/null; then exec "$@"; fi ;;
esac
echo "hyperruntime: the container has no program '$1'; check its name and PATH"
exit 127"""
FOREGROUND = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
_NO_OUTPUT = "the terminal had no output in time; wait longer, or write to it"
_NO_SETSID = (
    "the image has no `setsid`, which a terminal needs; install util-linux or busybox in the image"
)
_NO_ENTRY = (
    "the terminals of this container cannot be opened from here ({error}); its processes must "
    "be this user's, as with rootless Podman, Apptainer and bubblewrap, or run hyperrun as root"
)


def check_size(rows: int, cols: int) -> None:
    """Check the size of a terminal.

    Raises:
        SpecError: a number is not from 1 to 65535.
    """
    for name, number in (("rows", rows), ("cols", cols)):
        if not 0 < number <= _MOST:
            raise SpecError(name, number, f"a number from 1 to {_MOST}")


def terminal_options(
    rows: int = 24, cols: int = 80, **options: Unpack[ExecKeywords]
) -> tuple[tuple[int, int], ExecOptions]:
    """Return the size of a terminal and the other options of its command.

    Raises:
        SpecError: an option is invalid.
    """
    check_size(rows, cols)
    return (rows, cols), ExecOptions(**options).checked()


class Terminal(AsyncClosing, TakesSignals):
    """A command on a terminal of a container; made by :meth:`Container.terminal`. Safe to use from
    many threads.

    Used as a context manager, it is closed after the block.

    Attributes:
        process: the command; its standard streams are the terminal.
        name: path of the terminal in the container.

    Example:
        >>> with runtime.container(spec) as container, container.terminal(["tty"]) as terminal:
        ...     terminal.wait()  # its exit code
        0
    """

    def __init__(self, process: Process, pty: TerminalEnd) -> None:
        """Take over a command and its terminal."""
        self.process = process
        self.name = pty.name
        self._pty = pty
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._changing = threading.Lock()
        self._rest: io.BytesIO | None = None  # what was left when the command ended
        self._closed = False
        self._over = os.eventfd(0, os.EFD_CLOEXEC)
        self._ready = select.epoll()
        self._ready.register(pty.master, select.EPOLLIN)
        self._ready.register(self._over, select.EPOLLIN)
        process.ended.listen(lambda: os.eventfd_write(self._over, 1))

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`read` returns at once."""
        return self._ready.fileno()

    def read(self, timeout_s: float | None = None, *, limit_bytes: int = _CHUNK_BYTES) -> bytes:
        """Return the next output, as soon as there is some; ``b""`` after the command's end.

        Args:
            timeout_s: seconds to wait; None means no limit.
            limit_bytes: most bytes to return.

        Raises:
            TimeoutError: there was no output in time.
        """
        self.process.check_thread()
        return self._read(timeout_s, limit_bytes, None)

    async def aread(
        self, timeout_s: float | None = None, *, limit_bytes: int = _CHUNK_BYTES
    ) -> bytes:
        """Do what :meth:`read` does without blocking the event loop."""
        return await run_cancellable(
            lambda cancel_fd: self._read(timeout_s, limit_bytes, cancel_fd)
        )

    def _read(self, timeout_s: float | None, limit_bytes: int, cancel_fd: int | None) -> bytes:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        is_held = True
        wait_s = -1 if timeout_s is None else max(0.0, min(timeout_s, threading.TIMEOUT_MAX))
        if not self._reading.acquire(timeout=wait_s):
            raise TimeoutError(_NO_OUTPUT)
        try:
            while not self._closed:
                if self._rest is None and self._wait_readable(deadline, cancel_fd, is_held=is_held):
                    self._rest = io.BytesIO(self._pty.take_rest())
                if self._rest is not None:
                    return self._rest.read(limit_bytes)
                try:
                    return os.read(self._pty.master, limit_bytes)
                except BlockingIOError:
                    is_held = True
                # EIO: no process holds the other end; while the command runs, one may open it again
                except OSError:
                    is_held = False
        finally:
            self._reading.release()
        return b""

    def _wait_readable(
        self, deadline: float | None, cancel_fd: int | None, *, is_held: bool
    ) -> bool:
        """Wait for output or the command's end; return whether the command had ended before the
        look at the output.

        Args:
            deadline: monotonic time of the end of the wait; None means no limit.
            cancel_fd: becomes readable when the caller cancels; None if it cannot.
            is_held: whether a process holds the other end; else poll() would return at once, so the
                wait is short.
        """
        poll = select.poll()
        descriptors = (
            self._over,
            *(() if cancel_fd is None else (cancel_fd,)),
            *((self._pty.master,) if is_held else ()),
        )
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        left_s = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
        wait_s = left_s if is_held else min(left_s, _TRY_AGAIN_S)
        events = dict(poll.poll(None if math.isinf(wait_s) else wait_s * 1000))
        if cancel_fd in events:
            raise CancelledExecError
        if not events and wait_s == left_s:
            raise TimeoutError(_NO_OUTPUT)
        return self._over in events

    def write(self, data: bytes) -> None:
        r"""Write to the terminal as a keyboard does: ``b"\r"`` is Enter, ``b"\x03"`` is Ctrl-C.

        Raises:
            BrokenPipeError: the command has ended.
        """
        self.process.check_thread()
        self._write(data, None)

    async def awrite(self, data: bytes) -> None:
        """Do what :meth:`write` does without blocking the event loop."""
        await run_cancellable(lambda cancel_fd: self._write(data, cancel_fd))

    def _write(self, data: bytes, cancel_fd: int | None) -> None:
        poll = select.poll()
        with self._writing:
            poll.register(self._pty.master, select.POLLOUT)
            for descriptor in (self._over, *(() if cancel_fd is None else (cancel_fd,))):
                poll.register(descriptor, select.POLLIN)
            view = memoryview(data)
            while view:
                events = {} if self._closed else dict(poll.poll())
                if cancel_fd in events:
                    raise CancelledExecError
                if self._closed or self._over in events:
                    raise BrokenPipeError("the terminal's command has ended")
                try:
                    view = view[os.write(self._pty.master, view) :]
                except BlockingIOError:
                    continue
                except OSError:
                    raise BrokenPipeError("the terminal's command has ended") from None

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of the window; programs get SIGWINCH. After the end it does nothing.

        Args:
            rows: number of lines.
            cols: number of columns.

        Raises:
            SpecError: a number is not from 1 to 65535.
        """
        check_size(rows, cols)
        with self._changing:
            if not self._closed:
                self._pty.resize(rows, cols)

    def signal(self, number: int) -> bool:
        """Send a signal; return whether a process could get it.

        SIGINT, SIGQUIT and SIGTSTP go to the programs in the foreground, even if those read keys
        themselves. Others go to all processes of the terminal, and raise the errors of
        :meth:`Process.signal`.
        """
        if number not in FOREGROUND:
            return self.process.signal(number)
        with self._changing:
            if self._closed or self.process.ended.is_set:
                return False
            self._pty.send_signal(number)
            return True

    def poll(self) -> int | None:
        """Return the exit code of the command, or None while it runs; raises the errors of
        :meth:`wait`.
        """
        return self.process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until the command has ended, and return its exit code.

        A program that writes waits until its output is read, so read it first, or in another
        thread.

        Args:
            timeout_s: seconds to wait; None means no limit.

        Raises:
            TimeoutError: it still runs.
            HyperRuntimeError: as in :meth:`Container.exec`, such as ContainerLostError.
        """
        return self.process.wait(timeout_s).exit_code

    async def await_end(self) -> int:
        """Do what :meth:`wait` does without blocking the event loop."""
        return (await self.process.await_end()).exit_code

    def close(self) -> bool:
        """Kill all processes of the terminal and close it; return whether none is left. May be
        called again.

        Does nothing in a forked child.
        """
        if not self.process.is_own:
            return True
        ended = self.process.close()
        with self._reading, self._writing, self._changing:
            if not self._closed:
                self._closed = True
                self._ready.close()
                self._pty.close()
                os.close(self._over)
        return ended


def start_terminal(
    sessions: UserSessions,
    prepare: Callable[[Sequence[str | bytes], ExecOptions], ProcessExecution],
    args: Sequence[str | bytes],
    options: ExecOptions,
    size: tuple[int, int],
) -> Terminal:
    """Start a command, open its terminal, and let it run; see :meth:`Container.terminal`.

    Args:
        sessions: the sessions of the container.
        prepare: makes the execution of an argv with options.
        args: argv of the command.
        options: its options.
        size: rows and columns of the terminal.
    """
    env = dict(options.env or {})
    waiting = ["setsid", "/bin/sh", "-c", _ENTER, "sh", env.pop("PATH", ""), *args]

    def prepare_checked(final: ExecOptions) -> ContainerCommand:
        command = ContainerCommand(sessions, prepare(waiting, final))
        if not command.session.has_private_groups:
            raise ExecStartError(_NO_SETSID)
        return command

    process = Process(attrs.evolve(options, env=env), prepare_checked)
    try:
        return _attach(process, sessions.engine, size)
    except BaseException:
        process.close()
        raise


def _attach(process: Process, engine: str, size: tuple[int, int]) -> Terminal:
    """Open a terminal in the container of the process, and tell the process its name."""
    try:
        found = process.find()
        if len(found) != 1:  # a hostile process can take the mark too
            why = (
                "another process has the mark of its command"
                if found
                else "its processes are hidden"
            )
            raise OSError(why)
        pty = open_pty(found[0], lambda: process.find(found[0]) == found)
    except OSError as error:
        if files := too_many_files(error):
            raise files from error
        _raise_ended(process)
        raise UnsupportedOptionError(engine, "terminal", _NO_ENTRY.format(error=error)) from error
    try:
        pty.resize(*size)
        terminal = Terminal(process, pty)
    except BaseException:
        pty.close()
        raise
    try:
        process.write(f"{pty.name}\n".encode())
        process.close_stdin()
    except BaseException as error:
        terminal.close()
        if isinstance(error, BrokenPipeError):
            _raise_ended(process)
        raise
    return terminal


def _raise_ended(process: Process) -> None:
    """Raise the error of a command that ended before it had its terminal; do nothing if it runs."""
    with suppress(TimeoutError):
        code = process.wait(_END_S).exit_code
        raise ExecStartError(
            f"the command ended with exit code {code} before it had its terminal; start it again"
        )
