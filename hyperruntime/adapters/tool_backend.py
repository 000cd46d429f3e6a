"""A tool backend for programs that run many trajectories: acquire slots, execute tool calls in
batches, release.

The pool refuses misuse: a stale handle, a second release, a slot of another backend.
"""

from __future__ import annotations

import asyncio
import enum
import os
import posixpath
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import attrs

from hyperruntime.adapters.foreign_config import MODES, environment_config, pool_config, profiles_of
from hyperruntime.errors import PoolError, SpecError, unknown_name
from hyperruntime.pool.manager import PoolManager
from hyperruntime.pool.tools import artifact
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.pool_values.profiles import Profiles, load_profiles, profiles_from_environment
from hyperruntime.pool_values.results import ExecutionResult, PoolStatus, Slot
from hyperruntime.runtime import open_runtime

OpensPools = Callable[[], AbstractAsyncContextManager[PoolManager]]
_APP = "hyperruntime"


class SlotState(enum.Enum):
    """The state of a slot, as a tool backend reports it."""

    AVAILABLE = "available"
    ACQUIRED = "acquired"
    EXECUTING = "executing"
    RELEASING = "releasing"
    ERROR = "error"


@attrs.define(eq=False, kw_only=True)
class BackendSlot:
    """A leased slot of a tool backend, with its state.

    The pool checks ``lease`` only, so changing this object cannot make a stale slot valid again.

    Attributes:
        lease: the pool's slot handle.
        running: number of the slot's requests that are running.
        ended: ``ACQUIRED`` while the slot is leased, then ``RELEASING``, ``AVAILABLE`` or
            ``ERROR``.
        metadata: the holder's own JSON values.
    """

    lease: Slot
    running: int = 0
    ended: SlotState = SlotState.ACQUIRED
    metadata: dict[str, Any] = attrs.field(factory=dict)

    @property
    def slot_id(self) -> str:
        """The slot's name, unique on this machine."""
        return self.lease.slot_id

    @property
    def alloc_id(self) -> str:
        """Name of the slot's container."""
        return self.lease.container

    @property
    def container_addr(self) -> str:
        """Name of the slot's container, in place of an address: the container has none."""
        return self.lease.container

    @property
    def workspace_dir(self) -> str:
        """Absolute path of the slot's directory in the container."""
        return self.lease.workspace

    @property
    def trajectory_id(self) -> str | None:
        """The trajectory that acquired the slot; None after its release."""
        return None if self.ended is SlotState.AVAILABLE else self.lease.task_id

    @property
    def state(self) -> SlotState:
        """The slot's state now."""
        if self.ended is SlotState.ACQUIRED and self.running:
            return SlotState.EXECUTING
        return self.ended

    @property
    def is_available(self) -> bool:
        """Whether the slot was released."""
        return self.state is SlotState.AVAILABLE

    @property
    def is_acquired(self) -> bool:
        """Whether the slot is leased and not being released."""
        return self.ended is SlotState.ACQUIRED

    def to_dict(self) -> dict[str, Any]:
        """Return the slot as JSON values."""
        return {
            "slot_id": self.slot_id,
            "alloc_id": self.alloc_id,
            "container_addr": self.container_addr,
            "workspace_dir": self.workspace_dir,
            "state": self.state.value,
            "trajectory_id": self.trajectory_id,
            "metadata": {
                **self.metadata,
                "profile": self.lease.profile,
                "generation": self.lease.generation,
            },
        }


Request = tuple[BackendSlot | Slot, str, Mapping[str, Any]]


