"""R4 and R20: the tool backend has the interface that programs know, and says truthfully whether slots are used."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pytest

from hyperruntime.adapters.slots import BackendSlot, SlotState
from hyperruntime.adapters.tool_backend import Pools, SlotToolBackend, uses_sandbox
from hyperruntime.errors import EngineUnavailableError, PoolError, SpecError, StaleLeaseError
from hyperruntime.pool.result import ExecutionResult
from hyperruntime.pool.slot import Slot


class KnownBackend(Protocol):
    """The interface, written down from its description: names, order, kinds and defaults of arguments."""

    @property
    def default_timeout_s(self) -> float | None: ...
    async def start(self, profiles_to_start: Any = None) -> None: ...
    async def stop(self, *, purge: bool = False) -> None: ...
    async def acquire(self, trajectory_id: str | None = None, profile: str | None = None) -> Any: ...
    async def release(self, slot: Any, *, reset_workspace: bool = False) -> None: ...
    async def execute_batch(self, requests: Any, *, timeout_s: float | None = None) -> list[Any]: ...
    async def read_artifact(
        self,
        slot: Any,
        path: str,
        *,
        encoding: str = "text",
        max_bytes: int | None = None,
        include_sha256: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, Any]: ...
    async def list_artifacts(
        self,
        slot: Any,
        path: str = ".",
        *,
        recursive: bool = False,
        max_entries: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]: ...
    async def archive_artifacts(
        self,
        slot: Any,
        path: str = ".",
        *,
        archive_format: str = "tar.gz",
        max_bytes: int | None = None,
        max_entries: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]: ...
    def get_status(self) -> dict[str, Any]: ...
    def list_profiles(self) -> dict[str, Any]: ...


METHODS = sorted(name for name, value in vars(KnownBackend).items() if inspect.isfunction(value) and name[0] != "_")
SLOT = ("slot_id", "alloc_id", "container_addr", "workspace_dir", "state", "trajectory_id", "metadata")
STATES = {"AVAILABLE", "ACQUIRED", "EXECUTING", "RELEASING", "ERROR"}


class FakePools:
    """Pools without containers: what was asked of them is there to be looked at."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken, self.stopped, self.started = broken, False, []  # type: ignore[var-annotated]
        self.numbers = itertools.count()
        self.live: set[Slot] = set()
        self.released: list[tuple[Slot, bool]] = []
        self.seen: list[tuple[Slot, str, Mapping[str, Any]]] = []
        self.timeouts: list[float | None] = []
        self.during: Any = lambda: None

    async def start(self, profiles: Sequence[str] | None = None) -> None:
        if self.broken:
            raise EngineUnavailableError("fake", "it is broken")
        self.started = list(profiles or ())

    async def stop(self) -> None:
        self.stopped = True

    async def acquire(self, task_id: str = "", *, profile: str | None = None) -> Slot:
        slot = Slot(
            slot_id=f"{profile}-{next(self.numbers)}",
            generation=0,
            task_id=task_id,
            profile=profile or "",
            workspace="/workspace",
            container="box",
        )
        self.live.add(slot)
        return slot

    async def release(self, slot: Slot, *, reset_workspace: bool = True) -> None:
        if slot not in self.live:
            raise StaleLeaseError("it was given back")
        self.live.remove(slot)
        self.released.append((slot, reset_workspace))

    async def execute_batch(
        self, requests: Sequence[tuple[Slot, str, Mapping[str, Any]]], *, timeout_s: float | None = None
    ) -> list[ExecutionResult]:
        self.timeouts.append(timeout_s)
        self.seen += requests
        self.during()
        return [
            ExecutionResult(success=True, output=tool, slot_id=slot.slot_id, metadata={"returncode": 0, **args})
            for slot, tool, args in requests
        ]

    def get_status(self) -> Mapping[str, Any]:
        return {"sandboxes": 1}

    def list_profiles(self) -> Mapping[str, Mapping[str, Any]]:
        return {"default": {"image": "a"}, "big": {"image": "b"}}


def backend(pools: FakePools, **options: Any) -> SlotToolBackend:
    async def make() -> Pools:
        return pools

    return SlotToolBackend(make, **options)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_what_programs_pass(name: str) -> None:
    known = inspect.signature(getattr(KnownBackend, name)).parameters.values()
    ours = inspect.signature(getattr(SlotToolBackend, name)).parameters.values()
    assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in known]
    kinds = [inspect.iscoroutinefunction(getattr(c, name)) for c in (KnownBackend, SlotToolBackend)]
    assert kinds[0] == kinds[1]


def test_the_interface_is_written_down_in_full() -> None:
    assert len(METHODS) == 10
    assert isinstance(inspect.getattr_static(SlotToolBackend, "default_timeout_s"), property)
    assert {state.name for state in SlotState} == STATES
    assert all(state.value == state.name.lower() for state in SlotState)
    assert {"success", "output", "error", "execution_id", "slot_id", "metadata"} <= set(
        inspect.signature(ExecutionResult).parameters
    )


