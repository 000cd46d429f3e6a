"""The lanes of a container: shells inside, each with FIFOs for one exec at a time; the idle and the
new lanes of a session.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import select
import shutil
import stat
import termios
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TypeVar

from hyperruntime.exec.exchange import Exchanges
from hyperruntime.exec.exec_marks import Mark
from hyperruntime.exec.exec_script import ExecRequest, lane_script
from hyperruntime.run_as import RunAs

L = TypeVar("L", bound="Lane")

_NO_BYTES = bytes(4)  # an int of the C language
_READ_INSIDE = ("go", "i")  # FIFOs that are read in the container; the others are written there


class Lane:
    """The host's end of one lane. Between two execs it holds only one descriptor, ``go``.

    Attributes:
        program: name of the shell program that runs in it, as the supervisor's request.
        name: name of its directory in the exchange directory; a secret between the host and its
            user inside.
        user: user of its commands; None means the user of its session.
        mark: mark of its own processes, from the first one on.
        sequence: number of the current or last exec.
        group: process group (and session) of its shell inside; 0 while unknown or shared.
        has_begun: whether it can be handed a command; before that, its start may still count as
            failed.
        is_up: whether its shell has reported that it runs.
        checks: whether it must report the reason if it cannot start.
        input: descriptor that feeds the running command, or None.
        go: descriptor that starts an exec.
        status: descriptor from which the host reads its status lines; -1 while the lane rests.
    """

    program = "lane"
    # of a longer, earlier script that may stay in the file: the shell returns before them
    _max_rest_bytes = 65536

    def __init__(
        self,
        exchange: str,
        mark: Mark,
        user: RunAs | None = None,
        *,
        checks: bool = False,
        exchanges: Exchanges | None = None,
    ) -> None:
        """Make the directory and its FIFOs; nothing runs yet.

        Args:
            exchange: the exchange directory on the host.
            mark: mark of the lane's processes.
            user: user of its commands; None means the session's user.
            checks: whether it must report the reason if it cannot start.
            exchanges: has directories of lanes that ended, for use again.

        Raises:
            OSError: no space, or too many open files.
        """
        self.name = secrets.token_hex(16)
        self.mark = mark
        self.user = user
        self.checks = checks
        self.is_up = False
        self.has_begun = False
        self.sequence = self.group = 0
        self.input: int | None = None
        self._dir = os.path.join(exchange, self.name)
        self._prologue = b"" if user is None else user.prologue()
        self._open: list[int] = []
        self._script_bytes = 0
        self._has_rested = False
        is_spare = exchanges is not None and user is None and exchanges.take_lane(self._dir)
        if not is_spare:
            os.mkdir(self._dir)
        try:
            if not is_spare:
                os.chmod(self._dir, 0o755)
                for name in ("go", "i", "o", "e", "s"):
                    self._make_fifo(name)
                self._write_script(b"")
                os.chmod(self._path("c"), 0o644)
            self.go = self._keep(self._open_fifo("go", os.O_RDWR))
            self.status = self._keep(self._open_fifo("s", os.O_RDONLY))
        except BaseException:
            self.close()
            raise

    def is_usable(self) -> bool:
        """Return whether its shell runs or may still start, and no other process has written to
        ``go``.
        """
        poll = select.poll()
        poll.register(self.status, 0)
        poll.register(self.go, 0)
        return fcntl.ioctl(self.go, termios.FIONREAD, _NO_BYTES) == _NO_BYTES and not poll.poll(0)

    def rest(self) -> None:
        """Close every descriptor but one until :meth:`wake`, after an exec has ended.

        From now on ``go`` is open for writing only, so that the end of the shell, its only reader,
        shows.

        Raises:
            OSError: too many open files.
        """
        if not self._has_rested:
            both, self.go = self.go, self._keep(self._open_fifo("go", os.O_WRONLY))
            self._has_rested = True
            self._drop(both)
        self._drop(self.status)
        self.status = -1

    def wake(self) -> bool:
        """Prepare for another exec after :meth:`rest`; return whether the lane is usable.

        Raises:
            OSError: too many open files.
        """
        # First `s`, then a look at `go`: the kernel reports the end of a writer only if it was
        # there at this moment.
        self.status = self._keep(self._open_fifo("s", os.O_RDONLY))
        return self.is_usable()

    def next_exec(self) -> None:
        """Begin the next exec: from now on only status lines with its number count."""
        self.sequence += 1

    def on_report(self, *, has_begun: bool = False, is_up: bool = False, group: int = 0) -> None:
        """Record what the lane reports about itself.

        Args:
            has_begun: whether it can be handed a command.
            is_up: whether its shell runs.
            group: its process group; only the first one counts, because no command ran before it.
        """
        self.group = self.group or group
        self.has_begun = self.has_begun or has_begun
        self.is_up = self.is_up or is_up

    def start(self, request: ExecRequest, mark: Mark, *, announce: bool) -> None:
        """Start the command of the current exec; see :func:`lane_script` for the arguments.

        Raises:
            OSError: the script could not be written (no space).
            BlockingIOError: the ``go`` FIFO is full.
        """
        script, self._prologue = (
            self._prologue + lane_script(request, self.sequence, mark, announce=announce),
            b"",
        )
        self._write_script(script)
        with suppress(BrokenPipeError):  # the shell has just ended: its status shows it
            os.write(self.go, b"\n")

    def read_status(self) -> list[list[str]] | None:
        """Return the words of each status line that has arrived; None at the end, when no process
        holds the FIFO.
        """
        try:
            data = os.read(self.status, 4096)
        # poll saw the end, but another process has opened the other end again for a moment
        except BlockingIOError:
            return []
        return (
            [line.split(" ") for line in data.decode(errors="replace").splitlines()]
            if data
            else None
        )

    def wait_for(self, word: str, timeout_s: float) -> str | None:
        """Return the rest of the status line that begins with ``0 WORD``; None if the lane ends or
        the time is up.

        Args:
            word: second word of the status line.
            timeout_s: seconds to wait.
        """
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self.status, select.POLLIN)
        while (remaining := deadline - time.monotonic()) > 0:
            if poll.poll(int(remaining * 1000) + 1):
                lines = self.read_status()
                if lines is None:
                    return None
                for words in lines:
                    if words[:2] == ["0", word]:
                        return " ".join(words[2:])
        return None

    def open_stream(self, name: str) -> int:
        """Return a new non-blocking read end of stream ``o`` or ``e``; the caller closes it."""
        return self._open_fifo(name, os.O_RDONLY)

    def open_input(self) -> None:
        """Open a new input for reading and writing, so that it is writable before the command opens
        it.
        """
        self.renew_stream("i")
        self.input = self._open_fifo("i", os.O_RDWR)

    def hand_over_input(self) -> int | None:
        """Keep and return only the write end, after the command opened the read end; None if no
        process reads.
        """
        both = self.input
        try:
            self.input = self._open_fifo("i", os.O_WRONLY)
        except OSError:
            self.input = None
        finally:
            if both is not None:
                os.close(both)
        return self.input

    def close_input(self) -> None:
        """Let the command read end-of-file."""
        if self.input is not None:
            descriptor, self.input = self.input, None
            os.close(descriptor)

    def renew_stream(self, name: str) -> None:
        """Replace FIFO ``name`` by a new one for the next exec; a process may still hold the old
        one.
        """
        os.unlink(self._path(name))
        self._make_fifo(name)

    def hang_up(self) -> None:
        """Make a thread that waits for its status see the end, because the container is gone."""
        try:
            os.close(self._open_fifo("s", os.O_WRONLY))
        except OSError:
            pass  # the lane is closed

    def close(self, exchanges: Exchanges | None = None) -> None:
        """Close every descriptor (an idle lane inside then ends) and remove the directory.

        Args:
            exchanges: keeps the directory for another lane, if all processes that knew it are dead.
        """
        self.close_input()
        is_given = exchanges is not None and self.user is None
        if is_given:  # the next lane must not find what was written to these
            self._close_all()
        # Else remove the names before closing: a process that opens a FIFO now must find our end or
        # no file, never wait.
        if exchanges is None or not is_given or not exchanges.give_lane(self._dir):
            shutil.rmtree(self._dir, ignore_errors=True)
        self._close_all()

    def _close_all(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def descriptors(self) -> tuple[int, ...]:
        """Return the open descriptors of the lane."""
        return tuple(self._open) if self.input is None else (*self._open, self.input)

    def _write_script(self, script: bytes) -> None:
        written = 0
        file = os.open(
            self._path("c"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
        )
        try:
            while written < len(script):
                written += os.write(file, script[written:])
            if self._script_bytes > len(script) + self._max_rest_bytes:
                os.ftruncate(file, len(script))
        finally:
            os.close(file)
        self._script_bytes = len(script)

    def _path(self, name: str) -> str:
        return f"{self._dir}/{name}"

    def _make_fifo(self, name: str) -> None:
        os.mkfifo(self._path(name))
        # The supervisor opens `s` for reading too, as its own user, so that the open never waits:
        # see supervisor.sh.
        opened_twice = name == "s" and self.user is None
        os.chmod(
            self._path(name), 0o644 if name in _READ_INSIDE else 0o666 if opened_twice else 0o622
        )

    def _open_fifo(self, name: str, flags: int) -> int:
        descriptor = os.open(self._path(name), flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(f"{self._path(name)} is not a FIFO")
        return descriptor

    def _keep(self, descriptor: int) -> int:
        self._open.append(descriptor)
        return descriptor

    def _drop(self, descriptor: int) -> None:
        self._open.remove(descriptor)
        os.close(descriptor)


class LanePool:
    """The lanes that a supervisor has started; safe to use from many threads.

    Attributes:
        started: how many lanes have reported to their exec that they run.
    """

    def __init__(
        self,
        exchange: str,
        request: Callable[[Lane], None],
        next_mark: Callable[[], Mark],
        exchanges: Exchanges | None = None,
    ) -> None:
        """Prepare; no lane exists yet.

        Args:
            exchange: directory in which the lanes' directories are made.
            request: asks the supervisor to start a lane.
            next_mark: returns the mark of a new lane.
            exchanges: has directories of lanes that ended, for use again.
        """
        self._exchange = exchange
        self._exchanges = exchanges
        self._request = request
        self._next_mark = next_mark
        self._lock = threading.Lock()
        self._idle: dict[RunAs | None, list[Lane]] = {}
        self._lanes: set[Lane] = set()
        # uid and mark of each lane that may still have processes of root
        self._unseen: set[tuple[int, Mark]] = set()
        self.started = 0
        self._closing = False

    def lane_for(self, user: RunAs | None, *, checks: bool) -> Lane:
        """Return a lane for one exec as a user: an idle lane, else a new one.

        Args:
            user: user of the lane; None means the session's own.
            checks: whether a new lane must report the reason if it cannot start.

        Raises:
            ContainerLostError: the container is gone.
            OSError: no space or no file descriptors for a new lane.
        """
        while (idle := self._pop_idle(user)) is not None:
            try:
                if idle.wake():
                    return idle
            except BaseException:
                self.retire(idle)
                raise
            self.retire(idle)
        return self.begin(self.make(partial(Lane, exchanges=self._exchanges), user, checks=checks))

    def make(self, kind: Callable[..., L], user: RunAs | None, *, checks: bool = False) -> L:
        """Return a new lane; nothing runs in it before :meth:`begin`.

        Args:
            kind: class of the lane.
            user: user of the lane; None means the session's own.
            checks: whether it must report the reason if it cannot start.

        Raises:
            OSError: no space or no file descriptors.
        """
        return kind(self._exchange, self._next_mark(), user, checks=checks)

    def begin(self, lane: L) -> L:
        """Start a lane from :meth:`make` and return it; raises the errors of :meth:`lane_for`."""
        with self._lock:
            self._lanes.add(lane)
            if lane.user is not None:
                self._unseen.add((lane.user.uid, lane.mark))
        try:
            self._request(lane)
        except BaseException:
            self.retire(lane)
            raise
        return lane

    def on_report(
        self, lane: Lane, *, has_begun: bool = False, is_up: bool = False, group: int = 0
    ) -> None:
        """Pass a lane what it reports about itself; see :meth:`Lane.on_report`."""
        self.started += is_up and not lane.is_up
        lane.on_report(has_begun=has_begun, is_up=is_up, group=group)

    def keep(self, lane: Lane) -> None:
        """Keep a clean lane for the next exec of its user."""
        try:
            lane.rest()
        except BaseException as error:
            self.retire(lane)
            if isinstance(error, OSError):  # no descriptor is left; the next exec gets a new lane
                return
            raise
        with self._lock:
            if not self._closing and lane in self._lanes:
                self._idle.setdefault(lane.user, []).append(lane)
                return
        self.retire(lane)

    def retire(self, lane: Lane) -> None:
        """Close a lane that must not be reused."""
        with self._lock:
            self._lanes.discard(lane)
            self._see(lane)
        lane.close()

    def forget(self, uid: int) -> None:
        """Close the idle lanes of a uid now, and its lanes in use as soon as they are free."""
        with self._lock:
            users = [user for user in self._idle if user is not None and user.uid == uid]
            idle = [lane for user in users for lane in self._idle.pop(user)]
            for lane in tuple(self._lanes):
                if lane.user is not None and lane.user.uid == uid:
                    self._lanes.discard(lane)
                    self._see(lane)
        for lane in idle:
            lane.close()

    def unseen(self, uid: int) -> tuple[Mark, ...]:
        """Return the marks of a uid's lanes that have not reported that they run as that user.

        Processes of such a lane are still root's and may become the user's, even after the lane was
        retired.
        """
        with self._lock:
            return tuple(mark for known, mark in self._unseen if known == uid)

    def forget_unseen(self, uid: int, marks: Collection[Mark]) -> None:
        """Forget marks that have no living process."""
        with self._lock:
            self._unseen.difference_update((uid, mark) for mark in marks)

    def close(self, *, ended: bool = False) -> None:
        """Close the idle lanes; a lane in use is closed by the thread that uses it.

        Args:
            ended: whether all processes of the container are dead.
        """
        with self._lock:
            self._closing = True
            idle = [lane for lanes in self._idle.values() for lane in lanes]
            self._idle.clear()
            self._lanes.difference_update(idle)
        for lane in idle:
            lane.close(self._exchanges if ended else None)

    def all(self) -> tuple[Lane, ...]:
        """Return every lane. Lock-free: the lock holder does not exist in a forked child."""
        return tuple(self._lanes)

    def _see(self, lane: Lane) -> None:
        """Forget the mark of a retired lane if all its processes run as its user."""
        if lane.user is not None and lane.is_up:
            self._unseen.discard((lane.user.uid, lane.mark))

    def _pop_idle(self, user: RunAs | None) -> Lane | None:
        with self._lock:
            lanes = self._idle.get(user)
            lane = lanes.pop() if lanes else None
            if not lanes:
                self._idle.pop(user, None)
            return lane
