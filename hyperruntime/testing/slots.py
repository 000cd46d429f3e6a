"""A runtime whose containers are nothing but a promise, and a clock to turn: for tests of pools.

Commands do nothing and succeed, but ``["sleep", SECONDS]`` takes so long; a container ends
when a test says so.
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
from hyperruntime.spec import ContainerSpec, ExecResult


class PromisedContainer:
    """A container that runs nothing.

    Attributes:
        spec: what was asked for.
        name: unique.
        is_alive: whether it has not ended.
        is_closed: whether its owner has closed it.
        hangs: whether it has stopped answering.
        watchdog_verdict: why a watchdog ended it, or "".
        commands: what it was asked to run.
    """

    def __init__(self, spec: ContainerSpec) -> None:
        """Make it."""
        self.spec, self.name = spec, f"promised-{uuid.uuid4().hex[:12]}"
        self.is_alive, self.is_closed = True, False
        self.hangs, self.watchdog_verdict = False, ""
        self.commands: list[Sequence[str | bytes]] = []
        self.refuses: Callable[[Sequence[str | bytes]], bool] = lambda _: False

    def exec(self, args: Sequence[str | bytes], **_: Any) -> ExecResult:  # noqa: ANN401 - as of any container
        """Note a command; it succeeds unless :attr:`refuses` says otherwise."""
        self._check()
        self.commands.append(args)
        said = {"workspace": b"/workspace", "cat /proc/self/uid_map": b"0 0 4294967295\n"}
        output = next((said[str(word)] for word in args if word in said), b"")
        return ExecResult(args=(), exit_code=1 if self.refuses(args) else 0, stdout=output)

    async def aexec(self, args: Sequence[str | bytes], **_: Any) -> ExecResult:  # noqa: ANN401 - as of any container
        """Do nothing, for as long as ``sleep`` says."""
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

    def responds(self, _: float | None = None) -> bool:
        """Tell whether it answers."""
        return self.is_alive and not self.hangs

    def end(self, watchdog_verdict: str = "") -> None:
        """End by itself, as when it is killed, or by a watchdog."""
        self.watchdog_verdict, self.is_alive = watchdog_verdict, False

    def close(self) -> None:
        """End."""
        self.is_alive, self.is_closed = False, True

    def _check(self) -> None:
        if self.is_closed:
            raise ContainerStateError(f"container {self.name} is closed")
        if not self.is_alive:
            raise ContainerLostError(f"container {self.name} has ended")


class PromisedRuntime:
    """A runtime of such containers; safe to use from many threads.

    Attributes:
        name: ``promised``.
        info: what it can do.
        containers: all that were started.
        most: how many were starting at the same time at most.
    """

    name = "promised"

    def __init__(self, *, users: bool = True, start_s: float = 0.0, failures: Sequence[Exception] = ()) -> None:
        """Make it.

        Args:
            users: whether slots can have users of their own.
            start_s: how long a start takes.
            failures: what the next starts raise, one each.
        """
        self.info = EngineInfo(engine="promised", version="1", rootless=True, users=users)
        self.containers: list[PromisedContainer] = []
        self.most = self._starting = 0
        self._start_s, self._failures = start_s, list(failures)
        self._lock = threading.Lock()

    @property
    def open(self) -> list[PromisedContainer]:
        """Those that nobody has closed."""
        return [container for container in self.containers if not container.is_closed]

    def fail(self, *errors: Exception) -> None:
        """Let the next starts raise these, one each."""
        self._failures.extend(errors)

    def container(self, spec: ContainerSpec) -> PromisedContainer:
        """Start one."""
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
    """The running event loop's clock, which a test may put forward: all its timers and timeouts follow."""

    def __init__(self) -> None:
        """Take over the clock of the running loop."""
        self._loop = asyncio.get_running_loop()
        self._real, self._skipped_s = self._loop.time, 0.0
        self._loop.time = lambda: self._real() + self._skipped_s  # type: ignore[method-assign]

    async def skip(self, seconds: float) -> None:
        """Put it forward, and let what is due by now happen."""
        self._skipped_s += seconds
        for _ in range(20):
            await asyncio.sleep(0.005)
