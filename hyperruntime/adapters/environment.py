"""One task's shell, as agent programs without asyncio know it: ``execute(command) -> {"output", "returncode"}``.

Every environment has a slot of its own, so no two tasks share a directory; environments of one image share a pool.
"""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from hyperruntime.adapters.shared import shared_pool
from hyperruntime.concurrency.interruptible import Interruptible
from hyperruntime.errors import PoolClosedError, PoolError, SpecError, WorkdirNotFoundError
from hyperruntime.pool.sync import SyncPool
from hyperruntime.spec import DEFAULT_OUTPUT_LIMIT_BYTES, ContainerSpec, ExecResult, Limits, Network, is_text

TIMEOUT_CODE, INTERRUPTED_CODE, NOT_RUN_CODE = 124, 130, 126
DEFAULT_IMAGE = "localhost/hyperruntime/base:latest"
_ARGUMENT_BYTES = 96 * 1024  # the kernel takes 128 KiB in one argument; source: execve(2)
_FROM_STDIN = 'exec 2>&1; eval "$(head -c "$0")"'


class HyperEnvironment:
    """A task's commands, in a slot that is its own until ``cleanup``; usable from many threads.

    Attributes:
        task_id: for whom.
        timeout: seconds that a command may take where none are given.
    """

    def __init__(
        self,
        image: str = DEFAULT_IMAGE,
        cwd: str = "",
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        runtime: str | None = None,
        *,
        task_id: str = "",
        network: Network = "none",
        limits: Limits | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        pool: SyncPool | None = None,
    ) -> None:
        """Take a slot.

        Args:
            image: of the container; an image that is on this machine.
            cwd: where commands start: absolute, or relative to the workspace; "" is the workspace.
            timeout: see above.
            env: for every command.
            runtime: the engine's name; None is ``HYPERRUNTIME_RUNTIME``, else the first that works.
            task_id: see above; for logs.
            network: what the container's network is.
            limits: what the container may use.
            output_limit_bytes: of a command's output; past it head and tail are kept.
            pool: a pool of one's own instead of the shared one; image, runtime, network and limits are then its own.

        Raises:
            HyperRuntimeError: there is no slot to be had; which error says why.
        """
        self.task_id, self.timeout = task_id, timeout
        self._cwd, self._env, self._limit_bytes = cwd, dict(env or {}), output_limit_bytes
        self._lock = threading.Lock()
        self._calls: set[Interruptible[ExecResult]] = set()
        spec = ContainerSpec(image=image, network=network, limits=limits or Limits())
        self._pool = pool or shared_pool(runtime, spec)
        self._slot = self._pool.acquire(task_id or None)
        self._lease = self._pool.pool.lease_of(self._slot)
        self._open = True

    @property
    def workspace(self) -> str:
        """Absolute path, inside the container, of the directory that is this task's own."""
        return self._slot.workspace

    def execute(
        self,
        command: str,
        cwd: str = "",
        *,
        timeout: float | None = None,
        stdin_data: str | bytes | None = None,
    ) -> dict[str, Any]:
        """Run a command line of bash to its end.

        Args:
            command: any length, any characters but NUL.
            cwd: where it starts: absolute, or relative to the environment's own; "" is that one.
            timeout: seconds; after them everything that the command started is ended.
            stdin_data: its standard input; None is an empty one.

        Returns:
            ``output``: standard output and standard error in the order in which they were written. ``returncode``: the
            command's own; 124 at the timeout, 130 when it was interrupted (by ``interrupt`` of another thread, or by
            Ctrl-C while this one waits), 126 where the directory does not exist.

        Raises:
            SandboxLostError: the container has ended; nobody knows what the command did.
            PoolError: the environment was cleaned up.
            SpecError: an argument is none that a command can have.
        """
        args, data = _merged(command, stdin_data)
        seconds = self.timeout if timeout is None else timeout
        work = self._lease.exec(
            args,
            timeout_s=seconds,
            env=self._env,
            workdir=posixpath.join(self._cwd, cwd) or None,
            input=data,
            output_limit_bytes=self._limit_bytes,
        )
        try:
            return _answer(self._finish(work), seconds)
        except WorkdirNotFoundError as error:
            return {"output": f"{error}\n", "returncode": NOT_RUN_CODE}

    def _finish(self, work: Coroutine[Any, Any, ExecResult]) -> ExecResult | None:
        """Return how a command ended; None where it was interrupted, once it has ended."""
        call = Interruptible[ExecResult]()
        with self._lock:
            if not self._open:
                work.close()
                raise PoolError("this environment was cleaned up; make another one")
            self._calls.add(call)
        try:
            future = self._pool.submit(call.run(work))
            try:
                return future.result()
            except KeyboardInterrupt:
                call.interrupt()
                return future.result()
        finally:
            work.close()  # it never began, where the pool is gone
            with self._lock:
                self._calls.discard(call)

    def interrupt(self) -> int:
        """End what runs; return how many commands that were. Theirs is 130."""
        with self._lock:
            calls = tuple(self._calls)
        for call in calls:
            call.interrupt()
        return len(calls)

    def cleanup(self) -> None:
        """Give the slot back: its files and processes go. May be called again, and after the pool has ended."""
        with self._lock:
            if not self._open:
                return
            self._open = False
        with suppress(PoolClosedError):  # then there is no slot
            self.interrupt()
            self._pool.submit(self._pool.pool.release_if_held(self._slot)).result()

    def stop(self) -> None:
        """Do what ``cleanup`` does, by its older name."""
        self.cleanup()

    def __enter__(self) -> HyperEnvironment:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clean up, whatever happened."""
        self.cleanup()


def _merged(command: str, stdin_data: str | bytes | None) -> tuple[list[str | bytes], bytes | None]:
    """Return argv and input that run a command with both of its outputs in one stream.

    A long command goes ahead of its input: ``head`` takes exactly as much of it as there is command.
    """
    if not is_text(command):
        raise SpecError("command", command, "a text without NUL and without halves of surrogate pairs")
    if not isinstance(stdin_data, (str, bytes, type(None))):
        raise SpecError("stdin_data", stdin_data, "a text, bytes or None")
    text = os.fsencode(command)
    data = stdin_data.encode(errors="surrogateescape") if isinstance(stdin_data, str) else stdin_data
    if len(text) <= _ARGUMENT_BYTES:
        return ["bash", "-c", b"exec 2>&1\n" + text], data
    return ["bash", "-c", _FROM_STDIN, str(len(text))], text + (data or b"")


def _answer(result: ExecResult | None, timeout: float) -> dict[str, Any]:
    if result is None:
        return {"output": "[the command was interrupted]\n", "returncode": INTERRUPTED_CODE}
    output = (result.stdout + result.stderr).decode(errors="replace")
    if result.timed_out:
        between = "" if not output or output.endswith("\n") else "\n"
        return {"output": f"{output}{between}[timed out after {timeout:g} s]\n", "returncode": TIMEOUT_CODE}
    return {"output": output, "returncode": result.exit_code}
