"""The tool backend on a real engine: profiles, batches, artifacts, stale handles, and a stop that
leaves nothing.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.adapters.tool_backend import (
    SlotToolBackend,
    create_tool_backend,
    uses_sandbox,
)
from hyperruntime.errors import HyperRuntimeError
from tests.doubles.sandbox_config import SandboxConfig

pytestmark = pytest.mark.engine

Opened = Callable[..., Any]


@pytest.fixture
def opened(runtime_name: str, runtime: hr.Runtime, base_image: str) -> Opened:
    """Return a function for ``async with`` that opens a backend with two profiles; each has its own
    environment.
    """

    @asynccontextmanager
    async def open_backend(**options: Any) -> AsyncIterator[SlotToolBackend]:
        slots = 2 if runtime.info.users else 1
        numbers = {
            "max_containers": 2,
            "slots_per_container": slots,
            "acquire_timeout_s": 20.0,
            **options,
        }
        profiles = {
            name: {"image": base_image, "env": {"KIND": name}, **numbers}
            for name in ("plain", "other")
        }
        backend = create_tool_backend("slots", profiles=profiles, runtime=runtime_name)
        assert backend is not None
        assert not uses_sandbox(backend)
        await backend.start(["plain", "other"])
        assert uses_sandbox(backend)
        try:
            yield backend
        finally:
            await backend.stop()
        assert not uses_sandbox(backend)

    return open_backend


def containers(runtime: hr.Runtime) -> set[str]:
    """Return the names of this process's containers."""
    return {found.record.id for found in runtime.containers() if found.owner.pid == os.getpid()}


async def test_a_kept_slot_is_found_again_only_by_its_trajectory(opened: Opened) -> None:
    async with opened() as backend:
        slot = await backend.acquire("mine", "plain")
        await backend.execute_batch([(slot, "write_file", {"path": "note", "content": "kept"})])
        await backend.release(slot)
        other = await backend.acquire("not mine", "plain")
        (seen,) = await backend.execute_batch([(other, "bash", {"command": "cat note"})])
        assert not seen.success
        again = await backend.acquire("mine", "plain")
        assert again.lease != slot.lease
        (found,) = await backend.execute_batch([(again, "read_file", {"path": "note"})])
        assert "kept" in found.output


async def test_artifacts_have_one_schema_and_the_digest_of_the_whole_file(opened: Opened) -> None:
    """R17, W26."""

    async with opened() as backend:
        slot = await backend.acquire("t", "plain")
        data = bytes(range(256)) * 40
        script = "mkdir d; cat >'d/a b'; echo hi >d/.hidden; ln -s /etc/passwd d/link"
        (made,) = await backend.execute_batch([(slot, "bash", {"command": f"base64 -d | ({script})"
            , "stdin": base64.b64encode(data).decode()})])  # fmt: skip
        assert made.success, made
        read = await backend.read_artifact(slot, "d/a b", encoding="base64", max_bytes=100)
        listed = await backend.list_artifacts(slot, "d", recursive=True)
        packed = await backend.archive_artifacts(slot, "d", archive_format="tgz")
        refused = await backend.read_artifact(slot, "../../etc/passwd")
        assert set(read) == set(listed) == set(packed) == set(refused)
        assert base64.b64decode(read["content"]) == data[:100]
        assert (read["sha256"], read["file_size"]) == (
            hashlib.sha256(data).hexdigest(),
            len(data),
        )
        assert read["truncated"] is True
        where = f"{slot.workspace_dir}/d"
        assert sorted(listed["entries"]) == [f"{where}/.hidden", f"{where}/a b"]
        assert {entry["path"]: entry["type"] for entry in listed["details"]}["link"] == "link"
        assert (await backend.read_artifact(slot, listed["entries"][-1], max_bytes=1))[
            "success"
        ] is True
        assert packed["archive_base64"] == packed["content"]
        with tarfile.open(
            fileobj=io.BytesIO(base64.b64decode(packed["archive_base64"]))
        ) as archive:
            assert any(name.endswith("a b") for name in archive.getnames())
        assert (refused["success"], refused["entries"]) == (False, [])
        assert "outside the workspace" in refused["error"]


async def test_programs_use_the_backend_with_their_own_configuration(
    runtime: hr.Runtime, runtime_name: str, base_image: str
) -> None:
    """The calls and checks of the public integration suite, with its configuration objects."""
    slots = 3 if runtime.info.users else 1
    numbers: dict[str, Any] = {"image": base_image, "max_sandboxes": 3, "slots_per_sandbox": slots}
    script = "echo hello > file1.txt && mkdir subdir && echo nested > subdir/file3.txt"

    backend = SlotToolBackend(
        SandboxConfig(app_name="suite", env_vars={"KIND": "own"}, **numbers),
        runtime=runtime_name,
    )
    assert backend.list_profiles()["default"]["active"] is False
    await backend.start()
    held = [await backend.acquire(f"trajectory-{number}") for number in range(3)]
    if runtime.info.users:
        assert "/data/" in held[0].workspace_dir
    status = backend.get_status()
    assert status["available_slots"] < status["total_slots"]
    (made,) = await backend.execute_batch(
        [(held[0], "bash", {"command": f"{script} && echo $KIND"})]
    )
    assert (made.success, made.output) == (True, "own\n")
    assert "hello" in (await backend.read_artifact(held[0], "file1.txt"))["content"]
    listed = await backend.list_artifacts(held[0], ".", recursive=False)
    assert sorted(listed["entries"]) == ["file1.txt", "subdir"]
    assert len((await backend.archive_artifacts(held[0], "."))["archive_base64"]) > 0
    for number, slot in enumerate(held):
        await backend.release(slot, reset_workspace=number == 1)
    assert backend.get_status()["available_slots"] == backend.get_status()["total_slots"]
    await backend.stop(purge=True)

    profiles = {name: SandboxConfig(name=name, **numbers) for name in ("default", "compute")}
    backend = SlotToolBackend.with_profiles("suite", profiles, "default", runtime=runtime_name)
    await backend.start(profiles_to_start=["default"])
    active = {name: facts["active"] for name, facts in backend.list_profiles().items()}
    assert active == {"default": True, "compute": False}
    for profile in profiles:
        assert (await backend.acquire(f"on {profile}", profile=profile)).lease.profile == profile
    assert backend.list_profiles()["compute"]["active"] is True
    assert set(backend.get_status()["pools"]) == {"default", "compute"}
    await backend.stop(purge=True)
    assert backend.list_profiles()["default"]["active"] is False


async def test_nothing_is_left_after_a_stop_or_a_failed_start(
    opened: Opened, runtime: hr.Runtime, runtime_name: str, base_image: str
) -> None:
    """W25: a failed start leaves no half-started pool."""
    before = containers(runtime)
    async with opened() as backend:
        await backend.acquire("t", "plain")
        assert containers(runtime) > before
    profiles = {
        "good": {"image": base_image},
        "bad": {"image": "localhost/hyperruntime/none:such"},
    }
    broken = SlotToolBackend.with_profiles(profiles=profiles, runtime=runtime_name)
    with pytest.raises(HyperRuntimeError, match="not on this machine"):
        await broken.start(["good", "bad"])
    assert not uses_sandbox(broken)
    assert containers(runtime) <= before