class SlotToolBackend:
    """A tool backend with the slots of named pools. Use it in one event loop.

    Attributes:
        profiles: the configurations of the pools.
    """

    def __init__(
        self,
        config: object,
        open_pools: OpensPools | None = None,
        *,
        app_name: str = "",
        runtime: str | None = None,
    ) -> None:
        """Create a backend that is not started.

        Args:
            config: the only profile, in a form that
                :func:`~hyperruntime.adapters.foreign_config.pool_config` knows; or several, as
                ``Profiles``.
            open_pools: opens the pools, once for each ``start``; its context manager ends them on
                exit. None for the pools of `runtime`.
            app_name: run id in the labels of every container; other processes cannot find the
                containers by it. "" for the ``app_name`` of `config`, if it has one.
            runtime: the engine's name; None for ``HYPERRUNTIME_RUNTIME``, else the first engine
                that works.

        Raises:
            SpecError: the configuration is malformed, or has a field that is unknown or cannot be
                honoured.
        """
        self.profiles = profiles = profiles_of(config)
        label = str(app_name or getattr(config, "app_name", None) or _APP)
        self._open_pools = open_pools or (lambda: _open_pools(profiles, runtime, label))
        self._pools: PoolManager | None = None
        self._open = AsyncExitStack()
        self._held: dict[Slot, BackendSlot] = {}

    @classmethod
    def with_profiles(
        cls,
        app_name: str = _APP,
        profiles: Mapping[str, object] | None = None,
        default_profile: str | None = None,
        profiles_file: str | os.PathLike[str] | None = None,
        *,
        runtime: str | None = None,
    ) -> SlotToolBackend:
        """Return a backend with the given profiles, else those of a file, else those of the
        environment.

        Args:
            app_name: run id in the labels of every container; other processes cannot find the
                containers by it.
            profiles: profiles by name, each as the argument ``config`` of the class.
            default_profile: profile to acquire slots of if none is named; None for the source's own
                default.
            profiles_file: a TOML or YAML file.
            runtime: the engine's name; None for ``HYPERRUNTIME_RUNTIME``, else the first engine
                that works.

        Raises:
            SpecError: a profile is malformed or has an unknown key, or the default is not one of
                the profiles.
        """
        if profiles is not None:
            configs = {name: pool_config(name, value) for name, value in profiles.items()}
            chosen = Profiles(configs=configs, default=next(iter(configs), "default"))
        elif profiles_file is not None:
            chosen = load_profiles(os.fspath(profiles_file))
        else:
            chosen = profiles_from_environment(os.environ)
        if default_profile is not None:
            chosen = Profiles(configs=chosen.configs, default=default_profile)
        return cls(chosen, app_name=app_name, runtime=runtime)

    @property
    def default_timeout_s(self) -> float | None:
        """Default time limit of a request, in seconds, of the default profile."""
        return self.profiles.configs[self.profiles.default].tools.default_timeout_s

    @property
    def started(self) -> bool:
        """Whether the backend is started, so that slots can be acquired."""
        return self._pools is not None

    async def start(self, profiles_to_start: Sequence[str] | None = None) -> None:
        """Open the pools, and start the named ones; does nothing if the backend is started.

        Args:
            profiles_to_start: profiles whose pools start now; None or empty for the default
                profile. The other pools start with their first slot.

        Raises:
            SpecError: a profile is unknown.
            HyperRuntimeError: a pool cannot be started; all containers are removed.
        """
        if self._pools is not None:
            return
        async with AsyncExitStack() as stack:
            pools = await stack.enter_async_context(self._open_pools())
            await pools.start(*(profiles_to_start or (self.profiles.default,)))
            self._open = stack.pop_all()
            self._pools = pools

    async def stop(self, *, purge: bool = False) -> None:
        """End all containers and everything that runs in them; `purge` has no effect, because
        nothing is kept.
        """
        self._pools = None
        try:
            await self._open.aclose()
        finally:
            for slot in self._held.values():
                slot.ended = SlotState.AVAILABLE
            self._held.clear()

    async def acquire(
        self, trajectory_id: str | None = None, profile: str | None = None
    ) -> BackendSlot:
        """Lease a slot, and return it.

        Args:
            trajectory_id: the trajectory that the slot is for; None for a random one.
            profile: profile of the slot; None for the default profile.

        Raises:
            SlotTimeoutError: no slot became free within the profile's time limit.
            SpecError: the profile is unknown.
            PoolError: the backend is not started.
        """
        lease = await self._need().acquire(trajectory_id, profile or self.profiles.default)
        slot = self._held[lease] = BackendSlot(lease=lease)
        return slot

    async def release(self, slot: BackendSlot | Slot, *, reset_workspace: bool = False) -> None:
        """Release a slot.

        Args:
            slot: a slot that ``acquire`` returned.
            reset_workspace: whether to delete the slot's files now. If not, the next ``acquire``
                for the same trajectory may find them; other trajectories never do.

        Raises:
            StaleLeaseError: the slot was released before, or belongs to another backend.
            PoolError: the backend is not started.
        """
        lease = _lease(slot)
        held = self._held.pop(lease, None) or BackendSlot(lease=lease)
        held.ended = SlotState.RELEASING
        try:
            await self._need().release(lease, reset_workspace=reset_workspace)
        except BaseException:
            held.ended = SlotState.ERROR
            raise
        held.ended = SlotState.AVAILABLE

    async def execute_batch(
        self, requests: Sequence[Request], *, timeout_s: float | None = None
    ) -> list[ExecutionResult]:
        """Call tools, and return one result for each request, in the same order.

        Requests of different slots run at the same time, those of one slot one after another. A
        request that fails, times out or has a stale slot gets its own failed result and does not
        affect the others.

        Args:
            requests: slot, name of the tool and its arguments.
            timeout_s: time limit of each request in seconds; None for the request's own, else the
                profile's default.

        Raises:
            PoolError: the backend is not started.
        """
        pools = self._need()
        held = [
            found for slot, _, _ in requests if (found := self._held.get(_lease(slot))) is not None
        ]
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
        """Return a file of the workspace, in the schema of
        :func:`~hyperruntime.pool.tools.artifact`.

        As programs expect, ``entries`` has only the names, ``details`` has the facts of each entry,
        and ``archive_base64`` is the ``content`` of an archive.

        Args:
            slot: a slot that ``acquire`` returned.
            path: path of the file in the workspace.
            encoding: ``text``, ``base64`` or ``auto``.
            max_bytes: the most bytes to return; None for the profile's limit.
            include_sha256: has no effect: the result always has the digest of the whole file.
            timeout_s: time limit in seconds; None for the profile's default.
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
        """Return the entries of a directory of the workspace, in the schema of ``read_artifact``.

        ``entries`` are the names in the directory, hidden ones too; with `recursive`, the absolute
        paths of all files.

        Args:
            slot: a slot that ``acquire`` returned.
            path: path of the directory in the workspace.
            recursive: whether to list subdirectories too.
            max_entries: the most entries to return; None for the profile's limit.
            timeout_s: time limit in seconds; None for the profile's default.
        """
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
        """Return a path of the workspace as one archive, in the schema of ``read_artifact``.

        Args:
            slot: a slot that ``acquire`` returned.
            path: path in the workspace.
            archive_format: format of the archive; ``tgz`` means ``tar.gz``.
            max_bytes: the most bytes of the archive; None for the profile's limit.
            max_entries: the most entries of the archive; None for the profile's limit.
            timeout_s: time limit in seconds; None for the profile's default.
        """
        form = "tar.gz" if archive_format == "tgz" else archive_format
        args = {"path": path, "format": form, "max_bytes": max_bytes, "max_entries": max_entries}
        return await self._artifact(slot, "archive_artifacts", args, timeout_s)

    def get_status(self) -> dict[str, Any]:
        """Return the numbers of containers and slots of each started pool; of the only profile also
        at the top.

        ``available_slots`` counts the slots that can be acquired now, or after their reset.

        Raises:
            PoolError: the backend is not started.
        """
        pools = {name: _pool_facts(status) for name, status in self._need().status().items()}
        return {
            **(pools[self.profiles.default] if len(self.profiles.configs) == 1 else {}),
            "profiles": list(self.profiles.configs),
            "active_pools": [name for name in self.profiles.configs if name in pools],
            "default_profile": self.profiles.default,
            "pools": pools,
        }

    def list_profiles(self) -> dict[str, dict[str, Any]]:
        """Return all profiles by name, as JSON values; of their environments only the names.

        ``active`` is true if the profile's pool is started.
        """
        started = self._pools.status() if self._pools is not None else {}
        return {
            name: {**_profile_facts(config), "active": name in started}
            for name, config in self.profiles.configs.items()
        }

    async def _artifact(
        self, slot: BackendSlot | Slot, tool: str, args: Mapping[str, Any], timeout_s: float | None
    ) -> dict[str, Any]:
        given = {name: value for name, value in args.items() if value is not None}
        (result,) = await self.execute_batch([(slot, tool, given)], timeout_s=timeout_s)
        found = artifact(result)
        details = found["entries"] or []
        names = [entry["path"] for entry in details]
        if args.get("recursive"):
            top = posixpath.join(_lease(slot).workspace, args["path"])
            names = [
                posixpath.normpath(f"{top}/{entry['path']}")
                for entry in details
                if entry["type"] == "file"
            ]
        archive = (found["content"] or "") if tool == "archive_artifacts" else None
        return {**found, "entries": names, "details": details, "archive_base64": archive}

    def _need(self) -> PoolManager:
        if self._pools is None:
            raise PoolError("this backend is not started; await its start() first")
        return self._pools


def create_tool_backend(mode: object = "default", **options: Any) -> SlotToolBackend | None:  # noqa: ANN401
    """Return the backend of a mode: None for ``default``, a backend that is not started for
    ``slots``.

    Args:
        mode: ``default`` or ``slots``; or the settings of a training environment, an object with a
            field ``tool_pool_mode``, see
            :func:`~hyperruntime.adapters.foreign_config.environment_config`.
        options: arguments of :meth:`SlotToolBackend.with_profiles`; of such an object only
            ``runtime``.

    Raises:
        SpecError: the mode is unknown, or the profiles are malformed.
    """
    if not isinstance(mode, str):
        found = environment_config(mode)
        return None if found is None else SlotToolBackend(found[0], app_name=found[1], **options)
    if mode not in MODES:
        raise SpecError("mode", mode, unknown_name("tool backend", mode, MODES))
    return None if mode == "default" else SlotToolBackend.with_profiles(**options)


def uses_sandbox(backend: SlotToolBackend | None) -> bool:
    """Return whether tool calls run in slots: `backend` is not None and is started."""
    return backend is not None and backend.started


def _lease(slot: BackendSlot | Slot) -> Slot:
    return slot.lease if isinstance(slot, BackendSlot) else slot


@asynccontextmanager
async def _open_pools(
    profiles: Profiles, runtime: str | None, app_name: str
) -> AsyncIterator[PoolManager]:
    """Open a runtime and its pools for a block; all containers end with the block.

    Args:
        profiles: the configurations of the pools.
        runtime: the engine's name; None for ``HYPERRUNTIME_RUNTIME``, else the first engine that
            works.
        app_name: run id in the labels of the containers.
    """
    opened = await asyncio.to_thread(open_runtime, runtime, run_id=app_name)
    try:
        async with PoolManager(opened, profiles) as pools:
            yield pools
    finally:
        await asyncio.to_thread(opened.close)


def _pool_facts(status: PoolStatus) -> dict[str, Any]:
    """Return a pool's status as JSON values, under the names that other programs use."""
    return {
        "sandboxes": status.containers,
        "healthy_sandboxes": status.containers - status.draining,
        "max_sandboxes": status.max_containers,
        "total_slots": status.total_slots,
        "available_slots": status.available,
        "slots_per_sandbox": status.slots_per_container,
        "quarantined_slots": status.quarantined,
        "waiting": status.waiting,
        "isolation": status.isolation,
        "error": status.error,
    }


def _profile_facts(config: PoolConfig) -> dict[str, Any]:
    """Return a profile as JSON values, also under the names that other programs use; of ``env``
    only the names.
    """
    spec = config.spec
    limits = config.spec.limits
    names = ("slots_per_container", "min_containers", "max_containers")
    times = ("idle_timeout_s", "max_lifetime_s", "acquire_timeout_s", "lease_timeout_s")
    gpus = list(spec.gpus) if isinstance(spec.gpus, tuple) else spec.gpus
    return {
        "image": spec.image,
        "network": spec.network_word,
        "gpu": gpus,
        "gpus": gpus,
        "cpu": limits.cpus,
        "memory": None if limits.memory_bytes is None else limits.memory_bytes // 1024**2,
        "limits": attrs.asdict(limits),
        "env": sorted(spec.env),
        "slots_per_sandbox": config.slots_per_container,
        "max_sandboxes": config.max_containers,
        **{name: getattr(config, name) for name in (*names, *times)},
    }
