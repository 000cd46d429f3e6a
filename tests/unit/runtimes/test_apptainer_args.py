"""A spec becomes the argument list of Apptainer, or is refused with the name of its field."""

from __future__ import annotations

import csv
from typing import Any

import attrs
import pytest

from hyperruntime.driver import Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.engine_program import mount_option
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_apptainer.args import Places, Settings, config_text, environment, refuse, run_args

PLACES = Places(image="/store/rootfs", files="/scratch/c", record="/state/c.json", workdir="/image")
SETTINGS = Settings(limits={"pids": "rlimit", "memory_bytes": "no", "cpus": "no"})


def args_of(settings: Settings = SETTINGS, **fields: Any) -> list[str]:
    launch = Launch(
        spec=ContainerSpec(**{"image": "i", **fields}),
        name="hyperruntime-1",
        labels={},
        exchange=Mount(source="/x", target="/run/hyperruntime"),
        private_dir="/private",
    )
    return run_args(launch, settings, PLACES)


def value_of(args: list[str], flag: str) -> str | None:
    return args[args.index(flag) + 1] if flag in args else None


def values_of(args: list[str], flag: str) -> list[str]:
    return [args[number + 1] for number, word in enumerate(args) if word == flag]


def test_the_complete_arguments_of_a_default_container() -> None:
    args = args_of()
    assert args[:2] == ["/bin/sh", "-c"]
    assert args[3:6] == ["hyperruntime-apptainer", "/scratch/c", "/state/c.json"]
    unshare = args[args.index("unshare") : args.index("/bin/sh", 6)]
    assert unshare == [
        *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork"),
        *("--kill-child=KILL", "--mount-proc", "--net"),
    ]
    engine = args[args.index("apptainer") : args.index("/store/rootfs")]
    assert engine == [
        *(
            "apptainer",
            "--silent",
            "--config",
            "/scratch/c/apptainer.conf",
            "exec",
            "--containall",
            "--pid",
            "--uts",
        ),
        *(
            "--hostname",
            "hyperruntime-1",
            "--no-home",
            "--no-eval",
            "--no-umask",
            "--cwd",
            "/",
            "--no-privs",
        ),
        *("--security", "seccomp:/scratch/c/seccomp.json"),
        *("--net", "--network", "none", "--overlay", "/scratch/c/layer"),
        *("--mount", "type=bind,src=/scratch/c/sys,dst=/sys,ro"),
        *("--mount", "type=bind,src=/x,dst=/run/hyperruntime,ro"),
    ]
    assert args[args.index("/store/rootfs") + 1 :][:2] == ["/bin/sh", "-c"]
    assert args[-8:] == ["sh", "512", "/image", "", "", "", "own", ""]


def test_root_has_capabilities_only_where_there_are_other_users() -> None:
    args = args_of(attrs.evolve(SETTINGS, users=True, seccomp=False))
    assert args[args.index("unshare") :][:4] == [
        "unshare",
        "--user",
        "--map-root-user",
        "--map-auto",
    ]
    assert value_of(args, "--add-caps") == (
        "CAP_CHOWN,CAP_DAC_OVERRIDE,CAP_FOWNER,CAP_FSETID,CAP_KILL,CAP_SETGID,CAP_SETUID,CAP_SETPCAP,CAP_SYS_CHROOT"
    )
    assert args[-1] == "setpriv --inh-caps=-all --ambient-caps=-all"
    assert "--security" not in args


@pytest.mark.parametrize(
    ("fields", "flag", "value"),
    [
        ({"read_only_rootfs": True}, "--overlay", None),
        ({"network": "host"}, "--network", None),
        ({"network": "host"}, "--net", None),
        ({"limits": Limits(pids=100)}, "sh", "100"),
        ({"limits": Limits(pids=None)}, "sh", ""),
    ],
)
def test_a_field_changes_only_its_own_option(
    fields: dict[str, Any], flag: str, value: str | None
) -> None:
    assert value_of(args_of(**fields), flag) == value


def test_the_workdir_and_the_library_path_reach_the_first_shell() -> None:
    """It may create the image's own directory, and no other."""
    assert args_of(env={"KEY": "secret"}, workdir="/w")[-6:] == ["/w", "", "", "", "", ""]
    assert args_of(env={"KEY": "secret"}, workdir="/image")[-6:] == [
        "/image",
        "",
        "",
        "",
        "own",
        "",
    ]
    assert args_of(env={"KEY": "secret", "LD_LIBRARY_PATH": "/l"})[-3] == "/l"


