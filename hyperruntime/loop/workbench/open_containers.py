"""The open containers of a run; an interrupt, which SIGINT or SIGTERM requests, ends them all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, TypeVar, Unpack

from hyperruntime.driver import EngineInfo
from hyperruntime.exec.options import CommandKeywords
from hyperruntime.host.batch_job import SETTLE_S, TERMINATED
from hyperruntime.host.process import wait_until
from hyperruntime.loop.workbench.failures import RunInterruptedError
from hyperruntime.spec import ContainerSpec, ExecResult

T = TypeVar("T")
POLL_S = 0.5
_LOOK_S = 0.02
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class LoopContainer(Protocol):
    """The part of a container that the loop needs; :class:`~hyperruntime.container.Container`
    provides it.
    """

    def exec(
        self,
        args: Sequence[str | bytes],
        **options: Unpack[CommandKeywords],
    ) -> ExecResult:
        """Run a command to its end; the parameters are those of
        :meth:`hyperruntime.container.Container.exec`.
        """
        ...

    def on_connection(self, listener: Callable[[Any], None]) -> None:
        """Call ``listener`` with each connection through the list of its network."""
        ...

    def close(self) -> None:
        """End and remove the container; idempotent."""
        ...


class LoopImages(Protocol):
    """The part of an engine's images that the loop needs."""

    def ensure(self, name: str) -> str:
        """Return the reference of an image on this machine; build a missing recipe image if that
        needs no registry.
        """
        ...


class LoopRuntime(Protocol):
    """The part of a runtime that the loop needs; :class:`~hyperruntime.runtime.Runtime` provides
    it.
    """

    @property
    def images(self) -> LoopImages:
        """The engine's images."""
        ...

    @property
    def info(self) -> EngineInfo:
        """Information about the engine on this machine."""
        ...

    def container(
        self, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None
    ) -> LoopContainer:
        """Start a container."""
        ...


class OpenContainers:
    """Opens containers until :meth:`stop`, and closes them.

    Attributes:
        reclaim_args: argv prefix of the engine to reclaim files of containers; see
            :class:`~hyperruntime.driver.EngineInfo`.
    """

    def __init__(self, runtime: LoopRuntime) -> None:
        """Open containers on a runtime."""
        self._runtime = runtime
        self.reclaim_args = runtime.info.reclaim_args
        self._lock = threading.Lock()
        self._open: list[LoopContainer] = []
        # not an Event: an Event has a lock, and signal handlers set this flag
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """Whether the run is being interrupted."""
        return self._stopping

    def open(self, spec: ContainerSpec, labels: Mapping[str, str]) -> LoopContainer:
        """Start a container.

        Raises:
            RunInterruptedError: the run is being interrupted.
            HyperRuntimeError: the container cannot be started.
        """
        self.check_running()
        container = self._runtime.container(spec, labels=labels)
        with self._lock:
            self._open.append(container)
        if self._stopping:
            self.close(container)
            raise RunInterruptedError("the run is being interrupted")
        return container

    def close(self, container: LoopContainer) -> None:
        """End and remove a container; idempotent."""
        container.close()
        with self._lock:
            self._open = [other for other in self._open if other is not container]

    def stop(self) -> None:
        """Refuse to start more containers; returns at once and takes no lock."""
        self._stopping = True

    def check_running(self) -> None:
        """Raise if the run is being interrupted.

        Raises:
            RunInterruptedError: it is.
        """
        if self.stopping:
            raise RunInterruptedError("the run is being interrupted")

    def check_ended(self, result: ExecResult) -> ExecResult:
        """Return the result of a command, unless the end of the run's own job caused it: a batch
        system sends SIGTERM to all processes of a job, and may reach a command first.

        Raises:
            RunInterruptedError: the run is being interrupted.
        """
        if result.exit_code == TERMINATED and wait_until(lambda: self.stopping, SETTLE_S, _LOOK_S):
            self.check_running()
        return result

    def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread and return its result; an interrupt meanwhile ends all open
        containers.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="hyperruntime-work") as executor:
            future = executor.submit(work)
            try:
                while not wait([future], timeout=POLL_S).done:
                    if self.stopping:
                        self.close_all()
            except BaseException:
                self.stop()
                self.close_all()
                raise
            return future.result()

    def close_all(self) -> None:
        """End all open containers; threads that wait for them continue."""
        with self._lock:
            containers = tuple(self._open)
        threads = [
            threading.Thread(target=self.close, args=(container,)) for container in containers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on SIGINT and SIGTERM inside the ``with`` statement.

    The caller's handler is called too. The KeyboardInterrupt that it raises for the first signal is
    dropped, because the run stops by itself. Later signals are the caller's: Python's own handler
    of SIGINT raises KeyboardInterrupt, and the command line ends the process. A signal without a
    handler has no other effect than ``stop``.

    Outside the main thread, signal handlers are not changed.

    Args:
        stop: called by a signal handler, at any point of the main thread, possibly inside another
            call of ``stop``. It
            must not take a lock: the main thread may hold the lock and does not continue before
                ``stop`` returns.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        is_first, asked = not asked, True
        stop()
        if callable(before[number]):
            try:
                before[number](number, frame)
            except KeyboardInterrupt:
                if not is_first:
                    raise

    for number in _SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, before[number])
