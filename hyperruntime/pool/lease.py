"""A lease bound to its pool: the interface for environments and embedding programs."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from hyperruntime.concurrency.blocking import RESETS, blocking
from hyperruntime.driver import EngineInfo
from hyperruntime.errors import ContainerStateError, PoolError
from hyperruntime.exec.options import SlotExecKeywords, SlotShellKeywords, SlotTerminalKeywords
from hyperruntime.exec.persistent.shell import Shell
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.layers.snapshots.snapshot import Snapshot
from hyperruntime.network.egress import Egress
from hyperruntime.pool.pooled_sandbox import PooledSandbox
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool_values.results import Slot
from hyperruntime.sandbox import Pool
from hyperruntime.spec import ExecResult
from hyperruntime.transfer.copy import DEFAULT_TIMEOUT_S
from hyperruntime.transfer.extract import ExtractLimits, ExtractReport

if TYPE_CHECKING:
    from hyperruntime.egress.proxy import Connection

T = TypeVar("T")


class LocalPool(Pool, Protocol):
    """A pool whose slots are in containers of this process."""

    @property
    def engine(self) -> EngineInfo:
        """What the engine of the slots can do; see :meth:`SlotPool.engine`."""
        ...

    @property
    def keeps_files(self) -> bool:
        """Whether the files of slots can be kept."""
        ...

    def check_keeps_files(self) -> None:
        """Raise UnsupportedOptionError if they cannot."""
        ...

    async def rollback(self, slot: Slot, snapshot: Snapshot) -> None:
        """Give a slot the files of a snapshot; see :meth:`SlotPool.rollback`."""
        ...

    async def run(self, slot: Slot, work: Callable[[SlotExec], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` with the slot; see :meth:`SlotPool.run`."""
        ...


