"""Apptainer before 1.5 knows no CDI, and none runs hooks; the driver does what NVIDIA's do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.errors import DeviceError
from hyperruntime_apptainer.gpus import read_soname
from tests.contract.fake_gpus import Describe

pytestmark = pytest.mark.engine

FOLDER = "/usr/lib/fake-driver"


def hook(*words: str) -> dict[str, Any]:
    """Return a hook as NVIDIA's toolkit writes it."""
    return {
        "hookName": "createContainer",
        "path": "/usr/bin/nvidia-cdi-hook",
        "args": ["nvidia-cdi-hook", *words],
    }


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A real library in a file named after a driver version; programs load it by its soname,
    another name.
    """
    found = next(Path("/usr/lib").glob("*/libz.so.1"))
    copy = tmp_path / "libfake.so.535.104"
    shutil.copy(found.resolve(), copy)
    assert read_soname(copy) == "libz.so.1"
    return copy


def driver_edits(library: Path) -> dict[str, Any]:
    """Return the edits for all devices, as in a spec of NVIDIA."""
    return {
        "mounts": [
            {
                "hostPath": str(library),
                "containerPath": f"{FOLDER}/{library.name}",
                "options": ["ro", "bind"],
            }
        ],
        "hooks": [
            hook(
                *("create-symlinks", "--link", f"libplain.so.1::{FOLDER}/libplain.so"),
                *(
                    "--link",
                    f"libz.so.1::{FOLDER}/libplain.so.1",
                    "--link",
                    "../fakegpu0::/dev/by-path/one",
                ),
            ),
            hook("update-ldcache", "--ldconfig-path", "/sbin/ldconfig", f"--folder={FOLDER}"),
            hook("enable-cuda-compat", "--host-driver-version=535.104.05"),
            hook("disable-device-node-modification"),
        ],
    }


@pytest.mark.parametrize("read_only", [False, True])
def test_the_linker_finds_the_drivers_libraries_and_the_links_exist(
    runtime: hr.Runtime, base_image: str, describe: Describe, library: Path, read_only: bool
) -> None:
    describe(**driver_edits(library))
    spec = hr.ContainerSpec(
        image=base_image,
        gpus="0",
        read_only_rootfs=read_only,
        env={"LD_LIBRARY_PATH": "/my/own"},
        network="none",
    )
    load = "import ctypes, sys; [ctypes.CDLL(name).zlibVersion() for name in sys.argv[1:]]"
    with runtime.container(spec) as container:
        container.exec(
            ["python3", "-c", load, library.name, "libplain.so", "libplain.so.1"]
        ).check()
        loaded = "import ctypes; ctypes.CDLL('libz.so.1'); print(open('/proc/self/maps').read())"
        assert FOLDER in container.exec(["python3", "-c", loaded]).check().stdout.decode(), (
            "the image's library was loaded, not the driver's"
        )
        path = container.exec(["sh", "-c", 'echo "$LD_LIBRARY_PATH"']).stdout.decode()
        assert path.startswith("/my/own:")
        same = container.exec(["cmp", f"{FOLDER}/libplain.so", f"{FOLDER}/{library.name}"])
        assert same.exit_code == 0, same.stderr
        removed = container.exec(["rm", "-r", "/usr/share/base-files"])
        assert removed.exit_code == int(read_only), removed.stderr
        assert (
            container.exec(
                ["sh", "-c", "test -c /dev/by-path/one && test -c /dev/fakegpu0"]
            ).exit_code
            == 0
        )


@pytest.mark.parametrize(("driver", "expected"), [("535.104", True), ("570.1", False), ("", False)])
def test_compat_libraries_for_a_newer_driver_come_first(
    runtime: hr.Runtime,
    base_image: str,
    describe: Describe,
    tmp_path: Path,
    driver: str,
    expected: bool,
) -> None:
    describe(hooks=[hook("enable-cuda-compat", f"--host-driver-version={driver}")])
    compat = tmp_path / "compat"
    compat.mkdir()
    (compat / "libcuda.so.560.35.05").touch()
    mount = hr.Mount(source=str(compat), target="/usr/local/cuda/compat")
    with runtime.container(
        hr.ContainerSpec(image=base_image, gpus="0", mounts=(mount,))
    ) as container:
        first = (
            container.exec(["sh", "-c", 'echo "${LD_LIBRARY_PATH%%:*}"']).stdout.decode().strip()
        )
        assert (first == "/usr/local/cuda/compat") is expected


def test_a_device_without_permission_is_an_error_at_once(
    runtime: hr.Runtime, base_image: str, describe: Describe
) -> None:
    describe(host_path="/dev/mem" if Path("/dev/mem").exists() else "/dev/console")
    with pytest.raises(DeviceError, match="may not be used by this user"):
        runtime.container(hr.ContainerSpec(image=base_image, gpus="0"))
