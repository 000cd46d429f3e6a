"""A spec becomes the body of a Docker request; unsupported fields are refused."""

from __future__ import annotations

import os
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.driver import Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.engine_program import CAPABILITIES
from hyperruntime_docker.args import UID_LABEL, Settings, container_config

ABLE = Settings(
    limits={"memory_bytes": "cgroup", "cpus": "cgroup", "pids": "cgroup"},
    networks=("none", "host", "bridge"),
)
NVIDIA = Settings(nvidia=True)
CDI = Settings(cdi_dirs=("/etc/cdi",))
BOTH = Settings(nvidia=True, cdi_dirs=("/etc/cdi",))
BY_NVIDIA = {"Driver": "nvidia", "Capabilities": [["gpu"]]}
EXCHANGE = {"Type": "bind", "Source": "/tmp/x", "Target": "/run/hyperruntime", "ReadOnly": True}


def config(settings: Settings = ABLE, **fields: Any) -> dict[str, Any]:
    spec = hr.ContainerSpec(**{"image": "localhost/i:1", "limits": hr.Limits(pids=None), **fields})
    exchange = hr.Mount(source="/tmp/x", target="/run/hyperruntime")
    launch = Launch(spec=spec, name="n", labels={"l": "1"}, exchange=exchange, private_dir="/tmp/p")
    return container_config(launch, settings)


def test_the_complete_body_of_a_minimal_container_and_of_one_with_all_fields() -> None:
    minimal = config()
    assert minimal == {
        "Image": "localhost/i:1",
        "Entrypoint": ["/bin/sh"],
        "Cmd": [],
        "Env": [],
        "Labels": {"l": "1", UID_LABEL: str(os.getuid())},
        "Healthcheck": {"Test": ["NONE"]},
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "Tty": False,
        "HostConfig": {
            "AutoRemove": True,
            "Init": True,
            "CapDrop": ["ALL"],
            "CapAdd": list(CAPABILITIES),
            "SecurityOpt": ["no-new-privileges", "label=disable"],
            "LogConfig": {"Type": "none"},
            "NetworkMode": "none",
            "Mounts": [EXCHANGE],
        },
    }
    mount = hr.Mount(source="/a, b:c", target="/t", read_only=False)
    limits = hr.Limits(pids=60, cpus=0.5, memory_bytes=1 << 30, shm_bytes=4096, tmpfs_bytes=4096)
    full = config(
        env={"A": "1", "odd.name": "x=y\n"},
        user="1000:1000",
        workdir="/it's here",
        network="bridge",
        read_only_rootfs=True,
        mounts=(mount,),
        limits=limits,
    )
    command = full.pop("Cmd")
    assert (command[0], command[-1]) == ("-c", "/it's here")
    assert command[1].startswith('cd -- "$1"'), "Docker itself would create a missing directory"
    minimal.pop("Cmd")
    assert full == minimal | {
        "Env": ["A=1", "odd.name=x=y\n"],
        "User": "1000:1000",
        "WorkingDir": "/",
        "HostConfig": minimal["HostConfig"]
        | {
            "NetworkMode": "bridge",
            "ReadonlyRootfs": True,
            "Memory": 1 << 30,
            "MemorySwap": 1 << 30,
            "NanoCpus": 500_000_000,
            "PidsLimit": 60,
            "ShmSize": 4096,
            "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777,size=4096"},
            "Mounts": [
                EXCHANGE,
                {"Type": "bind", "Source": "/a, b:c", "Target": "/t", "ReadOnly": False},
            ],
        },
    }


@pytest.mark.parametrize(
    ("settings", "gpus", "request_"),
    [
        (NVIDIA, "all", {**BY_NVIDIA, "Count": -1}),
        (NVIDIA, ("0", "1"), {**BY_NVIDIA, "DeviceIDs": ["0", "1"]}),
        (CDI, ("0", "1"), {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]}),
        (CDI, ("vendor.com/class=x",), {"Driver": "cdi", "DeviceIDs": ["vendor.com/class=x"]}),
        (BOTH, "all", {**BY_NVIDIA, "Count": -1}),
        (BOTH, ("vendor.com/class=x",), {"Driver": "cdi", "DeviceIDs": ["vendor.com/class=x"]}),
    ],
)
def test_gpus_are_requested_in_the_form_that_the_daemon_supports(
    settings: Settings, gpus: Any, request_: dict[str, Any]
) -> None:
    assert config(settings, gpus=gpus)["HostConfig"]["DeviceRequests"] == [request_]


@pytest.mark.parametrize(
    ("changes", "settings", "field"),
    [
        ({"gpus": "all"}, Settings(), "gpus"),
        ({"gpus": ("vendor.com/class=x",)}, NVIDIA, "gpus"),
        ({"network": "bridge"}, Settings(), "network"),
        ({"limits": hr.Limits(pids=None, cpus=1)}, Settings(limits={"cpus": "no"}), "limits.cpus"),
        ({"limits": hr.Limits(pids=None, memory_bytes=1 << 30)}, Settings(), "limits.memory_bytes"),
    ],
)
def test_fields_that_the_daemon_does_not_support_are_refused_by_name(
    changes: Any, settings: Settings, field: str
) -> None:
    with pytest.raises(UnsupportedOptionError) as caught:
        config(settings, **changes)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("gpus", "settings", "env"),
    [
        (None, ABLE, ["A=1"]),
        (None, NVIDIA, ["A=1", "NVIDIA_VISIBLE_DEVICES=void"]),
        ("all", NVIDIA, ["A=1"]),
        (("nvidia.com/gpu=0",), BOTH, ["A=1", "NVIDIA_VISIBLE_DEVICES=void"]),
    ],
)
def test_an_image_cannot_request_gpus_with_its_environment(
    gpus: Any, settings: Settings, env: list[str]
) -> None:
    assert config(settings, env={"A": "1"}, gpus=gpus)["Env"] == env
