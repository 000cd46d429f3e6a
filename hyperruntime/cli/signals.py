"""Handle ending signals: record them, cancel event loops, and end the process in bounded time.

Every command loads this module, so it imports asyncio only when a loop runs.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hyperruntime.cli.streams import hurry, takes_output

if TYPE_CHECKING:
    from hyperruntime.runs.drain import Drain

T = TypeVar("T")
Listener = Callable[[int], None]

EXIT_BY_SIGNAL = 128
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
# from the first signal; cleaning up takes a few seconds, and schedulers often wait 30
GRACE_S = 30.0
_WAKE = 0  # no signal has this number
BURST_S = 1.0  # one cause can send several signals: a closing session sends SIGTERM and SIGHUP
_NUDGE = signal.SIGURG  # ignored by default, and not used otherwise here
_LATE = "the command did not end within {:g} s"
_DRAWING = "hyperrun-plots"
_TWICE = "a second signal came before the command ended"


class SignalWatch:
    """Records ending signals, and ends the process if it does not end in time after one.

    Python writes the number of every handled signal to the wakeup file descriptor when the signal
    arrives, before any handler in Python runs. A thread reads it there. So the main thread may be
    in any state: it may wait for a lock, or lose the exception that a handler raised.

    Source: :func:`signal.set_wakeup_fd`; the notes on handlers and exceptions in the documentation
    of ``signal``.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        """Start to watch; call it in the main thread only.

        Args:
            grace_s: seconds that the process may take to end after the first signal.

        Raises:
            ValueError: the caller is not the main thread.
            OSError: no file descriptor is free.
            RuntimeError: no thread can be started.
        """
        self._grace_s = grace_s
        self._seen: list[int] = []
        self._listeners: list[Listener] = []
        self._takes: Callable[[int], bool] = lambda number: False
        self._lock = threading.Lock()
        self._closed = False
        # set_wakeup_fd takes only a descriptor that does not block
        self._readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._run, name="hyperrun-signals", daemon=True)
        self._thread.start()

    def since(self, count: int) -> tuple[int, ...]:
        """Return the numbers of the ending signals that came after the first ``count``."""
        if self._note():
            os.write(self._writable, bytes([_WAKE]))  # wake the thread: we have read its bytes
        return tuple(self._seen[count:])

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Call ``listener`` with the number of each ending signal, in another thread, inside the
        ``with`` block.
        """
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @contextmanager
    def holding(self, takes: Callable[[int], bool]) -> Iterator[None]:
        """Record no signal for which ``takes`` returns True inside the ``with`` block.

        Args:
            takes: called with the number of each ending signal, in any thread, before others see
                it; it must return at once.
        """
        self._takes = takes
        try:
            yield
        finally:
            self._takes = lambda number: False

    def close(self) -> None:
        """Stop watching."""
        signal.set_wakeup_fd(self._before)
        self._closed = True
        os.write(self._writable, bytes([_WAKE]))
        self._thread.join()
        os.close(self._writable)
        os.close(self._readable)

    def _note(self) -> bool:
        """Record new signals; return whether there were any. Any thread may call this."""
        with self._lock:
            try:
                found = [number for number in os.read(self._readable, 4096) if number in ENDING]
            except BlockingIOError:
                return False
            numbers = [number for number in found if not self._takes(number)]
            self._seen.extend(numbers)
        return bool(numbers)

    def _nudge_main(self) -> None:
        """Wake the main thread so that it runs its handlers; another thread may have received the
        signal.
        """
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, _NUDGE)

    def _run(self) -> None:
        # the kernel may give a signal to any thread; the main one must wake up from its wait
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        told = 0
        deadline = 0.0
        ready = select.poll()
        ready.register(self._readable, select.POLLIN)
        while not self._closed:
            left = max(0.0, deadline - time.monotonic()) if told else None
            ready.poll(None if left is None else left * 1000)
            self._note()
            new = self._seen[told:]
            told += len(new)
            if new:
                self._nudge_main()
            for number in new:
                deadline = deadline or time.monotonic() + self._grace_s
                for listener in tuple(self._listeners):
                    listener(number)
            if told and time.monotonic() >= deadline and not self._closed:
                leave(self._seen[-1], _LATE.format(self._grace_s))


class Interruption:
    """Whether a signal ends the command.

    Attributes:
        signal: number of the ending signal, for the exit code; SIGINT before one comes.
        ending: whether an ending signal came; errors after it are reported with its exit code.
        ended_at: monotonic time of the first ending signal; 0 before.
        first_signal: number of the signal that began a drain, which gives the exit code; 0 without
            one.
        watch: records ending signals; None outside of :func:`hyperruntime.cli.main`, in other
            threads than the main one, or if it could not start.
    """

    def __init__(self) -> None:
        """No signal has come."""
        self.signal: int = signal.SIGINT
        self.ending = False
        self.ended_at = 0.0
        self.first_signal = 0
        self.watch: SignalWatch | None = None

    def check_interrupted(self) -> None:
        """Raise the interrupt again: Python discards an exception of a signal handler in a
        finalizer or a callback.

        Raises:
            KeyboardInterrupt: an ending signal has come.
        """
        if self.ending:
            raise KeyboardInterrupt


def leave(number: int, why: str) -> NoReturn:
    """End the process at once; its containers are removed afterwards, as after SIGKILL.

    The message is skipped if standard error is not writable at once.

    Args:
        number: the signal's number; the exit code is 128 more.
        why: the reason, for the message.
    """
    if takes_output(2):
        with suppress(OSError):
            os.write(
                2,
                f"hyperrun: error: interrupted; {why}; its containers are removed "
                "afterwards\n".encode(),
            )
    os._exit(EXIT_BY_SIGNAL + number)


@contextmanager
def interrupting(state: Interruption) -> Iterator[None]:
    """Make SIGTERM, SIGHUP and SIGUSR1 raise KeyboardInterrupt as SIGINT does, so that the
    command cleans up.

    A second signal ends the process at once, because an exception during cleanup would leak
    resources. A signal within one second of the first is ignored. ``state.watch`` is set. In other
    threads than the main one, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _is_first(number, state):
            raise KeyboardInterrupt

    with suppress(OSError, RuntimeError):  # a command that needs threads reports it
        state.watch = SignalWatch()
    ours = [
        number
        for number in ENDING
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
    ]
    with handled([_NUDGE], lambda number, frame: None), handled(ours, interrupt):
        yield


