"""A spec becomes the body of a Docker request; unsupported fields are refused."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.driver import Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.engine_program import CAPABILITIES
from hyperruntime_docker.args import UID_LABEL, Settings, container_config
from hyperruntime_podman.args import Settings as PodmanSettings
from hyperruntime_podman.args import run_args

ABLE = Settings(
    limits={"memory_bytes": "cgroup", "cpus": "cgroup", "pids": "cgroup"},
    networks=("none", "host", "bridge"),
)
EXCHANGE = hr.Mount(source="/tmp/x", target="/run/hyperruntime")
EXCHANGE_ENTRY = {
    "Type": "bind",
    "Source": "/tmp/x",
    "Target": "/run/hyperruntime",
    "ReadOnly": True,
}


def config(spec: hr.ContainerSpec, settings: Settings = ABLE) -> dict[str, Any]:
    launch = Launch(spec=spec, name="n", labels={"l": "1"}, exchange=EXCHANGE, private_dir="/tmp/p")
    return container_config(launch, settings)


def spec(**changes: Any) -> hr.ContainerSpec:
    return hr.ContainerSpec(**{"image": "localhost/i:1", "limits": hr.Limits(pids=None), **changes})


def test_the_complete_body_of_a_minimal_container() -> None:
    assert config(spec()) == {
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
            "Mounts": [EXCHANGE_ENTRY],
        },
    }


TABLE: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"env": {"A": "1", "odd.name": "x=y\n"}}, {"Env": ["A=1", "odd.name=x=y\n"]}, {}),
    ({"user": "1000:1000"}, {"User": "1000:1000"}, {}),
    ({"network": "host"}, {}, {"NetworkMode": "host"}),
    ({"network": "bridge"}, {}, {"NetworkMode": "bridge"}),
    ({"limits": hr.Limits(pids=60)}, {}, {"PidsLimit": 60}),
    ({"limits": hr.Limits(pids=None, cpus=0.5)}, {}, {"NanoCpus": 500_000_000}),
    (
        {"limits": hr.Limits(pids=None, memory_bytes=1 << 30)},
        {},
        {"Memory": 1 << 30, "MemorySwap": 1 << 30},
    ),
    ({"limits": hr.Limits(pids=None, shm_bytes=4096)}, {}, {"ShmSize": 4096}),
    (
        {"limits": hr.Limits(pids=None, tmpfs_bytes=4096)},
        {},
        {"Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777,size=4096"}},
    ),
    (
        {"read_only_rootfs": True},
        {},
        {"ReadonlyRootfs": True, "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777"}},
    ),
    (
        {"mounts": (hr.Mount(source="/a, b:c", target="/t", read_only=False),)},
        {},
        {
            "Mounts": [
                EXCHANGE_ENTRY,
                {"Type": "bind", "Source": "/a, b:c", "Target": "/t", "ReadOnly": False},
            ]
        },
    ),
]


@pytest.mark.parametrize(("changes", "body", "host"), TABLE)
def test_each_field_changes_only_its_own_keys(
    changes: dict[str, Any], body: dict[str, Any], host: dict[str, Any]
) -> None:
    plain, made = config(spec()), config(spec(**changes))
    assert made["HostConfig"] == plain["HostConfig"] | host
    assert {**made, "HostConfig": None} == {**plain, **body, "HostConfig": None}


def test_the_shell_changes_to_the_workdir_because_docker_would_create_a_missing_one() -> None:
    made = config(spec(workdir="/it's here"))
    assert made["WorkingDir"] == "/"
    assert [*made["Entrypoint"], *made["Cmd"]][:2] == ["/bin/sh", "-c"]
    assert made["Cmd"][-1] == "/it's here"
    assert made["Cmd"][1].startswith('cd -- "$1"')


NVIDIA = Settings(nvidia=True)
CDI = Settings(cdi_dirs=("/etc/cdi",))
BOTH = Settings(nvidia=True, cdi_dirs=("/etc/cdi",))


@pytest.mark.parametrize(
    ("settings", "gpus", "request_"),
    [
        (NVIDIA, "all", {"Driver": "nvidia", "Capabilities": [["gpu"]], "Count": -1}),
        (
            NVIDIA,
            ("0", "1"),
            {"Driver": "nvidia", "Capabilities": [["gpu"]], "DeviceIDs": ["0", "1"]},
        ),
        (CDI, "all", {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}),
        (CDI, ("0", "1"), {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]}),
        (CDI, ("vendor.com/class=x",), {"Driver": "cdi", "DeviceIDs": ["vendor.com/class=x"]}),
        (BOTH, "all", {"Driver": "nvidia", "Capabilities": [["gpu"]], "Count": -1}),
        (BOTH, ("vendor.com/class=x",), {"Driver": "cdi", "DeviceIDs": ["vendor.com/class=x"]}),
    ],
)
def test_gpus_are_requested_in_the_form_that_the_daemon_supports(
    settings: Settings, gpus: Any, request_: dict[str, Any]
) -> None:
    assert config(spec(gpus=gpus), settings)["HostConfig"]["DeviceRequests"] == [request_]


@pytest.mark.parametrize(
    ("changes", "settings", "field"),
    [
        ({"gpus": "all"}, Settings(), "gpus"),
        ({"gpus": ("vendor.com/class=x",)}, NVIDIA, "gpus"),
        ({"network": "bridge"}, Settings(), "network"),
        ({"limits": hr.Limits()}, Settings(), "limits.pids"),
        ({"limits": hr.Limits(pids=None, cpus=1)}, Settings(limits={"cpus": "no"}), "limits.cpus"),
        ({"limits": hr.Limits(pids=None, memory_bytes=1 << 30)}, Settings(), "limits.memory_bytes"),
    ],
)
def test_fields_that_the_daemon_does_not_support_are_refused_by_name(
    changes: Any, settings: Settings, field: str
) -> None:
    with pytest.raises(UnsupportedOptionError) as caught:
        config(spec(**changes), settings)
    assert caught.value.field == field


def test_docker_and_podman_containers_have_the_same_capabilities() -> None:
    launch = Launch(spec=spec(), name="c", labels={}, exchange=EXCHANGE, private_dir="/p")
    podman = run_args(launch, PodmanSettings())
    assert [added for flag, added in itertools.pairwise(podman) if flag == "--cap-add"] == list(
        CAPABILITIES
    )
    assert config(spec(), Settings())["HostConfig"]["CapAdd"] == list(CAPABILITIES)


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
    asked = hr.ContainerSpec(image="i", env={"A": "1"}, gpus=gpus, limits=hr.Limits(pids=None))
    launch = Launch(
        spec=asked, name="n", labels={}, exchange=hr.Mount(source="/x", target="/y"), private_dir=""
    )
    assert container_config(launch, settings)["Env"] == env
