"""Run one exec in a session: the poll loop between a command's streams and its caller. See
docs/design/exec.md#lanes.

The calling thread does all the work, so no thread switch delays the result.
"""

from __future__ import annotations

import enum
import math
import os
import select
import time

from hyperruntime.concurrency.exhaustion import too_many_files
from hyperruntime.errors import (
    ContainerLostError,
    ExecStartError,
    HyperRuntimeError,
    StorageError,
    WorkdirNotFoundError,
    write_error,
)
from hyperruntime.exec.exchange import EXCHANGE_TARGET
from hyperruntime.exec.exec_marks import Mark, Span
from hyperruntime.exec.exec_script import ExecRequest, StartFailure
from hyperruntime.exec.lane import Lane
from hyperruntime.exec.options import ExecOptions
from hyperruntime.exec.session import Session, is_number
from hyperruntime.exec.streams import InputSource, OutputStreams, Stdin
from hyperruntime.host.temporary import STEP
from hyperruntime.logs import get_logger
from hyperruntime.run_as import RunAs
from hyperruntime.spec import ExecResult

log = get_logger(__name__)

TIMEOUT_EXIT_CODE = 124
_NOT_EXECUTED_CODES = (126, 127)
KILLED_EXIT_CODE = 137
_HEARTBEAT_S = 5.0
_START_TRIES_S = 5.0
_BRIEF_S = 0.005  # a command that ends sooner wakes this thread once: its output is read at its end
_IN = select.POLLIN


class CancelledExecError(Exception):
    """The caller cancelled the exec."""


class End(enum.Enum):
    """How an attempt to run a command ended."""

    EXIT = enum.auto()
    TIMEOUT = enum.auto()
    GONE = enum.auto()  # its lane died; the command is killed with it
    NOT_STARTED = enum.auto()  # no process could be started
    NO_USER = enum.auto()  # the container does not have its uid or gid


