"""R4 and R20: the tool backend has the interface that programs expect, and reports whether slots
are used.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

import pytest

import hyperruntime as hr
from hyperruntime.adapters.tool_backend import (
    BackendSlot,
    SlotState,
    SlotToolBackend,
    create_tool_backend,
    uses_sandbox,
)
from hyperruntime.errors import EngineUnavailableError, PoolError, SpecError, StaleLeaseError
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.pool_values.profiles import Profiles
from hyperruntime.pool_values.results import ExecutionResult, PoolStatus, Slot
from tests.doubles.sandbox_config import SandboxConfig, TrainingConfig
from tests.doubles.slots import PromisedRuntime


class KnownBackend(Protocol):
    """The expected interface: names, order, kinds and defaults of all arguments."""

    @property
    def default_timeout_s(self) -> float | None: ...
    async def start(self, profiles_to_start: Any = None) -> None: ...
    async def stop(self, *, purge: bool = False) -> None: ...
    async def acquire(
        self, trajectory_id: str | None = None, profile: str | None = None
    ) -> Any: ...
    async def release(self, slot: Any, *, reset_workspace: bool = False) -> None: ...
    async def execute_batch(
        self, requests: Any, *, timeout_s: float | None = None
    ) -> list[Any]: ...
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


METHODS = sorted(
    name
    for name, value in vars(KnownBackend).items()
    if inspect.isfunction(value) and name[0] != "_"
)
SLOT = (
    "slot_id",
    "alloc_id",
    "container_addr",
    "workspace_dir",
    "state",
    "trajectory_id",
    "metadata",
)
STATES = {"AVAILABLE", "ACQUIRED", "EXECUTING", "RELEASING", "ERROR"}


class FakePools:
    """Pools without containers; records the requests."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken, self.ended = broken, 0
        self.started: list[str] = []
        self.numbers = itertools.count()
        self.live: set[Slot] = set()
        self.released: list[tuple[Slot, bool]] = []
        self.seen: list[tuple[Slot, str, Mapping[str, Any]]] = []
        self.timeouts: list[float | None] = []
        self.during: Callable[[], object] = lambda: None

    async def start(self, *profiles: str) -> None:
        if self.broken:
            raise EngineUnavailableError("fake", "it is broken")
        self.started += profiles

    async def acquire(self, task_id: str | None = None, profile: str | None = None) -> Slot:
        slot = Slot(
            slot_id=f"{profile}-{next(self.numbers)}",
            generation=0,
            task_id=task_id or "made-up",
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
        self,
        requests: Sequence[tuple[Slot, str, Mapping[str, Any]]],
        *,
        timeout_s: float | None = None,
    ) -> list[ExecutionResult]:
        self.timeouts.append(timeout_s)
        self.seen += requests
        self.during()
        return [
            ExecutionResult(
                success=True, output=tool, slot_id=slot.slot_id, metadata={"returncode": 0}
            )
            for slot, tool, args in requests
        ]

    def status(self) -> Mapping[str, PoolStatus]:
        return {
            name: PoolStatus(name=name, state="open", containers=2, total_slots=20)
            for name in self.started
        }


def backend(pools: FakePools, *names: str) -> SlotToolBackend:
    spec = hr.ContainerSpec(image="a", env={"KEY": "secret"})
    profiles = Profiles.of(*(PoolConfig(name=name, spec=spec) for name in names or ("default",)))

    @asynccontextmanager
    async def opened() -> AsyncIterator[hr.PoolManager]:
        try:
            yield cast(hr.PoolManager, pools)
        finally:
            pools.ended += 1

    return SlotToolBackend(profiles, opened)


@pytest.mark.parametrize("name", METHODS)
def test_each_method_has_the_expected_signature(name: str) -> None:
    known = inspect.signature(getattr(KnownBackend, name)).parameters.values()
    ours = inspect.signature(getattr(SlotToolBackend, name)).parameters.values()
    assert [(p.name, p.kind, p.default) for p in ours] == [
        (p.name, p.kind, p.default) for p in known
    ]
    kinds = [inspect.iscoroutinefunction(getattr(c, name)) for c in (KnownBackend, SlotToolBackend)]
    assert kinds[0] == kinds[1]


def test_the_expected_interface_is_complete() -> None:
    assert len(METHODS) == 10
    assert isinstance(inspect.getattr_static(SlotToolBackend, "default_timeout_s"), property)
    assert {state.name for state in SlotState} == STATES
    assert all(state.value == state.name.lower() for state in SlotState)
    assert {"success", "output", "error", "execution_id", "slot_id", "metadata"} <= set(
        inspect.signature(ExecutionResult).parameters
    )


async def test_a_slot_has_the_attributes_that_programs_read() -> None:
    made = backend(FakePools())
    await made.start()
    slot = await made.acquire("t1")
    assert set(slot.to_dict()) == set(SLOT)
    assert all(hasattr(slot, name) for name in SLOT)
    assert json.loads(json.dumps(slot.to_dict()))["state"] == "acquired"
    assert (slot.trajectory_id, slot.workspace_dir, slot.is_acquired) == (
        "t1",
        "/workspace",
        True,
    )
    await made.release(slot)
    assert (slot.state, slot.trajectory_id, slot.is_available) == (
        SlotState.AVAILABLE,
        None,
        True,
    )


