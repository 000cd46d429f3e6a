"""Specs are validated when they are made; each invalid value is one clear error before any
container starts.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import attrs
import pytest

from hyperruntime.errors import SpecError
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.run_as import RunAs
from hyperruntime.spec import ContainerSpec, Limits, Mount, Ready, Service, check_user, steps_of

IMAGE = "localhost/x:1"


@pytest.mark.parametrize("source", [".", "a b", Path("a b"), b"a b", "./x/../a b"])
def test_the_source_of_a_mount_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = tmp_path if source == "." else tmp_path / "a b"
    assert Mount(source=source, target="/x").source == str(expected)


@pytest.mark.parametrize("source", ["", "a\0b", None, 7, "\ud800"])
def test_an_invalid_host_path_is_rejected(source: Any) -> None:
    with pytest.raises(SpecError, match=r"Mount\.source"):
        Mount(source=source, target="/x")


@pytest.mark.parametrize("path", [b"/\xff", "/é".encode("latin-1")])
def test_a_path_that_is_not_utf8_is_rejected_because_engines_would_change_it(path: bytes) -> None:
    with pytest.raises(SpecError, match="UTF-8"):
        Mount(source=os.fsdecode(path), target="/x")
    with pytest.raises(SpecError, match="UTF-8"):
        Mount(source="/x", target=os.fsdecode(path))


@pytest.mark.parametrize(
    "target",
    ["/", "//", "/run", "/run/", "/var/../run", "/run/hyperruntime", "/run/hyperruntime/x", "/proc", "/proc/sys/kernel",
     "/sys", "/sys/fs/cgroup", "//sys", "/dev", "/dev/", "/./proc"],
)  # fmt: skip
def test_mounts_over_system_directories_are_rejected(target: str) -> None:
    with pytest.raises(SpecError, match=r"Mount\.target"):
        ContainerSpec(image=IMAGE, mounts=(Mount(source="/x", target=target),))


@pytest.mark.parametrize(
    "target", ["/runs", "/run/user", "/dev/shm/x", "/procs", "/system", "/tmp", "/a/proc"]
)
def test_other_mount_targets_are_accepted(target: str) -> None:
    assert ContainerSpec(image=IMAGE, mounts=(Mount(source="/x", target=target),)).mounts


@pytest.mark.parametrize("again", ["/data", "/data/", "//data", "/x/../data"])
def test_two_mounts_at_the_same_target_are_rejected(again: str) -> None:
    mounts = (Mount(source="/one", target="/data"), Mount(source="/two", target=again))
    with pytest.raises(SpecError, match="/one"):
        ContainerSpec(image=IMAGE, mounts=mounts)


@pytest.mark.parametrize(("target", "field"), [("/tmp", "tmpfs_bytes"), ("/dev/shm", "shm_bytes")])
def test_a_mount_is_rejected_where_a_limit_puts_a_memory_file_system(
    target: str, field: str
) -> None:
    with pytest.raises(SpecError, match=field):
        ContainerSpec(
            image=IMAGE,
            mounts=(Mount(source="/x", target=target),),
            limits=Limits(**{field: 1 << 20}),
        )


@pytest.mark.parametrize("name", ["memory_bytes", "pids", "tmpfs_bytes", "shm_bytes", "cpus"])
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 0, -1, True, "100", pytest.param(10**400, id="huge")]
)
def test_a_limit_must_be_a_finite_positive_number(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=name):
        Limits(**{name: value})


@pytest.mark.parametrize("name", ["memory_bytes", "pids", "tmpfs_bytes", "shm_bytes"])
def test_a_count_must_be_a_whole_number(name: str) -> None:
    fraction: Any = 1e8
    with pytest.raises(SpecError, match="whole number"):
        Limits(**{name: fraction})


@pytest.mark.parametrize("cpus", [0.001, 0.0099, 1e-300, 1e300])
def test_a_number_of_cores_that_the_kernel_cannot_enforce_is_rejected(cpus: float) -> None:
    with pytest.raises(SpecError, match=r"at least 0\.01"):
        Limits(cpus=cpus)


def test_a_number_of_cores_may_be_a_fraction_or_a_whole_number() -> None:
    assert Limits(cpus=0.01).cpus == 0.01
    assert Limits(cpus=3).cpus == 3


@pytest.mark.parametrize(
    "user", ["root", "0", "1000:1000", "www-data", "_apt", "machine$", "a.b:c-d", "2147483647"]
)
def test_users_are_accepted_by_name_and_by_number(user: str) -> None:
    check_user(user)
    assert ContainerSpec(image=IMAGE, user=user).user == user


@pytest.mark.parametrize(
    "user",
    ["", "-1", "-x", "0:-1", ":0", "0:", "a b", "a:b:c", "2147483648", "0:4294967295", "9" * 5000, "é", "١", 0, b"root",
     "root\n", "a/b", "a\0"],
)  # fmt: skip
def test_an_invalid_user_is_rejected(user: Any) -> None:
    with pytest.raises(SpecError, match="user"):
        ContainerSpec(image=IMAGE, user=user)


@pytest.mark.parametrize("text", ["\ud800", "x\udfff"])
@pytest.mark.parametrize("field", ["env", "labels", "workdir"])
def test_text_with_surrogates_is_rejected(field: str, text: str) -> None:
    values: list[Any] = [f"/{text}"] if field == "workdir" else [{text: "x"}, {"x": text}]
    for value in values:
        with pytest.raises(SpecError, match=field):
            ContainerSpec(**{"image": IMAGE, field: value})


@pytest.mark.parametrize("field", ["env", "labels", "workdir"])
def test_text_from_bytes_that_are_not_utf8_is_rejected(field: str) -> None:
    value: Any = "/\udcff" if field == "workdir" else {"x": os.fsdecode(b"\xff")}
    with pytest.raises(SpecError, match="UTF-8"):
        ContainerSpec(**{"image": IMAGE, field: value})


def test_an_error_message_does_not_repeat_a_very_long_value() -> None:
    with pytest.raises(SpecError) as caught:
        ContainerSpec(image=IMAGE, workdir="x" * 100_000)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("field", ["timeout_meta_s", "timeout_eval_s", "timeout_check_s"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0, -1.0, True, "5"])
def test_a_timeout_of_a_run_must_be_a_finite_positive_number(field: str, value: Any) -> None:
    with pytest.raises(SpecError, match=field):
        GenerateOptions(**{"domains": ("x",), field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("uid", 0),
        *((field, value) for field in ("uid", "gid") for value in (-1, 2**31, True, "1")),
        *(("home", value) for value in (None, "", "here", "/a\0b")),
    ],
)
def test_an_invalid_id_or_home_is_refused(field: str, value: object) -> None:
    with pytest.raises(SpecError, match=f"RunAs.{field}"):
        RunAs(**{"uid": 5, field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, float("inf"), "1"])
def test_an_invalid_wall_clock_limit_is_refused(value: Any) -> None:
    with pytest.raises(SpecError, match="wall_s"):
        Limits(wall_s=value)


def test_an_unknown_mode_of_limits_is_refused() -> None:
    with pytest.raises(SpecError, match="limits_mode"):
        ContainerSpec(image="x", limits_mode="hope")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/my images/größer/x", "./日本.sif", "a b.sif"])
def test_the_path_of_an_image_may_have_blanks_and_letters_of_any_language(path: str) -> None:
    assert ContainerSpec(image=path).image == path


@pytest.mark.parametrize("image", ["a b", "größer", "/x,y", "/x\\y", "/x\ny", " /x", "-x.sif"])
def test_another_image_with_such_letters_is_refused(image: str) -> None:
    with pytest.raises(SpecError, match="image"):
        ContainerSpec(image=image)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "localhost"}, "Service.name"),
        ({"name": "a b"}, "Service.name"),
        ({"name": "a", "aliases": ["-a"]}, "Service.name"),
        ({"name": "a", "args": ["x\0"]}, "Service.args"),
        ({"name": "a", "directories": ["x"]}, "Service.directories"),
        ({"name": "a", "image": "docker-archive:/x"}, "image"),
        ({"name": "a", "user": "a b"}, "user"),
    ],
)
def test_a_service_that_cannot_be_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        Service(**{"image": "b", **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tcp": 1, "completed": True},
        {"tcp": 0},
        {"http": "https://x"},
        {"tcp": 1, "timeout_s": 0},
    ],
)
def test_readiness_is_one_thing(fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Ready(**fields)


def test_services_of_a_container_have_names_of_their_own_and_an_order() -> None:
    one, two = Service(name="one", image="a", after=["two"]), Service(name="two", image="a")
    assert ContainerSpec(image="a", services=[one, two]).services == (one, two)
    assert [[each.name for each in step] for step in steps_of([one, two])] == [["two"], ["one"]]
    for services, names in (
        ((one,), ()),
        ((two, two), ()),
        ((two,), ("two",)),
        ((attrs.evolve(two, after=("two",)),), ()),
    ):
        with pytest.raises(SpecError):
            ContainerSpec(image="a", services=services, host_names=names)