def test_a_slot_has_the_attributes_that_programs_read() -> None:
    async def go() -> None:
        made = backend(FakePools())
        await made.start()
        slot = await made.acquire("t1")
        assert set(slot.to_dict()) == set(SLOT)
        assert all(hasattr(slot, name) for name in SLOT)
        assert json.loads(json.dumps(slot.to_dict()))["state"] == "acquired"
        assert (slot.trajectory_id, slot.workspace_dir, slot.is_acquired) == ("t1", "/workspace", True)
        await made.release(slot)
        assert (slot.state, slot.trajectory_id, slot.is_available) == (SlotState.AVAILABLE, None, True)

    asyncio.run(go())


def test_a_result_is_json_for_programs_that_know_tools_only() -> None:
    result = ExecutionResult(success=False, output="o", error="e", execution_id="x", metadata={"returncode": 1})
    assert json.loads(json.dumps(result.to_tool_result())) == {
        "success": False,
        "output": "o",
        "error": "e",
        "metadata": {"returncode": 1},
        "uniq_id": "x",
    }


def test_slots_are_used_only_while_a_backend_is_started() -> None:
    async def go() -> None:
        made = backend(FakePools())
        seen = [uses_sandbox(None), uses_sandbox(made)]
        await made.start()
        seen.append(uses_sandbox(made))
        await made.stop()
        seen.append(uses_sandbox(made))
        assert seen == [False, False, True, False]

    asyncio.run(go())


def test_a_backend_that_cannot_start_is_not_started_and_leaves_nothing() -> None:
    async def go() -> None:
        pools = FakePools(broken=True)
        made = backend(pools)
        with pytest.raises(EngineUnavailableError):
            await made.start()
        assert pools.stopped
        assert not uses_sandbox(made)

    asyncio.run(go())


def test_nothing_can_be_asked_of_a_backend_that_is_not_started() -> None:
    async def go() -> None:
        made = backend(FakePools())
        with pytest.raises(PoolError, match="await its start"):
            await made.acquire()
        with pytest.raises(PoolError, match="await its start"):
            made.get_status()

    asyncio.run(go())


def test_profiles_are_named_or_the_default_one_is_meant() -> None:
    async def go() -> None:
        pools = FakePools()
        made = backend(pools, default_profile="big")
        await made.start(["default", "big"])
        assert pools.started == ["default", "big"]
        slots = [await made.acquire("a"), await made.acquire("b", "default")]
        assert [slot.lease.profile for slot in slots] == ["big", "default"]
        with pytest.raises(SpecError, match="did you mean 'big'"):
            await made.acquire("c", "bgi")
        assert set(made.list_profiles()) == {"default", "big"}

    asyncio.run(go())


def test_a_slot_is_executing_while_its_requests_run() -> None:
    async def go() -> None:
        pools = FakePools()
        made = backend(pools, default_timeout_s=7.0)
        await made.start()
        slot = await made.acquire("t")
        states: list[SlotState] = []
        pools.during = lambda: states.append(slot.state)
        results = await made.execute_batch([(slot, "bash", {"command": "true"}), (slot.lease, "search", {})])
        await made.execute_batch([(slot, "bash", {})], timeout_s=2)
        assert states == [SlotState.EXECUTING, SlotState.EXECUTING]
        assert slot.state is SlotState.ACQUIRED
        assert [result.output for result in results] == ["bash", "search"]
        assert pools.timeouts == [7.0, 2]

    asyncio.run(go())


def test_a_view_that_is_tampered_with_makes_no_stale_lease_good() -> None:
    async def go() -> None:
        made = backend(FakePools())
        await made.start()
        slot = await made.acquire("t")
        await made.release(slot, reset_workspace=True)
        slot.ended = SlotState.ACQUIRED
        with pytest.raises(StaleLeaseError):
            await made.release(slot)
        with pytest.raises(StaleLeaseError):
            await made.release(BackendSlot(lease=slot.lease))

    asyncio.run(go())


def test_artifacts_are_the_tools_with_the_caps_that_were_given() -> None:
    async def go() -> None:
        pools = FakePools()
        made = backend(pools)
        await made.start()
        slot = await made.acquire("t")
        answers = [
            await made.read_artifact(slot, "a", max_bytes=5),
            await made.list_artifacts(slot, recursive=True),
            await made.archive_artifacts(slot, "d", archive_format="zip"),
        ]
        assert [tool for _, tool, _ in pools.seen] == ["read_artifact", "list_artifacts", "archive_artifacts"]
        assert all(answer["success"] is True and answer["error"] == "" for answer in answers)
        assert answers[0]["max_bytes"] == 5
        assert "max_entries" not in answers[1]

    asyncio.run(go())
