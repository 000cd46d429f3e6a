"""The types of the library: a sandbox runs commands of somebody else, and a pool leases sandboxes.

Read this page first. A :class:`Sandbox` has one form for event loops, with coroutines, and one
for threads, :class:`BlockingSandbox`, with the same names:

- a :class:`~hyperruntime.container.Container` is a :class:`BlockingSandbox`;
- a :class:`~hyperruntime.pool.lease.Lease`, the slot of a pool, is a :class:`Sandbox`;
- a :class:`~hyperruntime.remote.sandbox.RemoteSandbox`, the slot of a node, is a :class:`Sandbox`;
- a :class:`~hyperruntime.pool.sync.SyncLease`, a slot for threads, is a :class:`BlockingSandbox`;
- what a sandbox starts is a :class:`Process`, a :class:`Terminal` or a :class:`Shell`;
- :class:`~hyperruntime.pool.pool.SlotPool`, on this machine, and ``ClusterPool``, on many nodes,
  are a :class:`Pool`.

Annotate code that works in any of them with these types. A type checker then reports each verb
that does not exist:

    async def python_version(sandbox: hr.Sandbox) -> str:
        result = await sandbox.exec(["python3", "--version"])
        return result.check().stdout.decode()

Arguments and errors are described once, at :class:`~hyperruntime.container.Container`. Paths of a
leased slot may be relative to its workspace.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict, Unpack

if TYPE_CHECKING:
    from hyperruntime.exec.options import (
        SlotExecKeywords,
        SlotShellKeywords,
        SlotTerminalKeywords,
        Stream,
        TextKeywords,
    )
    from hyperruntime.layers.snapshots.snapshot import Snapshot
    from hyperruntime.pool_values.config import PoolConfig, ToolPolicy
    from hyperruntime.pool_values.results import ExecutionResult, PoolStatus, Request, Slot
    from hyperruntime.spec import ExecResult
    from hyperruntime.transfer.extract import ExtractLimits, ExtractReport
    from hyperruntime.transfer.file_calls import FileStat, OnError


class Running(Protocol):
    """What runs in a sandbox until it is closed; ``with`` and ``async with`` close it."""

    def signal(self, number: int) -> bool:
        """Send a signal; return whether a process could get it."""
        ...

    async def asignal(self, number: int) -> bool:
        """Do what :meth:`signal` does without blocking the event loop."""
        ...

    def close(self) -> bool:
        """End it with all its processes; return whether none is left."""
        ...

    async def aclose(self) -> None:
        """Do what :meth:`close` does without blocking the event loop."""
        ...

    def __enter__(self) -> Self:
        """Return the object itself."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        ...

    async def __aenter__(self) -> Self:
        """Return the object itself."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close it without blocking the event loop."""
        ...


class Process(Running, Protocol):
    """A command in the background; :class:`hyperruntime.Process` describes the methods.

    Example:
        >>> def echoed(sandbox: hr.BlockingSandbox, data: bytes) -> bytes:
        ...     with sandbox.spawn(["cat"]) as process:
        ...         process.write(data)
        ...         process.close_stdin()
        ...         return process.wait().stdout
        >>> with runtime.container(spec) as container:
        ...     echoed(container, b"hello")
        b'hello'
    """

    @property
    def stdout(self) -> bytes:
        """All standard output so far; above the limit only its head and tail."""
        ...

    @property
    def stderr(self) -> bytes:
        """All standard error so far; above the limit only its head and tail."""
        ...

    def read(self, stream: Stream = "stdout") -> bytes:
        """Return the output since the last call, without waiting."""
        ...

    def write(self, data: bytes) -> None:
        """Write to the standard input; wait while the command does not read."""
        ...

    async def awrite(self, data: bytes) -> None:
        """Do what :meth:`write` does without blocking the event loop."""
        ...

    def close_stdin(self) -> None:
        """Let the command read end-of-file, after what was written."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, or None while the command runs."""
        ...

    def wait(self, timeout_s: float | None = None) -> ExecResult:
        """Wait until the command has ended and return its result."""
        ...

    async def await_end(self) -> ExecResult:
        """Do what :meth:`wait` does without blocking the event loop."""
        ...


