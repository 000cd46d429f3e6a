"""Ending signals: record them, cancel event loops, and end the process within a bound.

Imports no event loop before one is run: every command loads this module.
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

if TYPE_CHECKING:
    from hyperruntime.cli.command import State

T = TypeVar("T")
Listener = Callable[[int], None]

EXIT_BY_SIGNAL = 128
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 30.0  # from the first signal; an end takes a few seconds, a scheduler's patience is often 30
_WAKE = 0  # no signal has this number
_BURST_S = 1.0  # signals of one cause: a closing session sends SIGTERM and SIGHUP, a wrapper forwards what came to both
_NUDGE = signal.SIGURG  # ignored by default, and nobody's here
_LATE = "something did not end within {:g} s and is not waited for"
_TWICE = "a second signal came before the end"


class SignalWatch:
    """Notes ending signals, and ends the process where they have not ended it in time.

    Python writes the number of every handled signal to the wakeup descriptor as the signal comes, before any handler
    of a program runs. A thread reads it there. So it does not matter what the main thread does at that moment: it may
    wait for a lock, or lose the exception that a handler raised.

    Source: :func:`signal.set_wakeup_fd`; the notes on handlers and exceptions in the documentation of ``signal``.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        """Begin to watch; the main thread only.

        Args:
            grace_s: how long the process may take to end after the first signal.

        Raises:
            ValueError: this is another thread.
            OSError, RuntimeError: the machine has no descriptors or no threads left.
        """
        self._grace_s = grace_s
        self._seen: list[int] = []
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()
        self._closed = False
        self._readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._run, name="hyperrun-signals", daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """How many ending signals have come."""
        return len(self.since(0))

    def since(self, count: int) -> tuple[int, ...]:
        """Return the numbers of the ending signals that came after the first ``count``."""
        if self._note():
            os.write(self._writable, bytes([_WAKE]))  # the thread may find nothing to read any more
        return tuple(self._seen[count:])

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Call ``listener`` in another thread with each ending signal's number, while this lasts."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def close(self) -> None:
        """Watch no longer."""
        signal.set_wakeup_fd(self._before)
        self._closed = True
        os.write(self._writable, bytes([_WAKE]))
        self._thread.join()
        os.close(self._writable)
        os.close(self._readable)

    def _note(self) -> bool:
        """Note the signals that have come; return whether there were any. Any thread may call it."""
        with self._lock:
            try:
                numbers = [number for number in os.read(self._readable, 4096) if number in ENDING]
            except BlockingIOError:
                return False
            self._seen.extend(numbers)
        return bool(numbers)

    def _nudge_main(self) -> None:
        """Let the main thread run its handlers: another thread may have taken the signal that was to wake it."""
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, _NUDGE)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        told, deadline = 0, 0.0
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


def leave(number: int, why: str) -> NoReturn:
    """End the process at once; what it owns is removed behind it, as after a SIGKILL.

    Where nobody reads its errors it does not wait to say so.
    """
    ready = select.poll()
    ready.register(2, select.POLLOUT)
    if ready.poll(0):
        with suppress(OSError):
            os.write(2, f"hyperrun: error: interrupted; {why}, and containers are removed behind it\n".encode())
    os._exit(EXIT_BY_SIGNAL + number)


@contextmanager
def interrupting(state: State) -> Iterator[None]:
    """Make SIGTERM and SIGHUP end a command as SIGINT does, by KeyboardInterrupt: everything open is closed first.

    A second signal ends the process at once, unless it comes with the first: an exception in what closes things would
    leave some to nobody. The state has a watch meanwhile. In another thread than the main one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    first_at = 0.0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal first_at
        if state.ending and first_at and time.monotonic() - first_at < _BURST_S:
            return
        if state.ending:
            leave(number, _TWICE)
        first_at = time.monotonic()
        state.signal, state.ending = number, True
        raise KeyboardInterrupt

    with suppress(OSError, RuntimeError):  # what needs threads will say so
        state.watch = SignalWatch()
    ours = [number for number in ENDING if _is_default(number)]
    with _handled([_NUDGE], lambda number, frame: None), _handled(ours, interrupt):
        yield


def _is_default(number: int) -> bool:
    return signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


@contextmanager
def _handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals otherwise for a while."""
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
def last_signal(state: State) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the number of the last ending signal that came meanwhile, or 0.

    Where an error ends this after such a signal, the state knows of it. The loop has its own handlers, and nothing of
    theirs is touched.
    """
    watch = state.watch
    if watch is None:
        yield lambda: 0
        return
    state.check_interrupted()
    count = watch.count
    seen: tuple[int, ...] = ()
    try:
        yield lambda: seen[-1] if seen else 0
    finally:
        seen = watch.since(count)
        if seen:
            state.signal, state.ending = seen[-1], True


def run_until_signal(work: Coroutine[Any, Any, T], state: State) -> T:
    """Run a coroutine in a loop of its own, which an ending signal cancels, so that it lets go of what it holds.

    No handler raises anything meanwhile: an exception between two steps of a loop may lose one of them, and with it a
    task that everything waits for. A second signal ends the process at once.

    Raises:
        KeyboardInterrupt: a signal came; the state knows its number.
    """
    import asyncio

    watch = state.watch
    if watch is None:
        return asyncio.run(work)
    cancelling = _Cancelling(state)
    ours = [number for number in ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    with watch.listening(cancelling.on_signal), _handled(ours, lambda number, frame: None):
        try:
            state.check_interrupted()
            return asyncio.run(cancelling.run(work))
        except asyncio.CancelledError:
            if not cancelling.asked:
                raise
        finally:
            work.close()
    raise KeyboardInterrupt


class _Cancelling:
    """Cancels a task from another thread when a signal comes."""

    def __init__(self, state: State) -> None:
        self.asked = False
        self._asked_at = 0.0
        self._state = state
        self._cancel: Callable[[], object] | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the work, unless a signal came before."""
        import asyncio

        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "inside a coroutine"
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self.asked:
            raise asyncio.CancelledError
        return await work

    def on_signal(self, number: int) -> None:
        """Cancel the task; asked before, and something does not end: the containers go with this process."""
        if self.asked and time.monotonic() - self._asked_at < _BURST_S:
            return
        if self.asked:
            leave(number, _TWICE)
        self._asked_at = time.monotonic()
        self._state.signal, self._state.ending = number, True
        self.asked = True
        if self._cancel is not None:
            with suppress(RuntimeError):  # the loop is closed: the work is done
                self._cancel()
        threading.Thread(target=_end_streams, daemon=True).start()  # after it: what these end is no result


def _end_streams() -> None:
    """End what threads of the loop wait for that cancelling does not reach."""
    from hyperruntime.host.process import end_streams

    end_streams()
