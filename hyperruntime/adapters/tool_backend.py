"""The backend interface of programs that drive many trajectories, over the pool: acquire, execute in batches, release.

Such a program hands out slots to its trajectories, sends their tool calls in batches, and gives the slots back. What it
may not do (a stale handle, a second release, another's slot) the pool refuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from hyperruntime.adapters.slots import BackendSlot, SlotState
from hyperruntime.errors import PoolError, SpecError, unknown_name
from hyperruntime.pool.result import ExecutionResult
from hyperruntime.pool.slot import Slot

DEFAULT_TIMEOUT_S = 300.0

Request = tuple[BackendSlot | Slot, str, Mapping[str, Any]]


class Pools(Protocol):
    """Named pools, as :class:`~hyperruntime.pool.manager.PoolManager` has them."""

    async def start(self, profiles: Sequence[str] | None = None) -> None:
        """Start pools: these, or only what is needed from the beginning."""
        ...

    async def stop(self) -> None:
        """End everything."""
        ...

    async def acquire(self, task_id: str = "", *, profile: str | None = None) -> Slot:
        """Return a lease."""
        ...

    async def release(self, slot: Slot, *, reset_workspace: bool = True) -> None:
        """End a lease."""
        ...

    async def execute_batch(
        self, requests: Sequence[tuple[Slot, str, Mapping[str, Any]]], *, timeout_s: float | None = None
    ) -> list[ExecutionResult]:
        """Return results in the order of the requests."""
        ...

    def get_status(self) -> Mapping[str, Any]:
        """Return what the pools hold, as JSON values."""
        ...

    def list_profiles(self) -> Mapping[str, Mapping[str, Any]]:
        """Return every profile as JSON values."""
        ...


class SlotToolBackend:
    """Slots of named pools, in the words of a tool backend. Belongs to one event loop.

    Attributes:
        default_timeout_s: of a request, where none is given.
        default_profile: which slots are acquired, where none is named.
    """

    def __init__(
        self,
        open_pools: Callable[[], Awaitable[Pools]],
        *,
        default_profile: str = "default",
        default_timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Note how the pools are made; nothing is started yet.

        Args:
            open_pools: makes the pools, once for each ``start``; what it opened, their ``stop`` ends.
            default_profile: see above.
            default_timeout_s: see above.
        """
        self._open = open_pools
        self._pools: Pools | None = None
        self.default_profile = default_profile
        self._default_timeout_s = default_timeout_s
        self._held: dict[Slot, BackendSlot] = {}

    @property
    def default_timeout_s(self) -> float | None:
        """Seconds that a request may take, where none are given."""
        return self._default_timeout_s

    @property
    def started(self) -> bool:
        """Whether slots can be had."""
        return self._pools is not None

    async def start(self, profiles_to_start: Sequence[str] | None = None) -> None:
        """Make the pools; the named ones are warm when this returns, the others start with their first slot.

        Raises:
            HyperRuntimeError: they cannot be started; nothing is left of them then.
        """
        if self._pools is not None:
            return
        pools = await self._open()
        try:
            for name in profiles_to_start or ():
                _check_profile(name, pools.list_profiles())
            await pools.start(profiles_to_start or [self.default_profile])
        except BaseException:
            await pools.stop()
            raise
        self._pools = pools

    async def stop(self, *, purge: bool = False) -> None:
        """End every container, with what runs in it; nothing is kept in either case, so ``purge`` adds nothing."""
        pools, self._pools = self._pools, None
        if pools is not None:
            await pools.stop()
        for slot in self._held.values():
            slot.ended = SlotState.AVAILABLE
        self._held.clear()

    async def acquire(self, trajectory_id: str | None = None, profile: str | None = None) -> BackendSlot:
        """Return a slot that nobody else has.

        Raises:
            SlotTimeoutError: none became free before the profile's deadline.
            SpecError: there is no such profile.
        """
        pools = self._need()
        name = profile or self.default_profile
        _check_profile(name, pools.list_profiles())
        lease = await pools.acquire(trajectory_id or "", profile=name)
        slot = self._held[lease] = BackendSlot(lease=lease)
        return slot

    async def release(self, slot: BackendSlot | Slot, *, reset_workspace: bool = False) -> None:
        """Give a slot back, once.

        Args:
            slot: as ``acquire`` returned it.
            reset_workspace: whether its files go at once. Else the next ``acquire`` for the same trajectory may find
                them; nobody else does.

        Raises:
            StaleLeaseError: it was given back before, or is not of this backend.
        """
        lease = _lease(slot)
        held = self._held.pop(lease, None)
        if held is not None:
            held.ended = SlotState.RELEASING
        try:
            await self._need().release(lease, reset_workspace=reset_workspace)
        except BaseException:
            if held is not None:
                held.ended = SlotState.ERROR
            raise
        if held is not None:
            held.ended = SlotState.AVAILABLE

    async def execute_batch(
        self, requests: Sequence[Request], *, timeout_s: float | None = None
    ) -> list[ExecutionResult]:
        """Return one result for each request, in their order.

        Requests of different slots run at the same time, those of one slot one after another. One that fails, times
        out or has a stale slot is its own result and nobody else's.
        """
        pools = self._need()
        held = [found for slot, _, _ in requests if (found := self._held.get(_lease(slot))) is not None]
        for slot in held:
            slot.running += 1
        try:
            plain = [(_lease(slot), tool, args) for slot, tool, args in requests]
            return await pools.execute_batch(plain, timeout_s=timeout_s or self.default_timeout_s)
        finally:
            for slot in held:
                slot.running -= 1

    async def read_artifact(
        self,
        slot: BackendSlot | Slot,
        path: str,
        *,
        encoding: str = "text",
        max_bytes: int | None = None,
        include_sha256: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Return a file of the workspace: ``success``, ``error``, ``content``, ``encoding``, ``truncated``, ..."""
        args = {"path": path, "encoding": encoding, "max_bytes": max_bytes, "include_sha256": include_sha256}
        return await self._artifact(slot, "read_artifact", args, timeout_s)

    async def list_artifacts(
        self,
        slot: BackendSlot | Slot,
        path: str = ".",
        *,
        recursive: bool = False,
        max_entries: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Return what a directory of the workspace holds: ``success``, ``error``, ``entries``, ``truncated``."""
        args = {"path": path, "recursive": recursive, "max_entries": max_entries}
        return await self._artifact(slot, "list_artifacts", args, timeout_s)

    async def archive_artifacts(
        self,
        slot: BackendSlot | Slot,
        path: str = ".",
        *,
        archive_format: str = "tar.gz",
        max_bytes: int | None = None,
        max_entries: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Return a path of the workspace as one archive: ``success``, ``error``, ``content`` (base64), ``format``."""
        args = {"path": path, "format": archive_format, "max_bytes": max_bytes, "max_entries": max_entries}
        return await self._artifact(slot, "archive_artifacts", args, timeout_s)

    def get_status(self) -> dict[str, Any]:
        """Return how many containers and slots there are, and of several profiles each one's."""
        return dict(self._need().get_status())

    def list_profiles(self) -> dict[str, dict[str, Any]]:
        """Return every profile by name, as JSON values."""
        return {name: dict(values) for name, values in self._need().list_profiles().items()}

    async def _artifact(
        self, slot: BackendSlot | Slot, tool: str, args: Mapping[str, Any], timeout_s: float | None
    ) -> dict[str, Any]:
        given = {name: value for name, value in args.items() if value is not None}
        (result,) = await self.execute_batch([(slot, tool, given)], timeout_s=timeout_s)
        return {**result.metadata, "success": result.success, "error": result.error}

    def _need(self) -> Pools:
        if self._pools is None:
            raise PoolError("this backend is not started; await its start() first")
        return self._pools


class ToolBackend(Protocol):
    """What a program needs of a backend that may or may not run things in slots."""

    @property
    def started(self) -> bool:
        """Whether slots can be had."""
        ...


def uses_sandbox(backend: ToolBackend | None) -> bool:
    """Tell whether tool calls go to slots: a backend was chosen, and it is started."""
    return backend is not None and backend.started


def _lease(slot: BackendSlot | Slot) -> Slot:
    return slot.lease if isinstance(slot, BackendSlot) else slot


def _check_profile(name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        raise SpecError("profile", name, unknown_name("profile", name, known))
