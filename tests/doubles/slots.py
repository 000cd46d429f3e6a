"""A runtime without real containers, and a clock that tests can move forward: for tests of pools.

Commands do nothing and succeed; ``["sleep", SECONDS]`` takes SECONDS. A container ends when the
test ends it.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from hyperruntime.driver import EngineInfo
from hyperruntime.errors import ContainerLostError, ContainerStateError
from hyperruntime.layers.snapshots.snapshot import Snapshot
from hyperruntime.spec import ContainerSpec, ExecResult


class PromisedContainer:
    """A container that runs nothing.

    Attributes:
        spec: the requested spec.
        name: a unique name.
        is_alive: whether the container has not ended.
        is_closed: whether its owner closed it.
        hangs: whether it stopped answering; tests set this.
        rollbacks: the snapshots that it was rolled back to, in order.
        watchdog_verdict: why the watchdog ended it, or "".
        commands: argv of every command, in order.
        refuses: returns True for a command of ``exec`` that fails with exit code 1; tests set this.
    """

    def __init__(self, spec: ContainerSpec) -> None:
        """Make an open container."""
        self.spec, self.name = spec, f"promised-{uuid.uuid4().hex[:12]}"
        self.is_alive, self.is_closed = True, False
        self.hangs, self.watchdog_verdict = False, ""
        self.commands: list[Sequence[str | bytes]] = []
        self.rollbacks: list[Snapshot] = []
        self.refuses: Callable[[Sequence[str | bytes]], bool] = lambda _: False

    def exec(self, args: Sequence[str | bytes], **_: Any) -> ExecResult:
        """Record a command; it succeeds unless :attr:`refuses` returns True for it."""
        self._check()
        self.commands.append(args)
        said = {"workspace": b"/workspace", "cat /proc/self/uid_map": b"0 0 4294967295\n"}
        output = next((said[str(word)] for word in args if word in said), b"")
        return ExecResult(args=(), exit_code=1 if self.refuses(args) else 0, stdout=output)

    async def aexec(self, args: Sequence[str | bytes], **_: Any) -> ExecResult:
        """Record a command; ``sleep`` waits, every other command ends at once."""
        self._check()
        self.commands.append(args)
        left_s = float(args[1]) if args[0] == "sleep" else 0.0
        while left_s > 0:
            await asyncio.sleep(min(left_s, 0.005))
            left_s -= 0.005
            self._check()
        return ExecResult(args=tuple(map(str, args)), exit_code=0)

    def end_user(self, _: object) -> bool:
        """Succeed."""
        self._check()
        return True

    def end_group(self, _: str) -> bool:
        """Succeed."""
        self._check()
        return True

    def rollback(self, snapshot: Snapshot) -> None:
        """Record a rollback."""
        self._check()
        self.rollbacks.append(snapshot)

    def responds(self, _: float | None = None) -> bool:
        """Return whether the container is alive and does not hang."""
        return self.is_alive and not self.hangs

    def end(self, watchdog_verdict: str = "") -> None:
        """End the container as if it was killed; with a verdict, as if the watchdog ended it."""
        self.watchdog_verdict, self.is_alive = watchdog_verdict, False

    def close(self) -> None:
        """Close the container."""
        self.is_alive, self.is_closed = False, True

    def _check(self) -> None:
        if self.is_closed:
            raise ContainerStateError(f"container {self.name} is closed")
        if not self.is_alive:
            raise ContainerLostError(f"container {self.name} has ended")


class PromisedRuntime:
    """A runtime of :class:`PromisedContainer`; safe to use from many threads.

    Attributes:
        name: ``promised``.
        info: the engine's declared features.
        containers: all started containers.
        most: maximum number of simultaneous starts.
    """

    name = "promised"

    def __init__(
        self,
        *,
        users: bool = True,
        snapshots: bool = False,
        start_s: float = 0.0,
        failures: Sequence[Exception] = (),
    ) -> None:
        """Make a runtime without containers.

        Args:
            users: whether slots can have their own users.
            snapshots: whether containers can be rolled back.
            start_s: seconds that each start takes.
            failures: errors that the next starts raise, one each.
        """
        self.info = EngineInfo(
            engine="promised", version="1", rootless=True, users=users, snapshots=snapshots
        )
        self.containers: list[PromisedContainer] = []
        self.most = self._starting = 0
        self._start_s, self._failures = start_s, list(failures)
        self._lock = threading.Lock()

    @property
    def open(self) -> list[PromisedContainer]:
        """The containers that are not closed."""
        return [container for container in self.containers if not container.is_closed]

    def fail(self, *errors: Exception) -> None:
        """Make the next starts raise these errors, one each."""
        self._failures.extend(errors)

    def container(self, spec: ContainerSpec) -> PromisedContainer:
        """Start a container, or raise the next failure."""
        with self._lock:
            self._starting += 1
            self.most = max(self.most, self._starting)
            error = self._failures.pop(0) if self._failures else None
        time.sleep(self._start_s)
        with self._lock:
            self._starting -= 1
            if error is not None:
                raise error
            self.containers.append(PromisedContainer(spec))
            return self.containers[-1]


class SkippingClock:
    """The clock of the running event loop, which a test can move forward; all timers and timeouts
    follow.
    """

    def __init__(self) -> None:
        """Replace the clock of the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._real, self._skipped_s = self._loop.time, 0.0
        self._loop.time = lambda: self._real() + self._skipped_s  # type: ignore[method-assign]

    async def skip(self, seconds: float) -> None:
        """Move the clock forward, and give due timers time to run."""
        self._skipped_s += seconds
        for _ in range(20):
            await asyncio.sleep(0.005)