class Terminal(Running, Protocol):
    r"""A command on a terminal; :class:`hyperruntime.Terminal` describes the methods.

    Example:
        >>> def exit_code(sandbox: hr.BlockingSandbox, text: bytes) -> int:
        ...     with sandbox.terminal(["sh"]) as terminal:
        ...         terminal.write(text)
        ...         return terminal.wait()
        >>> with runtime.container(spec) as container:
        ...     exit_code(container, b"exit 7\r")
        7
    """

    def read(self, timeout_s: float | None = None) -> bytes:
        """Return the next output, as soon as there is some; ``b""`` after the command's end."""
        ...

    async def aread(self, timeout_s: float | None = None) -> bytes:
        """Do what :meth:`read` does without blocking the event loop."""
        ...

    def write(self, data: bytes) -> None:
        """Write to the terminal as a keyboard does."""
        ...

    async def awrite(self, data: bytes) -> None:
        """Do what :meth:`write` does without blocking the event loop."""
        ...

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of the window."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, or None while the command runs."""
        ...

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until the command has ended, and return its exit code."""
        ...

    async def await_end(self) -> int:
        """Do what :meth:`wait` does without blocking the event loop."""
        ...


class Shell(Running, Protocol):
    r"""A persistent bash: its directory, variables and jobs stay from one text to the next.

    Attributes:
        exit_code: the value that the next text sees in ``$?``.

    Example:
        >>> def directory(sandbox: hr.BlockingSandbox) -> bytes:
        ...     with sandbox.shell() as shell:
        ...         shell.run("cd /usr")
        ...         return shell.run("pwd").stdout
        >>> with runtime.container(spec) as container:
        ...     directory(container)
        b'/usr\n'
    """

    exit_code: int

    def run(self, text: str | bytes, **options: Unpack[TextKeywords]) -> ExecResult:
        """Run a text and return how it ended; see :meth:`Shell.run`."""
        ...

    async def arun(self, text: str | bytes, **options: Unpack[TextKeywords]) -> ExecResult:
        """Do what :meth:`run` does without blocking the event loop."""
        ...


class TimeKeywords(TypedDict, total=False):
    """Keyword arguments of each use of files; :meth:`Container.put` and :meth:`Container.read_file`
    describe them.
    """

    timeout_s: float | None


class GetKeywords(TimeKeywords, total=False):
    """Keyword arguments of a copy to the host; :meth:`Container.get` describes them."""

    limits: ExtractLimits | None


class ReadKeywords(TimeKeywords, total=False):
    """Keyword arguments of the reading of a file; :meth:`Container.read_file` describes them."""

    limit_bytes: int


class ReadManyKeywords(ReadKeywords, total=False):
    """Keyword arguments of the reading of many files; :meth:`Container.read_files` describes
    them.
    """

    on_error: OnError


class WriteKeywords(TimeKeywords, total=False):
    """Keyword arguments of the writing of a file; :meth:`Container.write_file` describes them."""

    mode: int | None
    parents: bool


class WriteManyKeywords(WriteKeywords, total=False):
    """Keyword arguments of the writing of many files; :meth:`Container.write_files` describes
    them.
    """

    on_error: OnError


class StatKeywords(TimeKeywords, total=False):
    """Keyword arguments of the question for a path's facts; :meth:`Container.stat` describes
    them.
    """

    follow_symlinks: bool


class Sandbox(Protocol):
    """Where commands of somebody else run, for event loops: a leased slot of a pool.

    Attributes:
        slot: the handle of the lease.

    Example:
        >>> async def count(sandbox: hr.Sandbox) -> int:
        ...     return len(await sandbox.listdir("."))
        >>> async def main() -> int:
        ...     config = hr.PoolConfig(spec=spec)
        ...     async with hr.SlotPool(runtime, config) as pool, pool.lease() as sandbox:
        ...         await sandbox.write_file("answer", b"42")
        ...         return await count(sandbox)
        >>> asyncio.run(main())
        1
    """

    slot: Slot

    async def exec(
        self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]
    ) -> ExecResult:
        """Run a command and return its result; see :meth:`Container.exec`."""
        ...

    async def spawn(
        self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]
    ) -> Process:
        """Start a command in the background; see :meth:`Container.spawn`."""
        ...

    async def terminal(
        self, args: Sequence[str | bytes], **options: Unpack[SlotTerminalKeywords]
    ) -> Terminal:
        """Start a command on a terminal; see :meth:`Container.terminal`."""
        ...

    async def shell(self, **options: Unpack[SlotShellKeywords]) -> Shell:
        """Return a persistent bash; see :meth:`Container.shell`."""
        ...

    async def signal_group(self, group: str, number: int) -> bool:
        """Send a signal to the commands of a group; see :meth:`Container.signal_group`."""
        ...

    async def end_group(self, group: str) -> bool:
        """Kill the commands of a group; see :meth:`Container.end_group`."""
        ...

    async def end_processes(self) -> None:
        """End all processes of the sandbox; its files stay."""
        ...

    async def release(self, *, reset_workspace: bool = True) -> None:
        """Give the sandbox back to its pool; see :meth:`SlotPool.release`."""
        ...

    async def tool(
        self,
        name: str,
        args: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        policy: ToolPolicy | None = None,
    ) -> ExecutionResult:
        """Call a tool of an agent; see :meth:`SlotPool.execute`."""
        ...

    async def put(
        self, source: str | os.PathLike[str], target: str, **options: Unpack[TimeKeywords]
    ) -> None:
        """Copy a file or directory of the host into the sandbox; see :meth:`Container.put`."""
        ...

    async def get(
        self, source: str, target: str | os.PathLike[str], **options: Unpack[GetKeywords]
    ) -> ExtractReport:
        """Copy an untrusted file or directory to the host; see :meth:`Container.get`."""
        ...

    async def forward(self, port: int, *, host: str = "127.0.0.1") -> tuple[str, int]:
        """Listen on the host for clients of a port; see :meth:`Container.forward`."""
        ...

    async def read_file(self, path: str, **options: Unpack[ReadKeywords]) -> bytes:
        """Return the bytes of a file; see :meth:`Container.read_file`."""
        ...

    async def read_files(
        self, paths: Iterable[str], **options: Unpack[ReadManyKeywords]
    ) -> dict[str, bytes]:
        """Return the bytes of many files, by path; see :meth:`Container.read_files`."""
        ...

    async def write_file(self, path: str, data: bytes, **options: Unpack[WriteKeywords]) -> None:
        """Write a whole file; see :meth:`Container.write_file`."""
        ...

    async def write_files(
        self, files: Mapping[str, bytes], **options: Unpack[WriteManyKeywords]
    ) -> None:
        """Write many files; see :meth:`Container.write_files`."""
        ...

    async def stat(self, path: str, **options: Unpack[StatKeywords]) -> FileStat:
        """Return the facts of a path; see :meth:`Container.stat`."""
        ...

    async def listdir(self, path: str = ".", **options: Unpack[TimeKeywords]) -> list[str]:
        """Return the sorted names in a directory; see :meth:`Container.listdir`."""
        ...


class BlockingSandbox(Protocol):
    """Where commands of somebody else run, for threads; the verbs are those of :class:`Sandbox`.

    Example:
        >>> def said(sandbox: hr.BlockingSandbox) -> bytes:
        ...     return sandbox.exec(["printf", "hello"]).stdout
        >>> with runtime.container(spec) as container:
        ...     said(container)
        b'hello'
    """

    def exec(self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]) -> ExecResult:
        """Run a command and return its result."""
        ...

    def spawn(self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]) -> Process:
        """Start a command in the background."""
        ...

    def terminal(
        self, args: Sequence[str | bytes], **options: Unpack[SlotTerminalKeywords]
    ) -> Terminal:
        """Start a command on a terminal."""
        ...

    def shell(self, **options: Unpack[SlotShellKeywords]) -> Shell:
        """Return a persistent bash."""
        ...

    def signal_group(self, group: str, number: int) -> bool:
        """Send a signal to the commands of a group."""
        ...

    def end_group(self, group: str) -> bool:
        """Kill the commands of a group."""
        ...

    def put(
        self, source: str | os.PathLike[str], target: str, **options: Unpack[TimeKeywords]
    ) -> None:
        """Copy a file or directory of the host into the sandbox."""
        ...

    def get(
        self, source: str, target: str | os.PathLike[str], **options: Unpack[GetKeywords]
    ) -> ExtractReport:
        """Copy an untrusted file or directory to the host."""
        ...

    def forward(self, port: int, *, host: str = "127.0.0.1") -> tuple[str, int]:
        """Listen on the host for clients of a port."""
        ...

    def read_file(self, path: str, **options: Unpack[ReadKeywords]) -> bytes:
        """Return the bytes of a file."""
        ...

    def read_files(
        self, paths: Iterable[str], **options: Unpack[ReadManyKeywords]
    ) -> dict[str, bytes]:
        """Return the bytes of many files, by path."""
        ...

    def write_file(self, path: str, data: bytes, **options: Unpack[WriteKeywords]) -> None:
        """Write a whole file."""
        ...

    def write_files(self, files: Mapping[str, bytes], **options: Unpack[WriteManyKeywords]) -> None:
        """Write many files."""
        ...

    def stat(self, path: str, **options: Unpack[StatKeywords]) -> FileStat:
        """Return the facts of a path."""
        ...

    def listdir(self, path: str, **options: Unpack[TimeKeywords]) -> list[str]:
        """Return the sorted names in a directory."""
        ...


class Pool(Protocol):
    """A pool of equal sandboxes, leased one by one; ``async with`` starts and stops it.

    Attributes:
        config: the pool's configuration.

    Example:
        >>> async def free(pool: hr.Pool) -> int:
        ...     async with pool:
        ...         return pool.status().free
        >>> asyncio.run(free(hr.SlotPool(runtime, hr.PoolConfig(spec=spec)))) > 0
        True
    """

    config: PoolConfig

    async def start(self) -> None:
        """Start the minimum of containers; see :meth:`SlotPool.start`."""
        ...

    async def stop(self) -> None:
        """End waiting acquires, running commands and all containers."""
        ...

    async def __aenter__(self) -> Self:
        """Start the pool."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Stop the pool."""
        ...

    async def acquire(
        self,
        task_id: str | None = None,
        *,
        timeout_s: float | None = None,
        base: Snapshot | str | None = None,
    ) -> Slot:
        """Lease a slot; see :meth:`SlotPool.acquire`."""
        ...

    async def release(self, slot: Slot, *, reset_workspace: bool = True) -> None:
        """Release a slot; see :meth:`SlotPool.release`."""
        ...

    async def release_if_held(self, slot: Slot) -> None:
        """Release a slot, unless it was released or its lease expired."""
        ...

    def lease(
        self,
        task_id: str | None = None,
        *,
        timeout_s: float | None = None,
        base: Snapshot | str | None = None,
    ) -> AbstractAsyncContextManager[Sandbox]:
        """Lease a sandbox for a block; see :meth:`SlotPool.lease`."""
        ...

    def lease_of(self, slot: Slot) -> Sandbox:
        """Return the sandbox of a slot."""
        ...

    async def execute(
        self,
        slot: Slot,
        tool: str,
        args: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        policy: ToolPolicy | None = None,
    ) -> ExecutionResult:
        """Call a tool in a slot; see :meth:`SlotPool.execute`."""
        ...

    async def execute_batch(
        self, requests: Sequence[Request], *, timeout_s: float | None = None
    ) -> list[ExecutionResult]:
        """Call many tools, in different slots at the same time."""
        ...

    def status(self) -> PoolStatus:
        """Return the pool's present status."""
        ...

    def shrink(self) -> None:
        """End all unused containers."""
        ...
