"""A command that runs in the background of its caller: one exec in a thread, with its input, output
and signals.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import BinaryIO, Protocol

import attrs

from hyperruntime.concurrency.blocking import EXECS, blocking
from hyperruntime.concurrency.closing import AsyncClosing
from hyperruntime.concurrency.end_event import EndEvent
from hyperruntime.concurrency.exhaustion import too_many_files
from hyperruntime.errors import ContainerLostError, ContainerStateError
from hyperruntime.exec.exec_script import ExecRequest
from hyperruntime.exec.execution import End, Execution
from hyperruntime.exec.options import ExecOptions, Stream
from hyperruntime.exec.session import Session
from hyperruntime.exec.streams import OutputBuffer
from hyperruntime.exec.user_sessions import UserSessions
from hyperruntime.spec import ExecResult

_END_S = 2.0  # for the lane of a killed command to report its end
_LEAST_BYTES = 2  # that an execution keeps itself: the process keeps the output
_ENDED = (
    "nothing reads the standard input: the command has ended, or its input was closed or given "
    "at the start"
)


class TakesSignals(ABC):
    """A process, terminal or shell in a container, which takes signals."""

    __slots__ = ()

    @abstractmethod
    def signal(self, number: int) -> bool:
        """Send a signal; return whether a process could get it."""

    def interrupt(self) -> bool:
        """Send SIGINT, as Ctrl-C does; see :meth:`signal`."""
        return self.signal(signal.SIGINT)

    async def asignal(self, number: int) -> bool:
        """Do what :meth:`signal` does without blocking the event loop."""
        return await blocking(EXECS, partial(self.signal, number))

    async def ainterrupt(self) -> bool:
        """Do what :meth:`interrupt` does without blocking the event loop."""
        return await blocking(EXECS, self.interrupt)


class ProcessExecution(Execution):
    """An exec that says when its process was started and when its input ended; if cancelled, it
    counts as killed.
    """

    def __init__(self, session: Session, request: ExecRequest, options: ExecOptions) -> None:
        """Prepare; see :class:`Execution`. It must have input, because only then it reports its
        start.
        """
        super().__init__(session, request, options)
        self._on_started: Callable[[], None] = lambda: None
        self._on_input_end: Callable[[], None] = lambda: None

    def report_to(self, on_started: Callable[[], None], on_input_end: Callable[[], None]) -> None:
        """Call these; see :class:`Command`. Must be called before it runs."""
        self._on_started = on_started
        self._on_input_end = on_input_end

    def _on_event(self, descriptor: int, event: int) -> None:
        if descriptor == self._cancel_fd:
            # its lane may be stopped, so it is killed with the command
            self._end = self._end or End.GONE
            return
        super()._on_event(descriptor, event)
        if self._stdin is not None and self._stdin.has_ended:
            self._on_input_end()

    def _on_status(self, word: str) -> None:
        super()._on_status(word)
        if word == "in":
            self._on_started()


class Command(Protocol):
    """A command that a process stands for: in a container of this machine, or of a node."""

    def run(self, on_started: Callable[[], None], on_input_end: Callable[[], None]) -> ExecResult:
        """Run it to its end, in the thread of the process.

        Args:
            on_started: called when its process exists.
            on_input_end: called when nothing reads its input any more.
        """
        ...

    def signal(self, number: int) -> bool:
        """Send a signal to all of its processes; return whether there were any."""
        ...

    def end(self) -> bool:
        """Kill all of its processes; return whether none is left."""
        ...

    def find(self, pid: int | None) -> list[int]:
        """Return the pids of its processes on this machine, or of one of them."""
        ...

    def check_thread(self) -> None:
        """Raise PoolError if this thread must not wait for it."""
        ...


class ContainerCommand:
    """A command in a container of this machine.

    Attributes:
        session: the session that it runs in.
    """

    def __init__(self, sessions: UserSessions, execution: ProcessExecution) -> None:
        """Prepare; nothing runs yet."""
        self._sessions = sessions
        self._execution = execution
        self.session = execution.session

    def run(self, on_started: Callable[[], None], on_input_end: Callable[[], None]) -> ExecResult:
        """Run it to its end; see :class:`Command`."""
        self._execution.report_to(on_started, on_input_end)
        return self._sessions.run(self._execution)

    def signal(self, number: int) -> bool:
        """Send a signal; see :meth:`Process.signal`."""
        return self._sessions.signal(self.session, number, self._execution.marks)

    def end(self) -> bool:
        """Kill all of its processes."""
        try:
            return self._sessions.end_marked(self.session, self._execution.marks)
        except (ContainerLostError, ContainerStateError):
            return True  # everything in it has ended

    def find(self, pid: int | None) -> list[int]:
        """Return the pids of its processes that this user can see."""
        return self.session.find_processes(self._execution.marks, pid)

    def check_thread(self) -> None:
        """Do nothing: every thread may wait for it."""


class Process(AsyncClosing, TakesSignals):
    """A command that runs in the background; made by :meth:`Container.spawn`. Safe to use from many
    threads.

    It ends with :meth:`close`, or with its container. Used as a context manager, it is closed after
    the block.

    Example:
        >>> with runtime.container(spec) as container, container.spawn(["cat"]) as process:
        ...     process.write(b"hello")
        ...     process.close_stdin()
        ...     process.wait().stdout
        b'hello'
    """

    def __init__(self, options: ExecOptions, prepare: Callable[[ExecOptions], Command]) -> None:
        """Start the command and wait until its process exists, or could not be started.

        Args:
            options: its options; without ``input`` its standard input stays open for :meth:`write`.
            prepare: makes the command with the final options.

        Raises:
            HyperRuntimeError: as in :meth:`Container.exec`; no process is left.
        """
        self._on_output = options.on_output
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._limit_bytes = options.output_limit_bytes
        self._output = {name: OutputBuffer(self._limit_bytes) for name in ("stdout", "stderr")}
        self._unread = {name: OutputBuffer(self._limit_bytes) for name in ("stdout", "stderr")}
        self.ended = EndEvent()
        self._over = threading.Event()
        self._begun = threading.Event()
        self._result: ExecResult | None = None
        self._error: BaseException | None = None
        self._writing = threading.Lock()
        self._cancel_fd = self._input = -1
        self._source: BinaryIO | None = None
        try:
            self._command = prepare(self._open(options))
            threading.Thread(target=self._run, name="hyperruntime-process", daemon=True).start()
        except BaseException:
            self._close_descriptors()
            raise
        self._wait_begun()

    def _open(self, options: ExecOptions) -> ExecOptions:
        """Return the options of the execution, with a pipe for the input and a way to cancel it."""
        try:
            self._cancel_fd = os.eventfd(0)
            source = options.input
            if source is None:
                read_end, self._input = os.pipe2(os.O_CLOEXEC)
                os.set_blocking(self._input, False)
                source = self._source = os.fdopen(read_end, "rb", buffering=0)
        except OSError as error:
            raise too_many_files(error) or error from None
        limit_bytes = _LEAST_BYTES
        cancel_fd = self._cancel_fd
        return attrs.evolve(
            options,
            input=source,
            on_output=self._take,
            output_limit_bytes=limit_bytes,
            cancel_fd=cancel_fd,
        )

    def _wait_begun(self) -> None:
        try:
            self._begun.wait()
        except BaseException:
            self._cancel()
            raise
        if self._error is not None:
            raise self._error

    def _cancel(self) -> None:
        with self._lock:
            if self._cancel_fd >= 0:
                os.eventfd_write(self._cancel_fd, 1)

    def _run(self) -> None:
        """Run the exec to its end; in the thread of this process."""
        try:
            result = self._command.run(self._begun.set, self._close_source)
            with self._lock:
                out, err = self._output.values()
                self._result = attrs.evolve(
                    result,
                    stdout=out.value(),
                    stderr=err.value(),
                    truncated=out.truncated or err.truncated,
                )
        except BaseException as error:  # noqa: BLE001 - raised where the result is wanted
            self._error = error
        finally:
            self._close_descriptors()
            # first: its listeners use descriptors that `close` may close after `_over`
            self.ended.set()
            self._over.set()
            self._begun.set()

    def _close_source(self) -> None:
        if self._source is not None:
            self._source.close()  # a blocked writer sees it

    def _close_descriptors(self) -> None:
        self._close_source()
        self.close_stdin()
        with self._lock:
            if self._cancel_fd >= 0:
                os.close(self._cancel_fd)
            self._cancel_fd = -1

    def _take(self, stream: Stream, chunk: bytes) -> None:
        with self._lock:
            self._output[stream].write(chunk)
            self._unread[stream].write(chunk)
        if self._on_output is not None:
            self._on_output(stream, chunk)

    @property
    def stdout(self) -> bytes:
        """All standard output so far; above the limit only its head and tail."""
        with self._lock:
            return self._output["stdout"].value()

    @property
    def stderr(self) -> bytes:
        """All standard error so far; above the limit only its head and tail."""
        with self._lock:
            return self._output["stderr"].value()

    def read(self, stream: Stream = "stdout") -> bytes:
        """Return the output since the last call, without waiting; above the limit only its head and
        tail.
        """
        return self.take(stream)[0]

    def take(self, stream: Stream = "stdout") -> tuple[bytes, bool]:
        """Return what :meth:`read` returns, and whether its middle was dropped."""
        with self._lock:
            unread, self._unread[stream] = self._unread[stream], OutputBuffer(self._limit_bytes)
            return unread.value(), unread.truncated

    def check_thread(self) -> None:
        """Raise PoolError if this thread must not wait: the event loop that carries the connection
        to its node.
        """
        self._command.check_thread()

    @property
    def is_own(self) -> bool:
        """Whether this process of the host started it, and not its parent."""
        return os.getpid() == self._pid

    def poll(self) -> int | None:
        """Return the exit code, or None while the command runs; raises the errors of
        :meth:`wait`.
        """
        if not self._over.is_set():
            return None
        return self.wait().exit_code

    def wait(self, timeout_s: float | None = None) -> ExecResult:
        """Wait until the command has ended and return its result.

        Args:
            timeout_s: seconds to wait; None means no limit. The command runs on after them.

        Raises:
            TimeoutError: it still runs.
            HyperRuntimeError: as in :meth:`Container.exec`.
        """
        if not self._over.is_set():
            self.check_thread()
        return self._wait_result(timeout_s)

    def _wait_result(self, timeout_s: float | None) -> ExecResult:
        if not self._over.wait(timeout_s):
            raise TimeoutError(
                f"the command still runs after {timeout_s} s; wait longer, or close it"
            )
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    async def await_end(self) -> ExecResult:
        """Do what :meth:`wait` does without blocking the event loop."""
        await self.ended.wait()
        return self._wait_result(None)  # at once

    def write(self, data: bytes) -> None:
        """Write to the standard input; wait while the command does not read.

        Raises:
            BrokenPipeError: the command has ended or closed its input, or it was started with
                ``input``.
        """
        with self._writing:
            view = memoryview(data)
            while view:
                if self._input < 0:
                    raise BrokenPipeError(_ENDED)
                try:
                    view = view[os.write(self._input, view) :]
                except BlockingIOError:
                    self.check_thread()
                    poll = select.poll()
                    poll.register(self._input, select.POLLOUT)
                    poll.poll()
                except BrokenPipeError:
                    raise BrokenPipeError(_ENDED) from None

    async def awrite(self, data: bytes) -> None:
        """Do what :meth:`write` does without blocking the event loop."""
        await blocking(EXECS, partial(self.write, data))

    def close_stdin(self) -> None:
        """Let the command read end-of-file, after what was written; may be called again."""
        with self._writing:
            if self._input >= 0:
                os.close(self._input)
                self._input = -1

    def detach_stdin(self) -> int:
        """Return the non-blocking pipe to the standard input, which the caller closes from now on;
        -1 if it is closed.

        :meth:`write` then raises BrokenPipeError.
        """
        with self._writing:
            descriptor, self._input = self._input, -1
            return descriptor

    def signal(self, number: int) -> bool:
        """Send a signal to the command and to all processes that it started; return whether there
        were any.

        Raises:
            ContainerLostError: the container has ended.
            ContainerStateError: it was closed.
            SpecError: ``number`` is not the number of a signal.
        """
        return self._command.signal(number)

    def find(self, pid: int | None = None) -> list[int]:
        """Return the pids here of its processes that this user can see; with a pid, look only at
        that one.
        """
        return self._command.find(pid)

    def close(self) -> bool:
        """Kill the command and all processes that it started; return whether none is left. May be
        called again.

        Does nothing in a forked child.
        """
        if not self.is_own:
            return True
        ended = self._command.end()
        if not ended or not self._over.wait(_END_S):
            self._cancel()  # the command may have stopped its lane, which then reports nothing
        self._over.wait()
        return ended
