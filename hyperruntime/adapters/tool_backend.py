"""The backend interface of programs that drive many trajectories, over the pool: acquire, execute in batches, release.

Such a program hands out slots to its trajectories, sends their tool calls in batches, and gives the slots back. What it
may not do (a stale handle, a second release, another's slot) the pool refuses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

from hyperruntime.adapters.backend_pools import (
    OpensPools,
    Pools,
    choose_profiles,
    open_pools,
    pool_facts,
    profile_facts,
)
from hyperruntime.adapters.slots import BackendSlot, SlotState
from hyperruntime.errors import PoolError, SpecError, unknown_name
from hyperruntime.pool.tools import artifact
from hyperruntime.pool.values.config import PoolConfig
from hyperruntime.pool.values.profiles import Profiles
from hyperruntime.pool.values.result import ExecutionResult
from hyperruntime.pool.values.slot import Slot

Request = tuple[BackendSlot | Slot, str, Mapping[str, Any]]

MODES = ("default", "slots")


class SlotToolBackend:
    """Slots of named pools, in the words of a tool backend. Belongs to one event loop.

    Attributes:
        profiles: the pools' configurations.
    """

    def __init__(self, profiles: Profiles, open_pools: OpensPools) -> None:
        """Note how the pools are made; nothing is started yet. See :meth:`with_profiles`.

        Args:
            profiles: see above.
            open_pools: opens them, once for each ``start``; leaving what it returns ends everything.
        """
        self.profiles, self._open_pools = profiles, open_pools
        self._pools: Pools | None = None
        self._open = AsyncExitStack()
        self._held: dict[Slot, BackendSlot] = {}

    @classmethod
    def with_profiles(
        cls,
        app_name: str = "hyperruntime",
        profiles: Mapping[str, PoolConfig | Mapping[str, Any]] | None = None,
        default_profile: str | None = None,
        profiles_file: str | os.PathLike[str] | None = None,
        *,
        runtime: str | None = None,
    ) -> SlotToolBackend:
        """Return a backend of the profiles that are given, of a file's, or of the environment's, in this order.

        Args:
            app_name: put in the labels of every container; it is no name by which another process could find them.
            profiles: by name; tables have the keys of a profiles file.
            default_profile: which slots are acquired where none is named; None is what the profiles say.
            profiles_file: TOML or YAML.
            runtime: the engine's name; None is ``HYPERRUNTIME_RUNTIME``, else the first that works.

        Raises:
            SpecError: a profile is malformed, or a key of it unknown.
        """
        chosen = choose_profiles(profiles, profiles_file, default_profile)
        return cls(chosen, lambda: open_pools(chosen, runtime, app_name))

    @property
    def default_timeout_s(self) -> float | None:
        """Seconds that a request may take, where none are given."""
        return self.profiles.configs[self.profiles.default].tools.default_timeout_s

    @property
    def started(self) -> bool:
        """Whether slots can be had."""
        return self._pools is not None

    async def start(self, profiles_to_start: Sequence[str] | None = None) -> None:
        """Make the pools; the named ones, or the default one, are warm then, the others start with their first slot.

        Raises:
            HyperRuntimeError: they cannot be started; nothing is left of them then.
        """
        if self._pools is not None:
            return
        names = tuple(profiles_to_start or (self.profiles.default,))
        for name in names:
            self._check_profile(name)
        async with AsyncExitStack() as stack:
            pools = await stack.enter_async_context(self._open_pools())
            await pools.start(*names)
            self._open, self._pools = stack.pop_all(), pools

    async def stop(self, *, purge: bool = False) -> None:
        """End every container, with what runs in it; nothing is kept in either case, so ``purge`` adds nothing."""
        self._pools = None
        await self._open.aclose()
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
        self._check_profile(profile or self.profiles.default)
        lease = await pools.acquire(trajectory_id, profile or self.profiles.default)
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
            return await pools.execute_batch(plain, timeout_s=timeout_s)
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
        """Return a file of the workspace, in the schema of :func:`~hyperruntime.pool.tools.artifact`.

        ``sha256`` is of the whole file and always there, so ``include_sha256`` adds nothing.
        """
        args = {"path": path, "encoding": encoding, "max_bytes": max_bytes}
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
        """Return what a directory of the workspace holds, in the same schema: ``entries``."""
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
        """Return a path of the workspace as one archive, in the same schema: ``content`` (base64), ``format``."""
        form = "tar.gz" if archive_format == "tgz" else archive_format
        args = {"path": path, "format": form, "max_bytes": max_bytes, "max_entries": max_entries}
        return await self._artifact(slot, "archive_artifacts", args, timeout_s)

    def get_status(self) -> dict[str, Any]:
        """Return how many containers and slots there are; of several profiles, of each that was started."""
        pools = {name: pool_facts(status) for name, status in self._need().status().items()}
        if len(self.profiles.configs) == 1:
            return pools.get(self.profiles.default) or pool_facts(None)
        return {
            "profiles": list(self.profiles.configs),
            "active_pools": [name for name in self.profiles.configs if name in pools],
            "default_profile": self.profiles.default,
            "pools": pools,
        }

    def list_profiles(self) -> dict[str, dict[str, Any]]:
        """Return every profile by name, as JSON values; what its environment holds is not told."""
        return {name: profile_facts(config) for name, config in self.profiles.configs.items()}

    async def _artifact(
        self, slot: BackendSlot | Slot, tool: str, args: Mapping[str, Any], timeout_s: float | None
    ) -> dict[str, Any]:
        given = {name: value for name, value in args.items() if value is not None}
        (result,) = await self.execute_batch([(slot, tool, given)], timeout_s=timeout_s)
        return artifact(result)

    def _need(self) -> Pools:
        if self._pools is None:
            raise PoolError("this backend is not started; await its start() first")
        return self._pools

    def _check_profile(self, name: str) -> None:
        if name not in self.profiles.configs:
            raise SpecError("profile", name, unknown_name("profile", name, self.profiles.configs))


class ToolBackend(Protocol):
    """What a program needs of a backend that may or may not run things in slots."""

    @property
    def started(self) -> bool:
        """Whether slots can be had."""
        ...


def create_tool_backend(mode: str = "default", **options: Any) -> SlotToolBackend | None:  # noqa: ANN401
    """Return the backend that a mode means: None for ``default``, and for ``slots`` one that is not started yet.

    Args:
        mode: one of these two.
        options: as of :meth:`SlotToolBackend.with_profiles`.

    Raises:
        SpecError: there is no such mode, or the profiles are malformed.
    """
    if mode not in MODES:
        raise SpecError("mode", mode, unknown_name("tool backend", mode, MODES))
    return None if mode == "default" else SlotToolBackend.with_profiles(**options)


def uses_sandbox(backend: ToolBackend | None) -> bool:
    """Tell whether tool calls go to slots: a backend was chosen, and it is started."""
    return backend is not None and backend.started


def _lease(slot: BackendSlot | Slot) -> Slot:
    return slot.lease if isinstance(slot, BackendSlot) else slot
