"""A persistent bash in a container: each text sees the changes that earlier texts made to the
shell.

Design: docs/design/exec.md#shells.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from typing import Unpack

import attrs

from hyperruntime.concurrency.blocking import run_cancellable
from hyperruntime.concurrency.closing import AsyncClosing
from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    ExecStartError,
    HyperRuntimeError,
    WorkdirNotFoundError,
)
from hyperruntime.exec.exec_marks import Mark
from hyperruntime.exec.exec_script import ExecRequest
from hyperruntime.exec.execution import (
    KILLED_EXIT_CODE,
    TIMEOUT_EXIT_CODE,
    CancelledExecError,
    End,
    Execution,
    no_user_error,
    storage_error,
)
from hyperruntime.exec.lane import Lane
from hyperruntime.exec.options import ExecOptions, TextKeywords
from hyperruntime.exec.persistent.shell_lane import ShellLane, check_text, first_script, next_script
from hyperruntime.exec.session import Session, is_number
from hyperruntime.exec.spawn.process import TakesSignals
from hyperruntime.exec.user_sessions import UserSessions
from hyperruntime.run_as import RunAs
from hyperruntime.spec import ExecResult

_START_TRIES_S = 5.0
# failed starts after which the saved state is dropped, because it may stop bash from starting
_POISONED_TRIES = 2


class Shell(AsyncClosing, TakesSignals):
    """A persistent bash, made by :meth:`Container.shell`; it runs one text at a time, and other
    callers wait.

    Used as a context manager, it is closed after the block.

    Attributes:
        exit_code: the value that the next text sees in ``$?``.
        series: the marks of its processes.

    Example:
        >>> with runtime.container(spec) as container, container.shell() as shell:
        ...     _ = shell.run("cd /tmp; word=hello")
        ...     shell.run('printf "$PWD $word"').stdout
        b'/tmp hello'
    """

    def __init__(
        self, sessions: UserSessions, start: ExecOptions, on_close: Callable[[Shell], None]
    ) -> None:
        """Prepare; bash is started with the first text.

        Args:
            sessions: the sessions of the container.
            start: user, environment, directory and group.
            on_close: called with this shell when it is closed.
        """
        self._sessions = sessions
        self._start = start
        self._on_close = on_close
        self.series = sessions.numbers.open_series(start.group)
        self._turn = threading.Lock()
        self._pid = os.getpid()
        self._lane: ShellLane | None = None
        self._session: Session | None = None
        self._running: _TextExecution | None = None
        self._left: bytes | None = None
        self.exit_code = 0
        self._closed = False

    def run(self, text: str | bytes, **options: Unpack[TextKeywords]) -> ExecResult:
        """Run a text in the shell and return how it ended.

        The next text sees the directory, variables, functions, aliases, options, traps, umask and
        jobs that this one leaves. If the text ends bash, a new bash takes over: with the state at
        the end after ``exit`` or ``set -e``, with the state before the text after ``exec``, a kill
        or the deadline. Earlier jobs keep running, but the new bash does not know them.

        Args:
            text: shell code of any number of lines.
            timeout_s: seconds after which all processes of this text, and only these, are killed;
                None means no limit.
            input: standard input; None means an empty one.
            on_output: as for :meth:`Container.exec`.
            output_limit_bytes: as for :meth:`Container.exec`.
            merge_output: as for :meth:`Container.exec`.

        Raises:
            ContainerLostError: the container ended.
            ContainerStateError: the shell or its container was closed.
            ExecLostError: the shell of its user ended while the text ran; the result is unknown.
            ExecStartError: the image has no bash, or no process could be started for it.
            SpecError: an argument is malformed.
        """
        return self._run(check_text(text), ExecOptions(**options).checked())

    async def arun(self, text: str | bytes, **options: Unpack[TextKeywords]) -> ExecResult:
        """Do what :meth:`run` does without blocking the event loop; cancelling kills this text's
        processes only.
        """
        code = check_text(text)
        ExecOptions(**options).checked()
        return await run_cancellable(
            lambda cancel_fd: self._run(code, ExecOptions(**options, cancel_fd=cancel_fd))
        )

    def signal(self, number: int) -> bool:
        """Send a signal to the processes of the running text, bash among them; return whether a
        text runs.

        Earlier jobs do not get it. A text that is interrupted (SIGINT, as by Ctrl-C) ends with exit
        code 130, unless it traps SIGINT or its command goes on. The next text sees the state that
        it left, but not the earlier jobs, which keep running. Another signal that ends bash has the
        same effect as a kill, see :meth:`run`.

        Raises:
            ContainerLostError: the container ended.
            ContainerStateError: it was closed.
            SpecError: ``number`` is not the number of a signal.
        """
        running = self._running
        return running is not None and self._sessions.signal(running.session, number, running.marks)

    def close(self) -> bool:
        """End the shell and all processes that it started; return whether none is left. May be
        called again.

        Does nothing in a forked child.
        """
        if os.getpid() != self._pid:
            return True
        self._closed = True
        ended = self._end_all()
        while not self._turn.acquire(timeout=0.2):  # a text may have been about to start
            ended = self._end_all()
        self._drop_lane()
        self._turn.release()
        if ended and self._start.group is not None:
            self._sessions.numbers.close_series(self._start.group, self.series)
        self._on_close(self)
        return ended

    def _end_all(self) -> bool:
        try:
            return self._sessions.end_series(self.series)
        except (ContainerLostError, ContainerStateError):
            return True  # everything in it has ended

    def abandon(self) -> None:
        """Close the lane, because the container is gone."""
        self._closed = True
        if self._turn.acquire(blocking=False):  # else the thread that runs a text closes the lane
            self._drop_lane()
            self._turn.release()

    def _run(self, text: bytes, options: ExecOptions) -> ExecResult:
        self._wait_turn(options.cancel_fd)
        try:
            if self._closed:
                raise ContainerStateError("the shell is closed; open another one")
            user = self._sessions.resolve(self._start.user)
            self._start = attrs.evolve(self._start, user=user)
            session = self._sessions.find(user)
            self._running = running = _TextExecution(self, session, text, options)
            return self._sessions.run(running)
        finally:
            self._running = None
            if self._closed:
                self._drop_lane()
            self._turn.release()

    def _wait_turn(self, cancel_fd: int | None) -> None:
        cancelled = select.poll()
        if cancel_fd is not None:
            cancelled.register(cancel_fd, select.POLLIN)
        while not self._turn.acquire(timeout=-1 if cancel_fd is None else 0.05):
            if cancelled.poll(0):
                raise CancelledExecError

    def take_lane(self, session: Session) -> ShellLane:
        """Return the lane of a bash that waits for a text: the current one, or a new one with its
        state.
        """
        if self._lane is not None and (self._session is not session or not _waits(self._lane)):
            self._drop_lane()
        if self._lane is None:
            self._lane = self._begin(session)
            self._session = session
        return self._lane

    def leave_lane(self, *, keep: bool, exit_code: int) -> None:
        """Take the lane back after a text.

        Args:
            keep: whether the next text may use the lane.
            exit_code: exit code of the text.
        """
        self.exit_code = exit_code
        if not keep:
            self._drop_lane()

    def _drop_lane(self) -> None:
        if self._lane is not None and self._session is not None:
            self._lane.hear_state()
            self._left = self._lane.left or self._left
            self._session.lanes.retire(self._lane)
        self._lane = self._session = None

    def _begin(self, session: Session) -> ShellLane:
        """Start a bash and wait until it is ready; retry for a few seconds if it does not start."""
        deadline = time.monotonic() + _START_TRIES_S
        pause_s = 0.02
        failures = 0
        while True:
            lane, said = self._try(session, checks=failures > 0)
            if said == "ready":
                return lane
            session.lanes.retire(lane)
            failures += said != "fork"
            if failures >= _POISONED_TRIES:
                self._left = None
            if not session.responds():
                raise ContainerLostError("the container ended while a shell was starting in it")
            if said in ("bash", "user", "dir") or time.monotonic() > deadline:
                raise self._explain(said)
            time.sleep(pause_s)
            pause_s *= 1.5

    def _try(self, session: Session, *, checks: bool) -> tuple[ShellLane, str]:
        """Start a bash; return its lane and the first status word of :func:`_first_word`."""
        start = self._start
        body = (
            next_script(self._left)
            if self._left is not None
            else first_script(start.env or {}, start.workdir)
        )
        user = start.user if isinstance(start.user, RunAs) else None
        try:
            lane = session.lanes.make(ShellLane, user, checks=checks)
            lane.prepare(body, session.next_mark(self.series), start.env or {})
        except OSError as error:
            raise storage_error(error) from error
        session.lanes.begin(lane)
        return lane, _first_word(lane, session)

    def _explain(self, said: str) -> HyperRuntimeError:
        if said == "bash":
            return ExecStartError(
                "the image has no bash, which a persistent shell needs; install bash in the "
                "image, or use exec"
            )
        if said == "user" and isinstance(self._start.user, RunAs):
            return no_user_error(self._start.user)
        if said == "dir":
            return WorkdirNotFoundError(str(self._start.workdir))
        return ExecStartError(
            "no process could be started in the container for a shell (its pids limit, or its "
            "user's, is reached); end other processes in it, or raise the limit"
        )


class _TextExecution(Execution):
    """One text, run by a persistent bash."""

    def __init__(self, shell: Shell, session: Session, text: bytes, options: ExecOptions) -> None:
        has_input = options.input is not None
        merge = options.merge_output
        request = ExecRequest(
            args=(text,), env={}, workdir=None, has_input=has_input, merge_output=merge
        )
        super().__init__(session, request, options)
        self._shell = shell
        self._over = False

    def _take_lane(self) -> Lane:
        return self._shell.take_lane(self.session)

    def _leave_lane(self, lane: Lane, reusable: bool) -> None:
        codes: dict[End | None, int] = {End.TIMEOUT: TIMEOUT_EXIT_CODE, End.EXIT: self._exit_code}
        ended = self._end is not End.EXIT
        if ended and isinstance(lane, ShellLane):
            lane.undo_text()
        code = codes.get(self._end, KILLED_EXIT_CODE)
        self._shell.leave_lane(keep=reusable and not self._over and not ended, exit_code=code)

    def _next_mark(self) -> Mark:
        return self.session.next_mark(self._shell.series)

    def _attend(self) -> None:
        super()._attend()
        assert isinstance(self._lane, ShellLane)
        # bash waits while more of its state is unread than fits
        self._poll.register(self._lane.state, select.POLLIN)

    def _start(self, lane: Lane) -> None:
        assert isinstance(lane, ShellLane)
        lane.hear_state()
        lane.begin_text(self._request, self._mark, self._shell.exit_code)

    def _on_event(self, descriptor: int, event: int) -> None:
        if isinstance(self._lane, ShellLane) and descriptor == self._lane.state:
            self._lane.hear_state()
        else:
            super()._on_event(descriptor, event)

    def _on_lane(self, words: list[str]) -> None:
        match words:
            case ["end", code] if is_number(code, 3) and int(code) < 256:
                self._over = True
                self._end, self._exit_code = self._end or End.EXIT, int(code)

    def _unless_never_made(self, end: End) -> End:
        return end

    def _was_not_executed(self) -> bool:
        return False  # bash ran the text, so every exit code is the text's


def _waits(lane: ShellLane) -> bool:
    """Return whether a bash still waits for a text."""
    return lane.is_usable() and not any(words[:1] == ["end"] for words in _said(lane))


def _first_word(lane: ShellLane, session: Session) -> str:
    """Return the first status word about the start: ``ready``, the reason of a failure, or
    ``nothing``.

    ``ready`` counts once the lane has begun too: until then its start may still be reported as
    failed.
    """
    deadline = time.monotonic() + session.patience_s
    is_ready = False
    poll = select.poll()
    poll.register(lane.status, select.POLLIN)
    poll.register(lane.state, select.POLLIN)
    while (remaining := deadline - time.monotonic()) > 0 and not session.lost.is_set():
        if poll.poll(int(remaining * 1000) + 1):
            lane.hear_state()
            for words in _said(lane):
                # without its group, in which earlier jobs are too
                lane.on_report(has_begun=words[0] == "begun", is_up=words[0] in ("up", "ready"))
                is_ready = is_ready or words[0] == "ready"
                if words[0] not in ("begun", "group", "ready", "up"):
                    return words[0]
            if is_ready and lane.has_begun:
                return "ready"
    return "nothing"


def _said(lane: ShellLane) -> list[list[str]]:
    """Return the status lines of the lane since the last call, as words; its end is ``["end"]``."""
    lines = lane.read_status()
    if lines is None:
        return [["end"]]
    return [words[1:] for words in lines if words[0] == "0" and len(words) > 1]