class Execution:
    """One command from request to result; used once, by one thread.

    Attributes:
        session: the session in which it runs.
        marks: the mark of its processes, as a range; empty before they can exist.
    """

    def __init__(self, session: Session, request: ExecRequest, options: ExecOptions) -> None:
        """Prepare; nothing runs yet.

        Args:
            session: lends the lane in which the command runs, and kills process trees.
            request: the command.
            options: its deadline, streams, user and group.
        """
        self.session = session
        self._lanes = session.lanes
        self._handed_over = False
        self._request = request
        self._group = options.group
        self._input = None if options.input is None else InputSource(options.input)
        self._timeout_s = options.timeout_s
        self._cancel_fd = options.cancel_fd
        self._user = options.user if isinstance(options.user, RunAs) else None
        self._output = OutputStreams(options.output_limit_bytes, options.on_output)
        self._stdin: Stdin | None = None
        self.marks: tuple[Span, ...] = ()
        self._tries = 0
        self._poll = select.poll()

    def run(self) -> ExecResult:
        """Run the command to its end, its deadline, or the end of its container.

        Raises:
            ContainerLostError: the container ended or stopped answering.
            ExecStartError: no process could be started for it, or the container does not have its
                user.
            WorkdirNotFoundError: its working directory does not exist or cannot be entered.
            StorageError: the host has no space or no file descriptors left for the exchange files.
            CallerError: the callback or the input source failed.
            CancelledExecError: the caller cancelled it.
        """
        self._started = time.monotonic()
        self._deadline = None if self._timeout_s is None else self._started + self._timeout_s
        patience = self._started + _START_TRIES_S
        pause_s = 0.02
        try:
            while (result := self._attempt()) is None:
                if time.monotonic() + pause_s > min(patience, self._deadline or patience):
                    raise ExecStartError(
                        "no process could be started in the container for this command (its "
                        "pids limit, or its user's, is reached); end other processes in it, or "
                        "raise Limits.pids or RunAs.pids"
                    )
                time.sleep(pause_s)
                pause_s *= 1.5
            return result
        finally:
            if self._input is not None:
                self._input.close()

    def _attempt(self) -> ExecResult | None:
        """Run it once; return None if no process could be started for it."""
        self._end: End | None = None
        self._exit_code = 0
        self._tries += 1
        self._made = self._no_workdir = self._has_failed = self._handed_over = reusable = False
        try:
            lane = self._take_lane()
        except HyperRuntimeError:
            raise
        except OSError as error:
            raise storage_error(error) from error
        try:
            self._mark = self._next_mark()
            self._lane = lane
            self.marks = (self._mark.span,)
            self._open(lane)
            self._wait()
            reusable = self._finish()
            if self._no_workdir:
                raise WorkdirNotFoundError(str(self._request.workdir))
            return self._result()
        except (ContainerLostError, StorageError, WorkdirNotFoundError):
            raise
        except BaseException:
            if not self._has_ended_tree():
                log.warning("exec not ended", program=os.fsdecode(self._request.args[0]))
            raise
        finally:
            self._output.close()
            lane.close_input()
            self._leave_lane(lane, reusable)

    def _take_lane(self) -> Lane:
        return self._lanes.lane_for(self._user, checks=self._tries > 1)

    def _leave_lane(self, lane: Lane, reusable: bool) -> None:
        (self._lanes.keep if reusable else self._lanes.retire)(lane)

    def _next_mark(self) -> Mark:
        return self.session.next_mark(self._group)

    def _start(self, lane: Lane) -> None:
        self._failure = StartFailure(self._request, f"{EXCHANGE_TARGET}/{lane.name}")
        self._output.expect(
            "stdout" if self._request.merge_output else "stderr", self._failure.may_be
        )
        lane.start(self._request, self._mark, announce=self.session.announces)

    def _open(self, lane: Lane) -> None:
        try:
            lane.next_exec()
            self._poll = select.poll()
            self._poll.register(lane.status, _IN)
            self._output.open(lane)
            self._attends = False
            self._brief_until = time.monotonic() + _BRIEF_S
            if self._input is not None:
                lane.open_input()
                self._stdin = Stdin(self._input, lane, self._poll)
            if self._cancel_fd is not None:
                self._poll.register(self._cancel_fd, _IN)
            if self._input is not None or self._output.is_watched:
                self._attend()
            if lane.has_begun:
                self._hand_over()
        except OSError as error:
            raise storage_error(error) from error

    def _hand_over(self) -> None:
        self._handed_over = True
        try:
            self._start(self._lane)
        except BlockingIOError as error:
            raise ContainerLostError(
                "a process in the container blocks the lane that starts commands"
            ) from error
        except OSError as error:
            raise storage_error(error) from error

    def _attend(self) -> None:
        """From now on read the output while the command runs."""
        self._attends = True
        self._output.attend(self._poll)

    def _wait(self) -> None:
        while not self._has_ended():
            events = self._poll.poll(self._poll_ms())
            for descriptor, event in events:
                self._on_event(descriptor, event)
            now = time.monotonic()
            if self._has_ended():
                return
            if self._deadline is not None and now >= self._deadline:
                self._end = End.TIMEOUT
            elif not self._attends and now >= self._brief_until:
                self._attend()
            elif self._attends and not events:
                self._check_alive()

    def _has_ended(self) -> bool:
        return self._end is not None

    def _check_alive(self) -> None:
        remaining = math.inf if self._deadline is None else self._deadline - time.monotonic()
        patience = self.session.patience_s
        answered = self.session.responds(min(patience, remaining))
        if not answered and (remaining >= patience or self.session.lost.is_set()):
            raise ContainerLostError("the container stopped answering while a command ran in it")

    def _poll_ms(self) -> int:
        most_s = _HEARTBEAT_S if self._attends else _BRIEF_S
        if self._deadline is None:
            return int(most_s * 1000)
        return int(max(0.0, min(most_s, self._deadline - time.monotonic())) * 1000) + 1

    def _on_event(self, descriptor: int, event: int) -> None:
        if descriptor in self._output:
            self._output.read(descriptor)
        elif descriptor == self._lane.status:
            self._read_status()
        elif descriptor == self._cancel_fd:
            raise CancelledExecError
        elif self._stdin is not None:
            self._stdin.on_event(descriptor, event)

    def _read_status(self) -> None:
        """Read the lane's status lines; malformed lines come from a hostile command and are
        skipped.
        """
        lines = self._lane.read_status()
        if lines is None:
            never_up = not self._handed_over or (
                self._lane.user is not None and not self._lane.is_up
            )
            self._end = self._end or (
                End.NOT_STARTED if never_up else self._unless_never_made(End.GONE)
            )
            return
        for line in lines:
            match line:
                case ["0", *words]:
                    self._on_lane(words)
                case [number, word] if number == str(self._lane.sequence):
                    self._on_status(word)
                case _:
                    pass

    def _on_lane(self, words: list[str]) -> None:
        match words:
            case ["group" | "up" as word, group] if is_number(group, 10):
                self._lanes.on_report(self._lane, is_up=word == "up", group=int(group))
            case ["begun"] if not self._handed_over and self._end is None:
                self._lanes.on_report(self._lane, has_begun=True)
                self._hand_over()
            case ["fork"]:
                self._end = self._end or End.NOT_STARTED
            case ["user"] if self._lane.checks:
                self._end = self._end or End.NO_USER

    def _on_status(self, word: str) -> None:
        if word == "in":
            self._made = True
            if self._stdin is not None:
                self._stdin.start()
        elif word == "dir":
            # the lane is free only after the exit status, which follows
            self._no_workdir = self._made = True
        elif word == "failed":
            self._has_failed = True
        elif self._end is None and is_number(word, 3) and int(word) < 256:
            self._exit_code = int(word)
            self._end = self._unless_never_made(End.EXIT)

    def _unless_never_made(self, end: End) -> End:
        return End.NOT_STARTED if self.session.announces and not self._made else end

    def _finish(self) -> bool:
        """Act on the way the command ended; return whether the lane can be reused."""
        match self._end:
            case End.EXIT:
                self._output.drain()
                self._output.renew(self._lane, self.session.drain)
                return True
            case End.TIMEOUT:
                self._end_tree()
                self._output.drain()
            case End.GONE:
                self.session.on_death()
                if not self.session.responds():
                    raise ContainerLostError("the container ended while a command ran in it")
                self._end_tree()
                self._output.drain()
        return False

    def _result(self) -> ExecResult | None:
        """Return the result, or None if no process was started, so that the exec may be retried."""
        if self._end is End.NOT_STARTED:
            return None
        if self._end is End.NO_USER:
            raise no_user_error(self._user)
        if self._end is not End.EXIT:
            self._exit_code = TIMEOUT_EXIT_CODE if self._end is End.TIMEOUT else KILLED_EXIT_CODE
        not_executed = self._was_not_executed()
        self._output.settle(
            self._failure.sentence(self._exit_code, self._output.held) if not_executed else None
        )
        out, err = self._output.buffers.values()
        return ExecResult(
            args=tuple(map(os.fsdecode, self._request.args)),
            exit_code=self._exit_code,
            stdout=out.value(),
            stderr=err.value(),
            timed_out=self._end is End.TIMEOUT,
            truncated=out.truncated or err.truncated,
            not_executed=not_executed,
            duration_s=time.monotonic() - self._started,
        )

    def _was_not_executed(self) -> bool:
        """Return whether the exit code is the shell's, because it could not execute the program."""
        if self._end is not End.EXIT or self._exit_code not in _NOT_EXECUTED_CODES:
            return False
        out, err = self._output.buffers.values()
        if self._has_failed or (out.total_bytes and not self._request.merge_output):
            return self._has_failed
        return self._failure.is_told(
            self._output.held or (out if self._request.merge_output else err).start
        )

    def _has_ended_tree(self) -> bool:
        """Kill the command and its lane; return whether no process is left."""
        if not self._handed_over:  # the lane ends by itself, without its command
            return True
        return self.session.end_tree(self._lane.group, (self._mark, self._lane.mark))

    def _end_tree(self) -> None:
        if not self._has_ended_tree():
            raise ContainerLostError(
                f"processes that {os.fsdecode(self._request.args[0])!r} started could not be "
                "killed, so the container is lost"
            )


def no_user_error(user: RunAs | None) -> ExecStartError:
    """Return the error for a user that the container does not have."""
    return ExecStartError(
        f"no process can run as {user} in this container: the engine maps no such ids; use a "
        "uid and a gid below 65536"
    )


def storage_error(error: OSError) -> StorageError:
    """Return the error for a host that has no space or no file descriptors left."""
    message = f"the exchange directory cannot be used: {error}; free space there, or {STEP}"
    return too_many_files(error) or write_error(message, error)
