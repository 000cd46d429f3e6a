"""The GPUs that ``auto:N`` selects; two containers of a user never get the same GPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hyperruntime.errors import (
    DeviceBusyError,
    DeviceError,
    DeviceNotFoundError,
    StorageError,
    UnsupportedOptionError,
)
from hyperruntime.gpu import grant as gpus_module
from hyperruntime.gpu.cdi import Device, DeviceNode, Edits, Hook
from hyperruntime.gpu.devices import DeviceRegistry
from hyperruntime.gpu.grant import GpuGrant, gpu_devices, lock_directory
from hyperruntime.gpu.nvidia import only_allowed, parse_gpus
from hyperruntime.spec import Mount
from hyperruntime_podman.container import device_args
from tests.doubles.nvidia_smi import install_smi

TABLE = """\
0, GPU-aaaa, 70000, 81559, 98, 550.54.15, NVIDIA H100 80GB HBM3
1, GPU-bbbb, 4, 81559, 0, 550.54.15, NVIDIA H100 80GB HBM3
2, GPU-cccc, 300, 81559, 0, 550.54.15, NVIDIA H100 80GB HBM3
3, GPU-dddd, 4, 81559, 40, 550.54.15, NVIDIA H100 80GB HBM3
"""
Smi = Callable[[str], None]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    """Return a function that installs a fake ``nvidia-smi`` script; the locks are in the test's
    directory.
    """
    monkeypatch.setattr(gpus_module, "LOCK_ROOT", tmp_path)
    install = partial(install_smi, monkeypatch, tmp_path)
    install(f"cat <<'EOF'\n{TABLE}EOF")
    return install


def take(count: int) -> tuple[GpuGrant, object]:
    grant = GpuGrant(f"auto:{count}")
    return grant, grant.take()


@pytest.mark.usefixtures("smi")
def test_the_least_used_gpus_are_granted_first_and_none_twice() -> None:
    first, one = take(1)
    second, two = take(2)
    assert one == ("1",)
    assert two == ("2", "3")
    with pytest.raises(DeviceBusyError, match="of 4 GPUs other containers of this user hold 3"):
        take(2)
    last, four = take(1)
    assert four == ("0",)
    first.give_back()
    first.give_back()
    again, five = take(1)
    assert five == ("1",)
    for grant in (second, last, again):
        grant.give_back()


@pytest.mark.usefixtures("smi")
def test_gpus_of_a_killed_process_are_free_at_once_and_a_forked_child_holds_none() -> None:
    held, _ = take(1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            GpuGrant("auto:1").take()
            os.write(writer, b"x")
            signal.pause()
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    other, two = take(1)
    assert two == ("2",)
    held.give_back()
    mine, one = take(1)
    assert one == ("1",), "the forked child must not hold the GPU of its parent"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    third, three = take(1)
    assert three == ("3",)
    for grant in (other, mine, third):
        grant.give_back()


def test_a_request_for_too_many_gpus_raises_a_clear_error(
    smi: Smi, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeviceBusyError, match="needs 5 GPUs, but only 4 are visible"):
        take(5)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-aaaa")
    grant, names = take(2)
    assert names == ("0", "2")
    grant.give_back()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceBusyError, match="only 0 are visible"):
        take(1)
    smi("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    with pytest.raises(DeviceError, match="exit code 18: Failed to initialize NVML"):
        take(1)


def test_a_missing_driver_is_reported_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="srun --gres=gpu:1"):
        take(1)


@pytest.mark.usefixtures("smi")
def test_a_lock_directory_that_is_a_link_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"hyperruntime-gpus-{os.getuid()}").symlink_to("elsewhere")
    with pytest.raises(StorageError, match="belongs to another user"):
        lock_directory()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "0123"),
        ("", ""),
        ("1", "1"),
        ("3,1", "31"),
        ("1,9,2", "1"),
        ("GPU-c", "2"),
        ("GPU-", ""),
        ("-1", ""),
    ],
)
def test_cuda_visible_devices_restricts_the_gpus(
    monkeypatch: pytest.MonkeyPatch, text: str | None, expected: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert "".join(gpu.index for gpu in only_allowed(parse_gpus(TABLE))) == expected


GRANTED = [
    (None, "all", "all"),
    (None, ("1",), ("1",)),
    ("1", "all", ("1",)),
    ("0,1", "all", ("0", "1")),
    ("MIG-x", "all", ("MIG-x",)),
    ("GPU-bbbb", "all", ("1",)),
    ("GPU-uuid", "all", ("GPU-uuid",)),
    ("1", "nvidia.com/gpu=1", ("nvidia.com/gpu=1",)),
    ("GPU-uuid", ("0",), ("0",)),  # the same device file
    ("1", ("a.com/net=0", "1"), ("a.com/net=0", "1")),
    ("1", ("0",), None),
    ("1", ("1", "nvidia.com/gpu=all"), None),
    ("NoDevFiles", "all", None),
    ("", "all", None),
    ("", ("0",), None),
]


@pytest.mark.parametrize(("text", "gpus", "expected"), GRANTED)
def test_a_container_gets_no_gpu_that_the_batch_system_did_not_grant(
    smi: Smi,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    gpus: str | tuple[str, ...],
    expected: object,
) -> None:
    def gpu(name: str, *indices: int) -> Device:
        nodes = tuple(
            DeviceNode(path=f"/dev/nvidia{index}", host_path="/dev/null") for index in indices
        )
        return Device(
            name=f"nvidia.com/gpu={name}",
            edits=Edits(device_nodes=nodes),
            file=Path("/etc/cdi/x.json"),
        )

    devices = (gpu("0", 0), gpu("GPU-uuid", 0), gpu("1", 1), gpu("MIG-x", 1), gpu("all", 0, 1))
    monkeypatch.setattr(
        gpus_module,
        "load_devices",
        lambda: DeviceRegistry(devices={device.name: device for device in devices}),
    )
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    grant = GpuGrant(gpus)
    if expected is None:
        with pytest.raises(DeviceNotFoundError, match="CUDA_VISIBLE_DEVICES grants"):
            grant.take()
    else:
        assert grant.take() == expected


def test_values_that_nvidia_smi_does_not_know_count_as_zero() -> None:
    (gpu,) = parse_gpus("junk\n0, GPU-a, [N/A], [N/A], [Not Supported], 1.0, GB10, odd\n\n")
    assert (gpu.memory_used_mib, gpu.utilization, gpu.name) == (0, 0, "GB10, odd")


def registry(*names: str, edits: Edits | None = None, place: str = "/etc/cdi") -> DeviceRegistry:
    file = Path(place, "x.json")
    return DeviceRegistry(
        devices={name: Device(name=name, edits=edits or Edits(), file=file) for name in names}
    )


@pytest.mark.parametrize(
    ("gpus", "known", "expected"),
    [
        ("all", ("nvidia.com/gpu=0", "nvidia.com/gpu=all", "a.com/net=0"), ("nvidia.com/gpu=all",)),
        ("all", ("nvidia.com/gpu=0", "nvidia.com/gpu=1"), ("nvidia.com/gpu=0", "nvidia.com/gpu=1")),
        (("1",), ("nvidia.com/gpu=0", "nvidia.com/gpu=1", "amd.com/gpu=1"), ("nvidia.com/gpu=1",)),
        (("1",), ("amd.com/gpu=0", "amd.com/gpu=1"), ("amd.com/gpu=1",)),
        (
            ("a.com/net=0", "0"),
            ("nvidia.com/gpu=0", "a.com/net=0"),
            ("a.com/net=0", "nvidia.com/gpu=0"),
        ),
    ],
)
def test_names_and_indices_are_resolved_to_devices(
    gpus: str, known: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert tuple(device.name for device in gpu_devices(gpus, registry(*known))) == expected


SAME = Edits(device_nodes=(DeviceNode(path="/dev/a", host_path="/dev/a"),))
OTHER = Edits(
    device_nodes=(DeviceNode(path="/dev/a", host_path="/dev/b", permissions="rwm"),),
    mounts=(Mount(source='/lib/a,"b"', target="/x"),),
    groups=(44,),
)
QUOTED = 'type=bind,"src=/lib/a,""b""",dst=/x,ro'
APPLIED = ["--device", "/dev/b:/dev/a:rwm", "--mount", QUOTED, "--group-add", "44"]


@pytest.mark.parametrize(
    ("edits", "place", "rootless", "expected"),
    [
        (SAME, "/etc/cdi", True, ["--device", "a.com/gpu=0"]),
        (OTHER, "/var/run/cdi", False, ["--device", "a.com/gpu=0"]),
        (OTHER, "/etc/cdi", True, APPLIED),
        (OTHER, "/opt/cdi", False, APPLIED),
    ],
)
def test_podman_gets_the_device_name_if_it_can_resolve_it_and_the_edits_otherwise(
    edits: Edits, place: str, rootless: bool, expected: list[str]
) -> None:
    devices = gpu_devices("all", registry("a.com/gpu=0", edits=edits, place=place))
    assert device_args(devices, rootless=rootless) == expected


def test_hooks_that_podman_would_not_run_are_refused_by_name() -> None:
    edits = Edits(hooks=(Hook(path="/x", args=("nvidia-ctk", "hook", "update-ldcache")),))
    devices = gpu_devices("all", registry("a.com/gpu=0", edits=edits, place="/opt/cdi"))
    with pytest.raises(
        UnsupportedOptionError, match=r"gpus.*/opt/cdi.*nvidia-ctk hook update-ldcache"
    ):
        device_args(devices, rootless=False)
