"""GPUs in real containers, described by CDI specs of devices that every machine has."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime import gpus as gpus_module
from hyperruntime.driver import Launch
from hyperruntime.errors import (
    DeviceBusyError,
    DeviceError,
    DeviceNotFoundError,
    DeviceNotVisibleError,
    UnsupportedOptionError,
)
from hyperruntime.process import run_process
from hyperruntime.runtime import Runtime
from hyperruntime_podman import PodmanDriver

pytestmark = pytest.mark.engine

LIBRARY = "/opt/fake-driver/libfake.so.1"
STANDARD = Path("/var/run/cdi")
Describe = Callable[..., Path]


def fake_spec(kind: str, library: Path, *, host_path: str = "/dev/null", **edits: object) -> dict[str, Any]:
    """Two GPUs, each with a node of its own, and a driver library."""
    mount = {"hostPath": str(library), "containerPath": LIBRARY, "options": ["ro", "nosuid", "nodev", "rbind"]}
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "containerEdits": {"env": ["FAKE_DRIVER=a b=c", "FAKE_GPUS=yes"], "mounts": [mount], **edits},
        "devices": [
            {"name": str(number), "containerEdits": {"deviceNodes": [
                {"path": f"/dev/fakegpu{number}", "hostPath": host_path}
            ]}}
            for number in range(2)
        ],
    }  # fmt: skip


@pytest.fixture
def describe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Describe:
    """Write a CDI spec where only this test finds it; return the file of the driver library."""
    place, library = tmp_path / "cdi", tmp_path / "lib fake.so"
    place.mkdir()
    library.write_text("fake driver 1.0\n")
    monkeypatch.setenv("HYPERRUNTIME_CDI_DIRS", str(place))

    def write(kind: str = "nvidia.com/gpu", **change: Any) -> Path:
        (place / "fake.json").write_text(json.dumps(fake_spec(kind, library, **change)))
        return library

    return write


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ``nvidia-smi`` that tells of two GPUs, of which the first is busier."""
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    rows = [f"{number}, GPU-fake{number}, {500 - 400 * number}, 1000, 0, 1.0, Fake" for number in range(2)]
    program.write_text("#!/bin/sh\ncat <<'EOF'\n" + "\n".join(rows) + "\nEOF\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus_module, "LOCK_ROOT", tmp_path)


def devices_in(container: hr.Container) -> list[str]:
    names = container.exec(["ls", "/dev"]).check().stdout.decode().split()
    return [name for name in names if name.startswith("fakegpu")]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ("0", ["fakegpu0"]),
        (("nvidia.com/gpu=1",), ["fakegpu1"]),
        (("0", "1"), ["fakegpu0", "fakegpu1"]),
        ("all", ["fakegpu0", "fakegpu1"]),
        (None, []),
    ],
)
def test_a_container_has_the_gpus_that_were_asked_for_and_no_others(
    runtime: hr.Runtime, base_image: str, describe: Describe, gpus: Any, expected: list[str]
) -> None:
    describe()
    with runtime.container(hr.ContainerSpec(image=base_image, gpus=gpus)) as container:
        assert devices_in(container) == expected


def test_what_a_spec_brings_reaches_every_command(runtime: hr.Runtime, base_image: str, describe: Describe) -> None:
    library = describe("example.com/gpu")
    spec = hr.ContainerSpec(image=base_image, gpus=("example.com/gpu=0",), env={"MINE": "1"})
    script = f'echo "$FAKE_DRIVER $FAKE_GPUS $MINE"; cat {LIBRARY}; echo x >/dev/fakegpu0 && echo written'
    with runtime.container(spec) as container:
        for user in (None, "1234"):
            result = container.exec(["sh", "-c", script], user=user).check()
            assert result.stdout.decode() == f"a b=c yes 1\n{library.read_text()}written\n"
        assert container.exec(["sh", "-c", f"echo x >{LIBRARY}"]).exit_code != 0, "the driver is read-only"
        changed = container.exec(["sh", "-c", 'echo "$FAKE_GPUS"'], env={"FAKE_GPUS": "no"})
        assert changed.stdout == b"no\n"


@pytest.mark.usefixtures("smi")
def test_auto_takes_the_least_used_gpu_and_gives_it_back(
    runtime: hr.Runtime, base_image: str, describe: Describe
) -> None:
    describe()
    spec = hr.ContainerSpec(image=base_image, gpus="auto:1")
    with runtime.container(spec) as first, runtime.container(spec) as second:
        assert devices_in(first) == ["fakegpu1"]
        assert devices_in(second) == ["fakegpu0"]
        with pytest.raises(DeviceBusyError, match="wait until one closes"):
            runtime.container(spec)
        first.close()
        with runtime.container(spec) as third:
            assert devices_in(third) == ["fakegpu1"]


