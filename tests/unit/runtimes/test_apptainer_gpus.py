"""The GPUs of a CDI spec become arguments of Apptainer, or are refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.driver import Launch
from hyperruntime.errors import DeviceError, DeviceNotFoundError, UnsupportedOptionError
from hyperruntime.gpu.cdi import DeviceNode, Edits, Hook
from hyperruntime_apptainer.args import Gpus, Places, Settings, device_args, gpu_args, points
from hyperruntime_apptainer.gpus import Wishes, apply_edits, find_gpus, parse_hooks, read_soname
from tests.doubles.nvidia_smi import install_smi, listing

PLACES = Places(image="/i", files="/scratch/c")
FOLDER = "/usr/lib/driver"


def hook(*words: str) -> Hook:
    return Hook(path="/usr/bin/nvidia-ctk", args=("nvidia-ctk", "hook", *words))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("create-symlinks", "--link", "a.so.1::/l/a.so"), Wishes(links=(("/l/a.so", "/l/a.so.1"),))),
        (("create-symlinks", "--link=../b::/m/a", "--link", "/x::/y"), Wishes(links=(("/m/a", "/b"), ("/y", "/x")))),
        (("update-ldcache", "--folder", "/a/", "--folder=/b", "--ldconfig-path", "/s"), Wishes(folders=("/a", "/b"))),
        (("enable-cuda-compat", "--host-driver-version=535.104.5"), Wishes(driver_major="535")),
        (("enable-cuda-compat", "--host-driver-version=[[ x"), Wishes()),
        (("chmod", "--mode", "755", "--path", "/dev/dri"), Wishes()),
        (("disable-device-node-modification",), Wishes()),
    ],
)  # fmt: skip
def test_nvidia_hooks_are_parsed(words: tuple[str, ...], expected: Wishes) -> None:
    assert parse_hooks([hook(*words)]) == expected


@pytest.mark.parametrize(
    "args", [("site-setup", "x"), (), ("nvidia-ctk", "hook", "create-symlinks", "--link", "odd")]
)
def test_an_unknown_hook_is_refused_with_its_arguments(args: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedOptionError, match=" ".join(args) or "/opt/setup") as caught:
        parse_hooks([Hook(path="/opt/setup", args=args)])
    assert caught.value.field == "gpus"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a library whose file name differs from its soname."""
    path = tmp_path / "libfake.so.535"
    shutil.copy(next(Path("/usr/lib").glob("*/libz.so.1")), path)
    return path


def edits_of(library: Path, *hooks: Hook) -> Edits:
    mount = hr.Mount(source=str(library), target=f"{FOLDER}/{library.name}")
    return Edits(mounts=(mount,), hooks=hooks, env={"LD_LIBRARY_PATH": "/more", "A": "1"})


def test_the_linker_finds_each_library_by_all_its_names(library: Path) -> None:
    links = hook(
        "create-symlinks",
        "--link",
        f"one.so::{FOLDER}/two.so",
        "--link",
        f"libz.so.1::{FOLDER}/one.so",
    )
    found = apply_edits(edits_of(library, hook("update-ldcache", "--folder", FOLDER), links))
    place = f"{FOLDER}/libfake.so.535"
    assert found.libraries == dict.fromkeys(
        ("libfake.so.535", "libz.so.1", "one.so", "two.so"), place
    )
    assert {mount.target: mount.source for mount in found.mounts} == dict.fromkeys(
        (place, f"{FOLDER}/one.so", f"{FOLDER}/two.so"), str(library)
    )
    assert all(mount.read_only for mount in found.mounts)
    assert (found.env, found.library_path) == ({"A": "1"}, "/more")
    assert (
        gpu_args(found, PLACES)[-1]
        == "type=bind,src=/scratch/c/libraries,dst=/opt/hyperruntime-gpu,ro"
    )


def test_a_mounted_directory_of_libraries_is_searched_for_libraries(library: Path) -> None:
    mount = hr.Mount(source=str(library.parent), target="/opt/driver", read_only=False)
    (library.parent / "readme").touch()
    found = apply_edits(
        Edits(mounts=(mount,), hooks=(hook("update-ldcache", "--folder", "/opt/driver"),))
    )
    assert found.libraries == dict.fromkeys(
        ("libfake.so.535", "libz.so.1"), "/opt/driver/libfake.so.535"
    )


def test_without_the_ldcache_hook_there_are_no_linker_entries(library: Path) -> None:
    assert apply_edits(edits_of(library)).libraries == {}


def test_links_that_form_a_circle_are_refused(library: Path) -> None:
    circle = hook("create-symlinks", "--link", "b::/x/a", "--link", "a::/x/b")
    with pytest.raises(UnsupportedOptionError, match="which it does not mount"):
        apply_edits(edits_of(library, circle))


