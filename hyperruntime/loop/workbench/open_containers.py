"""The containers of a run that are open now, so that an interrupt can end them all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, Protocol

from hyperruntime.driver import EngineInfo
from hyperruntime.loop.workbench.failures import RunInterruptedError
from hyperruntime.spec import ContainerSpec, ExecResult


class LoopContainer(Protocol):
    """What the loop needs of a container; :class:`~hyperruntime.container.Container` has it."""

    def exec(
        self,
        args: Sequence[str | bytes],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        input: bytes | BinaryIO | None = None,  # noqa: A002 - subprocess's own word
        on_output: Callable[..., None] | None = None,
        output_limit_bytes: int = ...,
    ) -> ExecResult:
        """Run a command to its end."""
        ...

    def close(self) -> None:
        """End and remove it; may be called again."""
        ...


class LoopImages(Protocol):
    """What the loop needs of an engine's images."""

    def ensure(self, name: str) -> str:
        """Return the reference of an image that is here, made if it can be."""
        ...


class LoopRuntime(Protocol):
    """What the loop needs of a runtime; :class:`~hyperruntime.runtime.Runtime` has it."""

    @property
    def images(self) -> LoopImages:
        """The engine's images."""
        ...

    @property
    def info(self) -> EngineInfo:
        """What the engine can do on this machine."""
        ...

    def container(self, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None) -> LoopContainer:
        """Start a container."""
        ...


class OpenContainers:
    """Opens containers until :meth:`stop`; then ends those that are open.

    Attributes:
        reclaim_args: of the engine, to take back what containers wrote; see :class:`~hyperruntime.driver.EngineInfo`.
    """

    def __init__(self, runtime: LoopRuntime) -> None:
        """Open containers on a runtime."""
        self._runtime = runtime
        self.reclaim_args = runtime.info.reclaim_args
        self._lock = threading.Lock()
        self._open: list[LoopContainer] = []
        self._stopping = False  # no Event: that has a lock, and handlers of signals set this

    @property
    def stopping(self) -> bool:
        """Whether the run is being ended."""
        return self._stopping

    def open(self, spec: ContainerSpec, labels: Mapping[str, str]) -> LoopContainer:
        """Start a container.

        Raises:
            RunInterruptedError: the run is being ended.
            HyperRuntimeError: it cannot be started.
        """
        if self.stopping:
            raise RunInterruptedError("the run is being ended")
        container = self._runtime.container(spec, labels=labels)
        with self._lock:
            self._open.append(container)
        if self._stopping:
            self.close(container)
            raise RunInterruptedError("the run is being ended")
        return container

    def close(self, container: LoopContainer) -> None:
        """End and remove a container; may be called again."""
        container.close()
        with self._lock:
            self._open = [other for other in self._open if other is not container]

    def stop(self) -> None:
        """Let no container start any more; returns at once and takes no lock."""
        self._stopping = True

    def close_all(self) -> None:
        """End all containers, so that whoever waits for one goes on."""
        with self._lock:
            containers = tuple(self._open)
        threads = [threading.Thread(target=self.close, args=(container,)) for container in containers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