@pytest.mark.usefixtures("smi")
def test_a_container_that_does_not_start_keeps_no_gpu(runtime: hr.Runtime, base_image: str, describe: Describe) -> None:
    describe(host_path="/dev/there-is-no-such-device")
    for _ in range(3):
        with pytest.raises(DeviceError, match="there-is-no-such-device"):
            runtime.container(hr.ContainerSpec(image=base_image, gpus="auto:2"))
    describe()
    with runtime.container(hr.ContainerSpec(image=base_image, gpus="auto:2")) as container:
        assert len(devices_in(container)) == 2


def test_a_device_that_nothing_describes_is_explained(
    runtime: hr.Runtime, base_image: str, describe: Describe, tmp_path: Path
) -> None:
    for gpus in ("all", "0", "nvidia.com/gpu=0"):
        with pytest.raises(DeviceNotFoundError, match="nvidia-ctk cdi generate"):
            runtime.container(hr.ContainerSpec(image=base_image, gpus=gpus))
    describe("example.com/gpu")
    with pytest.raises(DeviceNotFoundError, match=r"did you mean 'example\.com/gpu=[01]'"):
        runtime.container(hr.ContainerSpec(image=base_image, gpus="example.com/gpu=4"))


class ForgetfulDriver(PodmanDriver):
    """An engine that takes a wish for GPUs and does nothing, as ``podman run --gpus`` of 4.3 does."""

    def launch(self, launch: Launch) -> Any:
        return super().launch(attrs.evolve(launch, spec=attrs.evolve(launch.spec, gpus=None)))


@pytest.mark.parametrize(("gpus", "described"), [("0", True), ("all", False)])
def test_a_gpu_that_does_not_arrive_is_an_error_on_any_engine(
    runtime: hr.Runtime, base_image: str, describe: Describe, gpus: str, described: bool
) -> None:
    if described:
        describe()
    with Runtime(ForgetfulDriver()) as forgetful:
        with pytest.raises(DeviceNotVisibleError, match=r"/dev/.*is not there.*doctor --gpu") as caught:
            forgetful.container(hr.ContainerSpec(image=base_image, gpus=gpus))
        assert caught.value.missing == (("/dev/fakegpu0",) if described else ("/dev/nvidia*",))
        mine = forgetful._owner.identity.token
        assert [found for found in forgetful.containers() if found.owner.token == mine] == []


def test_hooks_that_nobody_would_run_are_refused(runtime: hr.Runtime, base_image: str, describe: Describe) -> None:
    describe(hooks=[{"hookName": "createContainer", "path": "/bin/true", "args": ["nvidia-ctk", "update-ldcache"]}])
    with pytest.raises(UnsupportedOptionError, match="nvidia-ctk update-ldcache"):
        runtime.container(hr.ContainerSpec(image=base_image, gpus="0"))


@pytest.fixture
def kind(describe: Describe, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The kind of GPUs that are described where every engine looks if we may write there, else where only we do."""
    name = f"hyperruntime-test-{uuid.uuid4().hex[:8]}"
    kind = f"{name}.example/gpu"
    library = describe(kind)
    if os.geteuid() != 0:
        yield kind
        return
    monkeypatch.delenv("HYPERRUNTIME_CDI_DIRS")
    made = not STANDARD.exists()
    STANDARD.mkdir(exist_ok=True)
    path = STANDARD / f"{name}.json"
    hook = {"hookName": "createRuntime", "path": "/bin/true", "args": ["true"]}
    path.write_text(json.dumps(fake_spec(kind, library, hooks=[hook])))
    try:
        yield kind
    finally:
        path.unlink()
        if made:
            STANDARD.rmdir()


def test_podman_resolves_names_itself_where_it_can(runtime: hr.Runtime, base_image: str, kind: str) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image, gpus=f"{kind}=1")) as container:
        asked = run_process(["podman", "inspect", "--format", "{{json .Config.CreateCommand}}", container.name])
        assert (f"{kind}=1" in json.loads(asked.stdout)) is (os.geteuid() == 0)
        assert devices_in(container) == ["fakegpu1"]
        assert container.exec(["sh", "-c", "echo $FAKE_GPUS"]).stdout == b"yes\n"
    with pytest.raises(DeviceNotFoundError, match=f"did you mean '{kind}=[01]'"):
        runtime.container(hr.ContainerSpec(image=base_image, gpus=f"{kind}=2"))