@pytest.mark.parametrize("target", ["/tmp", "/tmp/", "/data"])
def test_a_read_only_root_has_a_tmpfs_at_tmp_unless_a_mount_replaces_it(target: str) -> None:
    mounts = (Mount(source="/m", target=target, read_only=False),)
    args = args_of(read_only_rootfs=True, mounts=mounts)
    targets = [option.rpartition("dst=")[2] for option in values_of(args, "--mount")]
    assert targets.count("/tmp") + targets.count("/tmp/") == 1
    assert ("mode=1777,nosuid,nodev" in args) is (target == "/data")


def test_a_limited_tmp_is_mounted_with_its_size() -> None:
    args = args_of(limits=Limits(tmpfs_bytes=4096))
    assert "mode=1777,nosuid,nodev,size=4096" in args
    assert "type=bind,src=/scratch/c/memory,dst=/tmp" in values_of(args, "--mount")


def test_a_dev_shm_with_a_size_is_mounted_under_the_mounts_of_the_user() -> None:
    args = args_of(limits=Limits(shm_bytes=4096), mounts=(Mount(source="/m", target="/dev/shm/m"),))
    assert args[args.index("/scratch/c/shm") + 1] == "mode=1777,nosuid,nodev,size=4096"
    targets = [option.partition("dst=")[2] for option in values_of(args, "--mount")]
    assert targets.index("/dev/shm") < targets.index("/dev/shm/m,ro")


def test_host_network_containers_see_the_hosts_network_devices_but_not_its_cgroups() -> None:
    mounts = values_of(args_of(network="host"), "--mount")
    assert "type=bind,src=/sys/class,dst=/sys/class,ro" in mounts
    assert not [option for option in mounts if "cgroup" in option or "dst=/sys," in option]


def test_a_process_ceiling_of_the_host_lowers_the_limit() -> None:
    assert value_of(args_of(attrs.evolve(SETTINGS, nproc=50)), "sh") == "50"


def test_a_limit_of_memory_uses_apptainers_own_options() -> None:
    settings = attrs.evolve(
        SETTINGS, limits={"pids": "rlimit", "memory_bytes": "cgroup", "cpus": "no"}
    )
    args = args_of(settings, limits=Limits(memory_bytes=2**26))
    assert (value_of(args, "--memory"), value_of(args, "--memory-swap")) == ("67108864", "67108864")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"user": "nobody"}, "user"),
        ({"user": "1000:1000"}, "user"),
        ({"network": "bridge"}, "network"),
        ({"limits": Limits(memory_bytes=2**26)}, "limits.memory_bytes"),
        ({"limits": Limits(cpus=1)}, "limits.cpus"),
        ({"limits": Limits(pids=16)}, "limits.pids"),
    ],
)
def test_unsupported_fields_are_refused_by_name(fields: dict[str, object], field: str) -> None:
    with pytest.raises(
        UnsupportedOptionError, match=f"apptainer cannot honour {field}: .*(leave|ask|use)"
    ):
        refuse(ContainerSpec(**{"image": "i", **fields}), SETTINGS)  # type: ignore[arg-type]


@pytest.mark.parametrize("user", [None, "root", "0", "0:0"])
def test_the_user_root_is_supported(user: str | None) -> None:
    refuse(ContainerSpec(image="i", user=user), SETTINGS)


@pytest.mark.parametrize("path", ["/plain", "/a,b", '/a "b"', "/a:b", "/a\nb", "/a b,c"])
def test_any_path_can_be_mounted(path: str) -> None:
    (fields,) = csv.reader(
        [*mount_option("apptainer", Mount(source=path, target=path)).splitlines(keepends=True)]
    )
    assert fields == ["type=bind", f"src={path}", f"dst={path}", "ro"]


@pytest.mark.parametrize(("network", "answer"), [("none", "no"), ("host", "yes")])
def test_the_hosts_resolver_is_visible_only_on_its_network(network: str, answer: str) -> None:
    text = config_text(ContainerSpec(image="i", network=network))  # type: ignore[arg-type]
    assert f"config resolv_conf = {answer}\n" in text
    assert "mount home = no\n" in text


def test_the_engine_gets_only_the_environment_variables_that_it_needs() -> None:
    host = {
        "PATH": "/p",
        "HOME": "/h",
        "SECRET": "x",
        "APPTAINERENV_A": "1",
        "APPTAINER_BIND": "/etc",
    }
    assert environment(host) == {"PATH": "/p", "HOME": "/h"}
