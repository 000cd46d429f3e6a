"""An environment for agent programs without asyncio:
``execute(command) -> {"output", "returncode"}``.

Each environment has its own slot, so tasks never share a directory. Environments with the same
container share a pool.
"""

from __future__ import annotations

import os
import posixpath
import threading
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from hyperruntime.adapters.shared_runtime import shared_runtime
from hyperruntime.concurrency.per_process import LockedDict, PerProcess
from hyperruntime.errors import PoolClosedError, PoolError, SpecError, WorkdirNotFoundError
from hyperruntime.network.egress import Egress, Network
from hyperruntime.pool.sync import SyncPool
from hyperruntime.pool.tools.command import bash_command
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.pool_values.results import Slot
from hyperruntime.spec import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    ContainerSpec,
    ExecResult,
    Limits,
    Mount,
    is_text,
)

TIMEOUT_CODE = 124
INTERRUPTED_CODE = 130
NOT_RUN_CODE = 126
DEFAULT_IMAGE = "localhost/hyperruntime/base:latest"

# by engine and spec
_shared: PerProcess[LockedDict[tuple[str | None, ContainerSpec], SyncPool]] = PerProcess(LockedDict)


class HyperEnvironment:
    """Runs a task's commands in a slot that belongs to it until ``cleanup``. Thread-safe.

    An environment that the program drops releases its slot too, when the garbage collector finds
    it.

    Attributes:
        task_id: the task's name in logs; may be "".
        timeout: default time limit of a command, in seconds.
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
        network: Network | Egress = "none",
        limits: Limits | None = None,
        mounts: Sequence[Mount] = (),
        user: str | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        pool: SyncPool | None = None,
    ) -> None:
        """Acquire a slot.

        Args:
            image: image of the container; it must exist on this machine.
            cwd: working directory of commands: absolute, or relative to the workspace; "" is the
                workspace.
            timeout: default time limit of a command, in seconds.
            env: environment variables for every command.
            runtime: the engine's name; None for ``HYPERRUNTIME_RUNTIME``, else the first engine
                that works.
            task_id: the task's name in logs; "" for a random one.
            network: the container's network, or a list of servers.
            limits: the container's resource limits.
            mounts: host paths that the container sees.
            user: user of the commands, as in :class:`~hyperruntime.spec.ContainerSpec`; None for
                the image's.
            output_limit_bytes: the most bytes of a command's output; of longer output, head and
                tail are kept.
            pool: a pool to use instead of the shared one; image, runtime, network, limits, mounts
                and user are then the pool's.

        Raises:
            HyperRuntimeError: no slot can be acquired; the subclass gives the reason.
        """
        self.task_id = task_id
        self.timeout = timeout
        self._cwd = cwd
        self._env = dict(env or {})
        self._limit_bytes = output_limit_bytes
        self._lock = threading.Lock()
        self._calls: set[Future[ExecResult]] = set()
        spec = ContainerSpec(
            image=image, network=network, limits=limits or Limits(), mounts=tuple(mounts), user=user
        )
        self._pool = pool or shared_pool(runtime, spec)
        self._slot = self._pool.acquire(task_id or None)
        self._dropped = weakref.finalize(self, _release_soon, self._pool, self._slot)
        self._dropped.atexit = False  # the pool ends with the process
        self._lease = self._pool.pool.lease_of(self._slot)
        self._open = True

    @property
    def workspace(self) -> str:
        """Absolute path of the task's own directory in the container."""
        return self._slot.workspace

    @property
    def container(self) -> str:
        """Name of the task's container, as its engine shows it."""
        return self._slot.container

    def execute(
        self,
        command: str,
        cwd: str = "",
        *,
        timeout: float | None = None,
        stdin_data: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run a bash command line, and wait for its end.

        Args:
            command: text of any length without NUL.
            cwd: working directory: absolute, or relative to the environment's ``cwd``; "" is that
                one.
            timeout: time limit in seconds, after which the whole process tree is ended; None for
                the default.
            stdin_data: standard input; None means empty.
            env: environment variables that extend and override those of the environment.

        Returns:
            ``output``: standard output and standard error in the order in which they were written.
            ``returncode``: the exit code of the command; 124 after a timeout, 130 after an
            interrupt (by ``interrupt`` in another thread, or by Ctrl-C), 126 if the working
            directory does not exist.

        Raises:
            SandboxLostError: the container ended; the effects of the command are unknown.
            PoolError: the environment was cleaned up, or its pool is closed.
            SpecError: an argument is invalid.
        """
        args, variables, source = _bash(command, stdin_data)
        seconds = self.timeout if timeout is None else timeout
        work = self._lease.exec(
            args,
            timeout_s=seconds,
            env={**self._env, **(env or {}), **variables},
            workdir=posixpath.join(self._cwd, cwd) or None,
            input=source,
            output_limit_bytes=self._limit_bytes,
            merge_output=True,
        )
        try:
            return _answer(self._finish(work), seconds)
        except WorkdirNotFoundError as error:
            return {"output": f"{error}\n", "returncode": NOT_RUN_CODE}

    def _finish(self, work: Coroutine[Any, Any, ExecResult]) -> ExecResult | None:
        """Wait for a command to end, and return its result; None if it was interrupted."""
        with self._lock:
            if not self._open:
                work.close()
                raise PoolError("this environment was cleaned up; create a new one")
            future = self._pool.submit(work)
            self._calls.add(future)
        try:
            try:
                return future.result()
            except KeyboardInterrupt:
                future.cancel()
                return future.result()
        except CancelledError:
            return None
        finally:
            with self._lock:
                self._calls.discard(future)

    def interrupt(self) -> int:
        """End all running commands, which return code 130; return their number."""
        with self._lock:
            calls = tuple(self._calls)
        for call in calls:
            call.cancel()
        return len(calls)

    def cleanup(self) -> None:
        """Release the slot, which deletes its files and ends its processes. Idempotent; the pool
        may be closed.
        """
        with self._lock:
            if not self._open:
                return
            self._open = False
        self._dropped.detach()
        with suppress(PoolClosedError):  # the slot ended with its pool
            self.interrupt()
            self._pool.submit(self._pool.pool.release_if_held(self._slot)).result()

    def stop(self) -> None:
        """Call ``cleanup``; the older name of it."""
        self.cleanup()

    def __enter__(self) -> HyperEnvironment:
        """Return this environment."""
        return self

    def __exit__(self, *_: object) -> None:
        """Clean up."""
        self.cleanup()


def _release_soon(pool: SyncPool, slot: Slot) -> None:
    """Release a slot without waiting: the garbage collector may call this in any thread, also in
    the pool's own.
    """
    work = pool.pool.release_if_held(slot)
    try:
        pool.submit(work)
    except (PoolClosedError, RuntimeError):  # the pool ended, or is ending in another thread
        work.close()


def _bash(
    command: str, stdin_data: str | bytes | None
) -> tuple[list[str], dict[str, str], bytes | None]:
    """Return the arguments, the variables and the input that run a command."""
    if not is_text(command):
        raise SpecError("command", command, "text without NUL and without lone surrogates")
    if not isinstance(stdin_data, (str, bytes, type(None))):
        raise SpecError("stdin_data", stdin_data, "text, bytes or None")
    data = os.fsencode(stdin_data) if isinstance(stdin_data, str) else stdin_data
    return bash_command(os.fsencode(command), data)


def _answer(result: ExecResult | None, timeout: float) -> dict[str, Any]:
    if result is None:
        return {"output": "[the command was interrupted]\n", "returncode": INTERRUPTED_CODE}
    output = result.stdout.decode(errors="replace")
    if result.timed_out:
        between = "" if not output or output.endswith("\n") else "\n"
        return {
            "output": f"{output}{between}[timed out after {timeout:g} s]\n",
            "returncode": TIMEOUT_CODE,
        }
    return {"output": output, "returncode": result.exit_code}


def shared_pool(runtime: str | None, spec: ContainerSpec) -> SyncPool:
    """Return the shared pool for an engine and a container spec; created on first use, with one
    slot per container.

    Idle containers are ended after a minute; the pool itself ends with the process.

    Args:
        runtime: the engine's name; None for ``HYPERRUNTIME_RUNTIME``, else the first engine that
            works.
        spec: the containers of the pool.

    Raises:
        HyperRuntimeError: the engine or the pool cannot be opened.
    """
    key = (runtime, spec)
    pools = _shared.get()
    with pools.lock:
        if key in pools:
            return pools[key]
        config = PoolConfig(
            spec=spec,
            slots_per_container=1,
            min_containers=0,
            max_containers=1000,
            idle_timeout_s=60.0,
            max_lifetime_s=None,
        )
        pool = pools[key] = SyncPool(shared_runtime(runtime), config)
        return pool


def close_shared_pools() -> None:
    """End all shared pools of this process and everything that runs in them; otherwise they end
    with the process.
    """
    pools = _shared.get()
    with pools.lock:
        ours = list(pools.values())
        pools.clear()
    for pool in ours:
        pool.close()