def test_a_result_is_json_for_programs_that_know_tools_only() -> None:
    result = ExecutionResult(
        success=False, output="o", error="e", execution_id="x", metadata={"returncode": 1}
    )
    assert json.loads(json.dumps(result.to_tool_result())) == {
        "success": False,
        "output": "o",
        "error": "e",
        "metadata": {"returncode": 1},
        "uniq_id": "x",
    }


async def test_a_backend_that_fails_to_start_is_closed() -> None:
    pools = FakePools(broken=True)
    made = backend(pools)
    with pytest.raises(EngineUnavailableError):
        await made.start()
    assert pools.ended == 1
    assert not uses_sandbox(made)


async def test_calls_to_a_backend_that_is_not_started_are_rejected() -> None:
    made = backend(FakePools())
    with pytest.raises(PoolError, match="await its start"):
        await made.acquire()
    with pytest.raises(PoolError, match="await its start"):
        made.get_status()


async def test_a_backend_may_be_started_again_and_stopped_twice() -> None:
    """R4."""

    pools = FakePools()
    made = backend(pools)
    assert not uses_sandbox(made)
    for _ in range(2):
        await made.start()
        await made.start()
        assert uses_sandbox(made)
        slot = await made.acquire()
        await made.stop(purge=True)
        await made.stop()
        assert slot.state is SlotState.AVAILABLE
        assert not uses_sandbox(made)
    assert pools.started == ["default", "default"]
    assert pools.ended == 2


async def test_a_slot_has_the_named_profile_or_the_default_one() -> None:
    """R15: a slot carries its profile; it does not depend on the slot's number."""

    pools = FakePools()
    made = backend(pools, "big", "small")
    await made.start(["small", "big"])
    assert pools.started == ["small", "big"]
    slots = [await made.acquire("a"), await made.acquire("b", "small")]
    assert [slot.lease.profile for slot in slots] == ["big", "small"]


async def test_an_unknown_profile_is_refused() -> None:
    config = PoolConfig(name="big", spec=hr.ContainerSpec(image="a"), min_containers=0)
    profiles, runtime = Profiles.of(config), PromisedRuntime()
    made = SlotToolBackend(profiles, lambda: hr.PoolManager(cast(hr.Runtime, runtime), profiles))
    with pytest.raises(SpecError, match="did you mean 'big'"):
        await made.start(["big", "bgi"])
    assert not uses_sandbox(made)
    await made.start()
    with pytest.raises(SpecError, match="did you mean 'big'"):
        await made.acquire("c", "bgi")
    await made.stop()
    assert runtime.open == []


async def test_the_status_has_the_numbers_that_programs_read() -> None:
    one, several = backend(FakePools()), backend(FakePools(), "big", "small")
    await one.start()
    await several.start(["small"])
    known = {
        "sandboxes",
        "healthy_sandboxes",
        "max_sandboxes",
        "total_slots",
        "available_slots",
    }
    assert known | {"slots_per_sandbox"} <= set(one.get_status())
    assert one.get_status()["total_slots"] == 20
    status = several.get_status()
    assert (status["profiles"], status["active_pools"]) == (["big", "small"], ["small"])
    assert (status["default_profile"], set(status["pools"])) == ("big", {"small"})
    assert known <= set(status["pools"]["small"])
    assert "secret" not in json.dumps([several.list_profiles(), status])
    assert several.list_profiles()["big"]["env"] == ["KEY"]
    active = {name: facts["active"] for name, facts in several.list_profiles().items()}
    assert active == {"big": False, "small": True}


def test_create_tool_backend_returns_a_backend_for_slots_and_none_for_default() -> None:
    """R4."""
    made = create_tool_backend(
        "slots", profiles={"a": {"image": "x"}, "b": {"image": "y"}}, default_profile="b"
    )
    assert isinstance(made, SlotToolBackend)
    assert (made.profiles.default, made.default_timeout_s, uses_sandbox(made)) == (
        "b",
        300.0,
        False,
    )
    assert create_tool_backend() is None
    assert not uses_sandbox(None)
    assert not uses_sandbox(create_tool_backend("default"))
    with pytest.raises(ValueError, match="unknown tool backend 'modal'"):
        create_tool_backend("modal")


def test_configuration_objects_of_other_programs_are_accepted() -> None:
    given = SandboxConfig(
        image="a", cpu=2.0, memory=4096, env_vars={"A": "1"}, execution_timeout_s=900, app_name="x"
    )
    made = SlotToolBackend(given)
    config = made.profiles.configs["default"]
    assert config.spec.limits == hr.Limits(cpus=2.0, memory_bytes=4 * 1024**3)
    assert (config.spec.env, config.workspace_base, made.default_timeout_s) == (
        {"A": "1"},
        "/data",
        900.0,
    )
    assert (config.slots_per_container, config.max_containers, config.spec.network) == (
        10,
        5,
        "none",
    )
    facts = made.list_profiles()["default"]
    assert (facts["cpu"], facts["memory"], facts["slots_per_sandbox"], facts["max_sandboxes"]) == (
        2.0,
        4096,
        10,
        5,
    )
    plain = SlotToolBackend.with_profiles(
        profiles={"big": SandboxConfig(image="a"), "small": config}
    )
    assert plain.profiles.configs["big"].spec.limits == hr.Limits()
    assert (plain.profiles.configs["small"].name, plain.default_timeout_s) == ("small", 30.0)


