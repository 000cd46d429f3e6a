"""A spec becomes the argument list of Apptainer, or is refused with the name of its field."""

from __future__ import annotations

import csv
from typing import Any

import attrs
import pytest

from hyperruntime.driver import Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.gpu.cdi import DeviceNode
from hyperruntime.host.engine_program import mount_option
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_apptainer.args import (
    Gpus,
    Places,
    Settings,
    config_text,
    environment,
    make_job,
    refuse,
)
from hyperruntime_apptainer.program import program

PLACES = Places(image="/store/rootfs", files="/scratch/c", workdir="/image")
SETTINGS = Settings(limits={"pids": "rlimit", "memory_bytes": "no", "cpus": "no"})


def launch_of(**fields: Any) -> Launch:
    return Launch(
        spec=ContainerSpec(**{"image": "i", **fields}),
        name="hyperruntime-1",
        labels={},
        exchange=Mount(source="/x", target="/run/hyperruntime"),
        private_dir="/private",
    )


def args_of(settings: Settings = SETTINGS, **fields: Any) -> list[str]:
    return [*make_job(launch_of(**fields), settings, PLACES).args]


def value_of(args: list[str], flag: str) -> str | None:
    return args[args.index(flag) + 1] if flag in args else None


def values_of(args: list[str], flag: str) -> list[str]:
    return [args[number + 1] for number, word in enumerate(args) if word == flag]


def test_memory_file_systems_are_made_unless_a_mount_replaces_them_and_lie_below_mounts() -> None:
    limits = Limits(pids=100, tmpfs_bytes=4096, shm_bytes=4096, memory_bytes=2**26)
    able = attrs.evolve(SETTINGS, limits={"pids": "rlimit", "memory_bytes": "cgroup"}, nproc=50)
    mounts = (Mount(source="/m", target="/dev/shm/m"),)
    args = args_of(able, read_only_rootfs=True, limits=limits, mounts=mounts)
    for place in ("memory", "shm"):
        assert value_of(args, f"/scratch/c/{place}") == "mode=1777,nosuid,nodev,size=4096"
    targets = [option.partition("dst=")[2] for option in values_of(args, "--mount")]
    assert targets[-3:] == ["/tmp", "/dev/shm", "/dev/shm/m,ro"]
    assert "--overlay" not in args
    assert (value_of(args, "--memory"), value_of(args, "--memory-swap")) == ("67108864",) * 2
    assert value_of(args, "sh") == "50", "the stricter of two limits on processes"
    mounts = (Mount(source="/m", target="/tmp/", read_only=False),)
    assert "mode=1777,nosuid,nodev" not in args_of(read_only_rootfs=True, mounts=mounts)
    assert "mode=1777,nosuid,nodev" in args_of(read_only_rootfs=True)


def test_a_limit_on_processes_must_leave_some_for_apptainer_itself() -> None:
    """What else cannot be honoured is refused as declared, which the conformance suite checks."""
    with pytest.raises(UnsupportedOptionError, match=r"limits\.pids: .*at least 40"):
        refuse(ContainerSpec(image="i", limits=Limits(pids=16)), SETTINGS)
    for user in (None, "root", "0", "0:0"):
        refuse(ContainerSpec(image="i", user=user), SETTINGS)


def test_containers_on_the_hosts_network_see_its_devices_and_resolver_but_not_its_cgroups() -> None:
    mounts = values_of(args_of(network="host"), "--mount")
    assert "type=bind,src=/sys/class,dst=/sys/class,ro" in mounts
    assert not [option for option in mounts if "cgroup" in option or "dst=/sys," in option]
    for network, answer in (("none", "no"), ("host", "yes")):
        spec = ContainerSpec(image="i", network=network)  # type: ignore[arg-type]
        assert f"config resolv_conf = {answer}\n" in config_text(spec)


def test_a_setuid_program_gets_no_namespaces_and_no_configuration_of_ours() -> None:
    """A shell that waits has the directory's name; what needs a mount of ours is refused."""
    setuid = Settings(setuid=True, sysfs=False, limits={"pids": "no"})
    free = Limits(pids=None)
    args = args_of(setuid, limits=free, network="host", read_only_rootfs=True)
    assert args[:2] == ["/bin/sh", "-c"]
    assert args[3:5] == ["/scratch/c", program()]
    assert not {"unshare", "mount", "--config", "--userns", "--fakeroot", "--overlay"} & {*args}
    assert value_of(args, "--no-mount") == "home,tmp,hostfs,cwd"
    copied = attrs.evolve(PLACES, copied=True)
    job = make_job(launch_of(limits=free), setuid, copied)
    assert (job.copied, job.root, job.layers) == (True, "/scratch/c/root", None)
    assert "--writable" in job.args
    renamed = Gpus(nodes=(DeviceNode(path="/dev/a", host_path="/dev/null"),))
    with pytest.raises(UnsupportedOptionError, match="under another name than on the host"):
        make_job(launch_of(limits=free), setuid, PLACES, renamed)
    with pytest.raises(UnsupportedOptionError, match="which is you"):
        refuse(ContainerSpec(image="i", user="root"), setuid)


@pytest.mark.parametrize("path", ["/plain", "/a,b", '/a "b"', "/a:b", "/a\nb", "/a b,c"])
def test_any_path_can_be_mounted(path: str) -> None:
    (fields,) = csv.reader(
        [*mount_option("apptainer", Mount(source=path, target=path)).splitlines(keepends=True)]
    )
    assert fields == ["type=bind", f"src={path}", f"dst={path}", "ro"]


def test_the_engine_gets_only_the_environment_variables_that_it_needs() -> None:
    host = {
        "PATH": "/p",
        "HOME": "/h",
        "SECRET": "x",
        "APPTAINERENV_A": "1",
        "APPTAINER_BIND": "/etc",
    }
    assert environment(host) == {"PATH": "/p", "HOME": "/h"}
