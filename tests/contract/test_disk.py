"""The limit on what a container's files take, on the engine under test, and a container that jams its own commands."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.driver import PostMortem
from hyperruntime.errors import ContainerLostError
from hyperruntime.host.process import wait_until
from hyperruntime.units import MIB

pytestmark = pytest.mark.engine

LIMIT = 64 * MIB
FILL = (
    "import os, sys, time\nfile = open(sys.argv[1], 'wb', 0)\n{then}\nfor _ in range(300): file.write(bytes(1 << 20))\n"
)
JAM = """
import glob, os
for _ in range(200):
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            os.write(descriptor, b"x\\n" * 2048)
            os.close(descriptor)
        except OSError:
            pass
"""


def limited(image: str, folder: Path) -> hr.ContainerSpec:
    mount = hr.Mount(source=str(folder), target="/data", read_only=False)
    return hr.ContainerSpec(image=image, mounts=(mount,), limits=hr.Limits(disk_bytes=LIMIT))


@pytest.mark.parametrize(
    ("path", "then"),
    [
        ("/data/file", ""),
        ("/data/file", "os.unlink('/data/file')"),
        ("/var/file", ""),
        ("/var/file", "os.unlink('/var/file')"),
        ("/tmp/file", ""),
    ],
    ids=["mount", "deleted in a mount", "over the image", "deleted over the image", "tmp"],
)
def test_a_container_whose_files_take_too_much_is_ended(
    runtime: hr.Runtime, base_image: str, tmp_path: Path, path: str, then: str
) -> None:
    with runtime.container(limited(base_image, tmp_path)) as container:
        with pytest.raises(ContainerLostError, match=f"disk_bytes={LIMIT}") as caught:
            container.exec(["python3", "-c", FILL.format(then=then) + "time.sleep(60)", path], timeout_s=90)
        assert isinstance(caught.value.post_mortem, PostMortem)
        assert caught.value.post_mortem.limit == "disk_bytes"
    assert wait_until(lambda: all(thread.name != "hyperruntime-disk" for thread in threading.enumerate()), 60)


def test_a_container_whose_files_take_less_is_left_alone(runtime: hr.Runtime, base_image: str, tmp_path: Path) -> None:
    script = "for _ in 1 2 3 4; do head -c 40M /dev/zero >/data/file; rm /data/file; done; truncate -s 1T /data/sparse"
    with runtime.container(limited(base_image, tmp_path)) as container:
        container.exec(["sh", "-c", f"{script}; sleep 1.5"]).check()
        assert os.stat(tmp_path / "sparse").st_size == 1 << 40


def test_who_jams_what_starts_commands_loses_the_container_and_not_the_host(
    runtime: hr.Runtime, base_image: str
) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image)) as container:
        try:
            container.exec(["python3", "-c", JAM], timeout_s=60)
            assert container.exec(["echo", "here"], timeout_s=60).stdout in (b"here\n", b"")
        except ContainerLostError:
            pass
    with runtime.container(hr.ContainerSpec(image=base_image)) as container:
        assert container.exec(["echo", "here"]).stdout == b"here\n"