def test_the_settings_of_a_training_environment_choose_a_backend() -> None:
    assert create_tool_backend(TrainingConfig()) is None
    settings = TrainingConfig(
        "modal", modal_image="a", modal_env_vars="A=1; B=2=3", modal_slots_per_sandbox=4
    )
    made = create_tool_backend(settings, runtime="podman")
    assert made is not None
    config = made.profiles.configs["default"]
    assert (config.spec.env, config.slots_per_container, config.spec.network) == (
        {"A": "1", "B": "2=3"},
        4,
        "bridge",
    )
    offline = create_tool_backend(TrainingConfig("slots", allow_network=False, modal_image="a"))
    assert offline is not None
    assert offline.profiles.configs["default"].spec.network == "none"
    with pytest.raises(SpecError, match="tool_pool_mode='nomad' is not allowed: default; or slots"):
        create_tool_backend(TrainingConfig("nomad"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "a PoolConfig, a table with the keys of a profile, or an object"),
        ("podman", "a PoolConfig, a table"),
        (SandboxConfig(gpu="T4"), "gpu='T4' is not allowed: None: it names a GPU of a cloud"),
        (SandboxConfig(secrets=["key"]), "there is no store of secrets here; give env_vars"),
        (SandboxConfig(slots_per_sandbox=0), "profiles.default.slots_per_container=0"),
        (SandboxConfig(cpu="many"), "correct the wrong field (could not convert"),  # type: ignore[arg-type]
        (
            SimpleNamespace(slots_per_sandbox=2, max_sandbox=3),
            "profiles.default.max_sandbox='...' is not allowed: did you mean",
        ),
    ],
)
def test_an_object_that_cannot_be_honoured_is_refused_by_field(value: object, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        SlotToolBackend(value)
    with pytest.raises(SpecError, match=re.escape(message)):
        SlotToolBackend.with_profiles(profiles={"default": value})


def test_a_profiles_file_is_read_and_its_unknown_keys_are_rejected(tmp_path: Path) -> None:
    """W26: there is one schema, and unknown keys are not ignored."""
    path = tmp_path / "profiles.yaml"
    path.write_text("profiles: {small: {image: a, slots_per_container: 3}}\n")
    made = SlotToolBackend.with_profiles(profiles_file=path)
    assert made.list_profiles()["small"]["slots_per_container"] == 3
    path.write_text("profiles: {small: {image: a, slots_per_sandbox: 3}}\n")
    with pytest.raises(SpecError, match=r"slots_per_sandbox.*slots_per_container"):
        SlotToolBackend.with_profiles(profiles_file=path)


async def test_a_slot_is_executing_while_its_requests_run() -> None:
    pools = FakePools()
    made = backend(pools)
    await made.start()
    slot = await made.acquire("t")
    states: list[SlotState] = []
    pools.during = lambda: states.append(slot.state)
    results = await made.execute_batch(
        [(slot, "bash", {"command": "true"}), (slot.lease, "search", {})]
    )
    await made.execute_batch([(slot, "bash", {})], timeout_s=2)
    assert states == [SlotState.EXECUTING, SlotState.EXECUTING]
    assert slot.state is SlotState.ACQUIRED
    assert [result.output for result in results] == ["bash", "search"]
    assert pools.timeouts == [None, 2]


async def test_changing_a_slot_view_does_not_revive_a_stale_lease() -> None:
    made = backend(FakePools())
    await made.start()
    slot = await made.acquire("t")
    await made.release(slot, reset_workspace=True)
    slot.ended = SlotState.ACQUIRED
    with pytest.raises(StaleLeaseError):
        await made.release(slot)
    with pytest.raises(StaleLeaseError):
        await made.release(BackendSlot(lease=slot.lease))


async def test_artifact_methods_call_the_tools_with_the_given_limits() -> None:
    pools = FakePools()
    made = backend(pools)
    await made.start()
    slot = await made.acquire("t")
    answers = [
        await made.read_artifact(slot, "a", max_bytes=5),
        await made.list_artifacts(slot, recursive=True),
        await made.archive_artifacts(slot, "d", archive_format="zip"),
    ]
    assert [tool for _, tool, _ in pools.seen] == [
        "read_artifact",
        "list_artifacts",
        "archive_artifacts",
    ]
    assert all(answer["success"] is True and answer["error"] == "" for answer in answers)
    assert [args for _, _, args in pools.seen] == [
        {"path": "a", "encoding": "text", "max_bytes": 5},
        {"path": ".", "recursive": True},
        {"path": "d", "format": "zip"},
    ]