def test_a_link_to_a_device_becomes_a_device() -> None:
    node = DeviceNode(path="/dev/dri/card0", host_path="/dev/null")
    link = hook("create-symlinks", "--link", "../card0::/dev/dri/by-path/pci-1")
    found = apply_edits(Edits(device_nodes=(node,), hooks=(link,)))
    assert [(node.path, node.host_path) for node in found.nodes] == [
        ("/dev/dri/card0", "/dev/null"),
        ("/dev/dri/by-path/pci-1", "/dev/null"),
    ]


@pytest.mark.parametrize(
    ("edits", "error", "words"),
    [
        (
            Edits(device_nodes=(DeviceNode(path="/dev/x", host_path="/dev/gone"),)),
            DeviceError,
            "/dev/gone",
        ),
        (Edits(mounts=(hr.Mount(source="/gone.so", target="/x"),)), DeviceError, "/gone.so"),
        (
            Edits(
                device_nodes=(DeviceNode(path="/dev/x", host_path="/dev/null", permissions="r"),)
            ),
            UnsupportedOptionError,
            "read-only",
        ),
        (Edits(groups=(2**31 - 9,)), UnsupportedOptionError, "group"),
    ],
)
def test_missing_or_unsupported_devices_and_mounts_raise_an_error(
    edits: Edits, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        apply_edits(edits)


def test_a_device_with_another_name_inside_needs_a_separate_dev() -> None:
    same = DeviceNode(path="/dev/nvidia0", host_path="/dev/nvidia0")
    other = DeviceNode(path="/dev/a", host_path="/dev/b")
    assert device_args(Gpus(nodes=(same,)), PLACES) == []
    args = device_args(Gpus(nodes=(same, other)), PLACES)
    assert args[3:] == [
        "devices",
        "/scratch/c/dev",
        "/dev/nvidia0",
        "/dev/nvidia0",
        "/dev/b",
        "/dev/a",
        "--",
    ]
    assert gpu_args(Gpus(nodes=(other,)), PLACES) == ["--mount", "type=bind,src=/dev/a,dst=/dev/a"]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install an ``nvidia-smi`` that lists two GPUs, on a machine without CDI specs."""
    install_smi(monkeypatch, tmp_path, listing(1, 1))
    monkeypatch.setenv("HYPERRUNTIME_CDI_DIRS", str(tmp_path / "none"))


@pytest.mark.usefixtures("smi")
@pytest.mark.parametrize("gpus", ["all", ("0", "1"), ("GPU-fake1", "0")])
def test_without_a_cdi_spec_all_gpus_are_passed_with_the_option_nv(
    gpus: str | tuple[str, ...],
) -> None:
    found = find_gpus(gpus)
    assert gpu_args(found, PLACES) == ["--nv"]
    assert found.library_path
    # Apptainer makes no mount points in a root that it may write
    launch = Launch(
        spec=hr.ContainerSpec(image="i"),
        name="c",
        labels={},
        exchange=hr.Mount(source="/usr", target="/run/hyperruntime"),
        private_dir="/private",
    )
    made = points(launch, Settings(), PLACES, found)
    assert made["/.singularity.d/libs"] == 0o755
    assert made["/usr/bin/nvidia-smi"] is None
    assert "/usr/bin/nvidia-persistenced" not in made, "an empty file in the place of a program"


@pytest.mark.usefixtures("smi")
@pytest.mark.parametrize("gpus", [("0",), ("1", "2"), ("0", "1", "2")])
def test_without_a_cdi_spec_a_subset_of_the_gpus_is_refused(gpus: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedOptionError, match="nvidia-ctk cdi generate"):
        find_gpus(gpus)


@pytest.mark.usefixtures("smi")
def test_without_a_cdi_spec_a_device_of_another_kind_is_not_found() -> None:
    with pytest.raises(DeviceNotFoundError):
        find_gpus(("example.com/gpu=0",))


def test_without_gpus_there_are_no_gpu_arguments() -> None:
    assert gpu_args(find_gpus(None), PLACES) == []


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 200, b"text"]
)
def test_a_file_that_is_not_a_library_has_no_soname(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    assert read_soname(path) is None
    assert read_soname(tmp_path / "gone") is None


def test_without_a_cdi_spec_amd_gpus_are_passed_with_the_option_rocm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not tried on a machine with such a GPU; the names are those of Apptainer's documentation."""
    (device := tmp_path / "kfd").touch()
    monkeypatch.setattr("hyperruntime_apptainer.gpus.AMD_DEVICE", str(device))
    monkeypatch.setattr("hyperruntime_apptainer.gpus.PROGRAM", "no-such-program")
    monkeypatch.setenv("HYPERRUNTIME_CDI_DIRS", str(tmp_path / "none"))
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2,3")
    found = find_gpus("all")
    assert gpu_args(found, PLACES) == ["--rocm"]
    assert found.env == {"ROCR_VISIBLE_DEVICES": "2,3"}
    with pytest.raises(UnsupportedOptionError, match="amd-ctk cdi generate"):
        find_gpus(("0",))