class Lease(PooledSandbox[LocalPool]):
    """One leased slot; commands, tools and file copies run as the slot's user.

    Attributes:
        slot: the handle of the lease.
        pool: the pool that the slot belongs to.

    Example:
        >>> config = hr.PoolConfig(spec=spec)
        >>> async def main():
        ...     async with hr.SlotPool(runtime, config) as pool, pool.lease() as lease:
        ...         return (await lease.exec(["printf", "hello"])).stdout
        >>> asyncio.run(main())
        b'hello'
    """

    async def _run(self, work: Callable[[SlotExec], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` with the slot; see :meth:`SlotPool.run`."""
        return await self.pool.run(self.slot, work)

    async def exec(
        self,
        args: Sequence[str | bytes],
        **options: Unpack[SlotExecKeywords],
    ) -> ExecResult:
        """Run a command in the slot. Arguments not listed are those of :meth:`Container.aexec`.

        Args:
            timeout_s: time limit in seconds, 300 by default; None means no limit.
            env: variables in addition to the slot's.
            workdir: absolute, or relative to the workspace; None means the workspace.
            group: name of a group of the slot's commands, for :meth:`end_group` and
                :meth:`signal_group`.

        Raises:
            StaleLeaseError: the slot was released, or its lease expired.
            SandboxLostError: the slot's container ended.
        """
        options.setdefault("timeout_s", 300.0)
        return await self._run(lambda slot_exec: slot_exec.aexec(args, **options))

    async def spawn(
        self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]
    ) -> Process:
        """Start a command in the slot in the background; it ends with the lease, if not before.

        Arguments and errors are those of :meth:`Container.spawn` and :meth:`exec`, but there is no
        time limit unless one is given.
        """
        return await self._run(
            lambda slot_exec: slot_exec.container.aspawn(args, **slot_exec.placed(options))
        )

    async def terminal(
        self, args: Sequence[str | bytes], **options: Unpack[SlotTerminalKeywords]
    ) -> Terminal:
        """Start a command in the slot on a terminal; it ends with the lease, if not before.

        Arguments and errors are those of :meth:`Container.terminal` and :meth:`exec`.
        """
        return await self._run(
            lambda slot_exec: slot_exec.container.aterminal(args, **slot_exec.placed(options))
        )

    async def shell(self, **options: Unpack[SlotShellKeywords]) -> Shell:
        """Return a persistent bash of the slot; it ends with the lease, if not before, and then
        runs no text.

        Arguments and errors are those of :meth:`Container.shell` and :meth:`exec`.
        """

        async def start(slot_exec: SlotExec) -> Shell:
            return slot_exec.open_shell(**options)

        return await self._run(start)

    async def signal_group(self, group: str, number: int) -> bool:
        """Send a signal to all processes of a group's commands; return whether there were any.

        Groups of other slots do not get it. Errors are those of :meth:`Container.signal_group` and
        :meth:`exec`.
        """
        return await self._run(
            lambda slot_exec: slot_exec.container.asignal_group(slot_exec.group_name(group), number)
        )

    async def end_group(self, group: str) -> bool:
        """Kill all processes of a group's commands; return whether none is left; see
        :meth:`Container.end_group`.
        """
        return await self._run(
            lambda slot_exec: slot_exec.container.aend_group(slot_exec.group_name(group))
        )

    async def end_processes(self) -> None:
        """End all processes of the slot, including background processes and persistent shells; its
        files stay.

        Raises:
            PoolError: a process could not be ended.
        """

        async def end(slot_exec: SlotExec) -> None:
            await slot_exec.close()
            await blocking(RESETS, slot_exec.end_processes)

        await self._run(end)

    @property
    def keeps_files(self) -> bool:
        """Whether :meth:`snapshot` and :meth:`rollback` work: the engine has snapshots, and the
        slot has a container of its own.
        """
        return self.pool.keeps_files

    async def snapshot(self) -> Snapshot:
        """Keep the files of the slot's container, for ``acquire(base=...)`` and :meth:`rollback`;
        see :meth:`Container.snapshot`.

        Persistent shells of the slot end.

        Raises:
            PoolError: processes run in the slot.
            UnsupportedOptionError: the slot shares its container, or the engine has no snapshots.

        Example:
            >>> config = hr.PoolConfig(spec=spec, slots_per_container=1)
            >>> async def main():
            ...     async with hr.SlotPool(runtime, config) as pool, pool.lease() as lease:
            ...         await lease.write_file("/prepared", b"")
            ...         clean = await lease.snapshot()
            ...         await lease.exec(["rm", "/prepared"])
            ...         await lease.rollback(clean)
            ...         return (await lease.stat("/prepared")).size_bytes
            >>> asyncio.run(main())
            0
        """

        async def keep(slot_exec: SlotExec) -> Snapshot:
            await slot_exec.close()
            try:
                return await blocking(RESETS, slot_exec.container.snapshot)
            except ContainerStateError as error:
                if not slot_exec.container.is_alive:
                    raise
                raise PoolError(str(error)) from error

        self.pool.check_keeps_files()
        return await self._run(keep)

    async def rollback(self, snapshot: Snapshot) -> None:
        """Give the slot's container the files of a snapshot; all its processes end. If that fails,
        the slot is released.

        Raises:
            SpecError: the snapshot is of another engine or image.
            UnsupportedOptionError: the slot shares its container, or the engine has no snapshots.
        """
        await self.pool.rollback(self.slot, snapshot)

    async def set_egress(self, egress: Egress | None) -> None:
        """Let the slot reach other servers until its lease ends; see :attr:`Container.egress`.

        Raises:
            PoolError: the slot shares its container, and with it the list.
            SpecError: the container has another network.
        """

        async def change(slot_exec: SlotExec) -> None:
            if slot_exec.isolation != "container":
                raise PoolError(
                    f"slot {slot_exec.slot_id} shares its container, which has one list; use one "
                    "slot per container"
                )

            def use() -> None:
                slot_exec.container.egress = egress

            await blocking(RESETS, use)

        await self._run(change)

    async def connections(self, since: float = 0.0) -> tuple[Connection, ...]:
        """Return the last connections of the slot's container through its list.

        Args:
            since: Unix time in seconds; earlier ones are left out.
        """

        async def read(slot_exec: SlotExec) -> tuple[Connection, ...]:
            found = slot_exec.container.connections
            return tuple(one for one in found if one.time >= since)

        return await self._run(read)

    async def put(
        self,
        source: str | os.PathLike[str],
        target: str,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Copy a file or directory of the host into the slot; the errors are those of
        :meth:`Container.put`.

        Args:
            source: path on the host.
            target: path in the slot: absolute, or relative to the workspace.
            timeout_s: time limit in seconds, 600 by default; None means no limit.
        """

        async def copy(slot_exec: SlotExec) -> None:
            path = posixpath.join(slot_exec.workspace, target)
            await slot_exec.container.aput(source, path, timeout_s=timeout_s, **slot_exec.options)

        await self._run(copy)

    async def get(
        self,
        source: str,
        target: str | os.PathLike[str],
        *,
        limits: ExtractLimits | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> ExtractReport:
        """Copy a file or directory of the slot to the host; the content is not trusted.

        The errors are those of :meth:`Container.get`.

        Args:
            source: path in the slot: absolute, or relative to the workspace.
            target: path on the host.
            limits: limits on the extracted files; None means the defaults.
            timeout_s: time limit in seconds, 600 by default; None means no limit.
        """

        async def copy(slot_exec: SlotExec) -> ExtractReport:
            path = posixpath.join(slot_exec.workspace, source)
            return await slot_exec.container.aget(
                path, target, limits=limits, timeout_s=timeout_s, **slot_exec.options
            )

        return await self._run(copy)

    async def forward(self, port: int, *, host: str = "127.0.0.1") -> tuple[str, int]:
        """Listen on this machine for clients of a port of the slot; see :meth:`Container.forward`.

        It ends with the lease. Slots of one container share its ports.

        Args:
            port: TCP port on the container's loopback.
            host: address of this machine on which to listen.
        """

        async def forward(slot_exec: SlotExec) -> tuple[str, int]:
            return await slot_exec.container.aforward(port, host=host, **slot_exec.options)

        return await self._run(forward)