def _is_first(number: int, state: Interruption) -> bool:
    """Store an ending signal, and return True; ignore one of the same burst; a later one ends the
    process.
    """
    now = time.monotonic()
    if not state.ending:
        state.signal = state.first_signal or number
        state.ending = True
        state.ended_at = now
        hurry()
        return True
    if number == signal.SIGUSR1:  # it only says that the job ends soon
        return False
    if now - state.ended_at >= BURST_S:
        leave(number, _TWICE)
    return False


@contextmanager
def handled(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle the signals with ``handler``; restore the earlier handlers afterwards."""
    before: dict[int, Any] = {}
    try:
        for number in numbers:
            before[number] = signal.getsignal(number)
            signal.signal(number, handler)
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


@contextmanager
def ended_by_interrupt(state: Interruption) -> Iterator[None]:
    """Take Ctrl-C as the usual end of the block: the command goes on after it, and ends with exit
    code 0.

    Raises:
        KeyboardInterrupt: another ending signal came.
    """
    try:
        yield
    except KeyboardInterrupt:
        if state.signal != signal.SIGINT:
            raise


@contextmanager
def last_signal(state: Interruption) -> Iterator[Callable[[], int]]:
    """Yield a function that, after the block, returns the last ending signal that came during it,
    or 0.

    A signal is also stored in the state, so that an error gets its exit code. The generate loop has
    its own handlers; this function does not change them.

    Raises:
        KeyboardInterrupt: an ending signal came before the block.
    """
    watch = state.watch
    if watch is None:
        yield lambda: 0
        return
    state.check_interrupted()
    count = len(watch.since(0))
    seen: tuple[int, ...] = ()
    try:
        yield lambda: state.first_signal or (seen[-1] if seen else 0)
    finally:
        seen = watch.since(count)
        if seen:
            state.signal = state.first_signal or seen[-1]
            state.ending = True


def draw_for(seconds: float, draw: Callable[[], None]) -> None:
    """Call ``draw`` in a thread, which may be left behind, and wait for it for so long."""
    drawing = threading.Thread(target=draw, name=_DRAWING, daemon=True)
    drawing.start()
    drawing.join(seconds)


def is_drawing() -> bool:
    """Return whether :func:`draw_for` has left a thread behind that still runs."""
    return any(thread.name == _DRAWING for thread in threading.enumerate())


def run_until_signal(work: Coroutine[Any, Any, T], state: Interruption) -> T:
    """Run a coroutine in its own event loop; an ending signal cancels it, so that it releases its
    resources.

    Signal handlers raise nothing meanwhile: an exception between two steps of an event loop may
    lose a step, and then its task never ends. A second signal ends the process at once.

    Args:
        work: the coroutine.
        state: its watch reports the signals; without a watch, the coroutine just runs.

    Raises:
        KeyboardInterrupt: a signal came; ``state.signal`` is its number.
    """
    import asyncio

    watch = state.watch
    if watch is None:
        return asyncio.run(work)
    cancelling = _Cancelling(state)
    ours = [number for number in ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    with watch.listening(cancelling.on_signal), handled(ours, lambda number, frame: None):
        try:
            state.check_interrupted()
            return asyncio.run(cancelling.run(work))
        except asyncio.CancelledError:
            if not state.ending:
                raise
        finally:
            work.close()
    raise KeyboardInterrupt


class _Cancelling:
    """Cancels a task from another thread when a signal comes."""

    def __init__(self, state: Interruption) -> None:
        self._state = state
        self._cancel: Callable[[], object] | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the work, or raise CancelledError if a signal came before."""
        import asyncio

        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "inside a coroutine"
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self._state.ending:
            raise asyncio.CancelledError
        return await work

    def on_signal(self, number: int) -> None:
        """Cancel the task; on a second signal, end the process."""
        if not _is_first(number, self._state):
            return
        if self._cancel is not None:
            with suppress(RuntimeError):  # the loop is closed, so the work is done
                self._cancel()
        # after the cancellation, so that no result counts
        threading.Thread(target=_end_streams, daemon=True).start()


def _end_streams() -> None:
    """End the streams that threads of the event loop wait for; cancelling a task does not end
    them.
    """
    from hyperruntime.host.process import end_streams

    end_streams()


@contextmanager
def drained_by_signals(state: Interruption, *, here: bool) -> Iterator[Drain]:
    """Yield a drain that SIGUSR1 begins inside the ``with`` block; a batch system sends it before
    it ends a job. A run then takes no new work, and what it has begun may be finished in the time
    that is left. Other signals interrupt the run as everywhere, also during the drain.

    Design: docs/design/runs.md#signals-of-a-batch-system.

    Args:
        state: its watch reports the signals; without a watch, nothing begins the drain.
        here: whether the run's containers are on this machine. In a step of ``srun`` SIGUSR1
            interrupts such a run: Slurm sends it to the processes in containers too.
    """
    from hyperruntime.host.batch_job import in_step
    from hyperruntime.runs.drain import Drain

    drain = Drain()
    if state.watch is None or (here and in_step()):
        yield drain
        return
    over = threading.Event()

    def takes(number: int) -> bool:
        if number != signal.SIGUSR1 or state.ending:
            return False
        if not drain.begun:
            drain.begun = True
            state.first_signal = number
            threading.Thread(target=_wait_for_the_end, args=(over,), daemon=True).start()
        return True

    with handled([signal.SIGUSR1], lambda number, frame: None), state.watch.holding(takes):
        try:
            yield drain
        finally:
            over.set()


def _wait_for_the_end(over: threading.Event) -> None:
    """Interrupt the run shortly before Slurm ends its job, unless it is over."""
    from hyperruntime.cli.messages import note
    from hyperruntime.host.batch_job import BatchJob
    from hyperruntime.units import format_duration

    job = BatchJob.current()
    left_s = None if job is None else job.seconds_left()
    words = "SIGUSR1: no new work is taken; what has begun may be finished"
    if left_s is None:
        note(words)
        return
    left_s = max(0.0, left_s - GRACE_S)
    note(f"{words}, for {format_duration(left_s)} at most")
    if not over.wait(left_s):
        main = threading.main_thread().ident
        assert main is not None, "it runs"
        signal.pthread_kill(main, signal.SIGTERM)
