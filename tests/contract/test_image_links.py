"""Engines that start a directory: the links of an image that somebody sent lead no mount out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import hyperruntime as hr

pytestmark = pytest.mark.engine
BUSYBOX = "/bin/busybox"
LIMITS = hr.Limits(pids=None)


@pytest.fixture(autouse=True)
def starts_directories(runtime_name: str) -> None:
    if runtime_name not in ("apptainer", "bubblewrap", "charliecloud"):
        pytest.skip("this engine has images of its own, and starts no directory")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return an image by its path: a static busybox and nothing else."""
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    shutil.copy(BUSYBOX, tree / "bin")
    for name in ("sh", "cat", "ls", "mkdir", "rm", "sleep"):
        (tree / "bin" / name).symlink_to("busybox")
    return tree


@pytest.mark.parametrize("root", ["", "/oldroot", "../../../.."])
def test_links_of_an_image_lead_no_mount_out_of_it(
    runtime: hr.Runtime, tree: Path, tmp_path: Path, root: str
) -> None:
    """bwrap 0.8 made the directories and files of mount points through such links."""
    host = tmp_path / "host"
    host.mkdir()
    given = tmp_path / "given"
    given.mkdir()
    (given / "file").write_text("given\n")
    for name in ("etc", "run", "var", "mnt"):
        (tree / name).symlink_to(f"{root}{host}")
    mounts = (hr.Mount(source=str(given), target="/mnt/deep/place"),)
    spec = hr.ContainerSpec(image=str(tree), mounts=mounts, limits=LIMITS, workdir="/")
    with runtime.container(spec) as container:
        found = container.exec(["cat", "/mnt/deep/place/file"])
        assert found.stdout == b"given\n"
        container.exec(["sh", "-c", "echo x >/etc/x; echo x >/run/x; echo x >/var/x"])
    assert list(host.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("etc", "/proc/self/root/oldroot"),
        ("mnt", "/proc/1/cwd"),
        ("mnt", "/dev/fd/9"),
        ("proc", "/tmp"),
        ("dev", "bin"),
    ],
)
def test_links_of_an_image_into_what_is_mounted_later_are_refused(
    runtime: hr.Runtime, tree: Path, tmp_path: Path, name: str, target: str
) -> None:
    """Such as a link through /proc, which has links out of every root."""
    host = tmp_path / "host"
    host.mkdir()
    (tree / name).symlink_to(f"{target}{host}" if "oldroot" in target else target)
    mounts = (hr.Mount(source=str(host), target="/mnt/place"),)
    spec = hr.ContainerSpec(image=str(tree), mounts=mounts, limits=LIMITS)
    with pytest.raises(hr.HyperRuntimeError, match="is a link"):
        runtime.container(spec)
    assert list(host.iterdir()) == []


def test_an_image_is_not_changed_and_its_changes_are_gone(runtime: hr.Runtime, tree: Path) -> None:
    before = sorted(os.listdir(tree / "bin"))
    for _ in range(2):
        with runtime.container(hr.ContainerSpec(image=str(tree), limits=LIMITS)) as container:
            script = "rm /bin/ls && mkdir /bin/new && echo ok"
            assert container.exec(["sh", "-c", script]).stdout == b"ok\n"
    assert sorted(os.listdir(tree / "bin")) == before


def test_links_in_a_circle_are_an_error_and_nothing_is_left(
    runtime: hr.Runtime, tree: Path
) -> None:
    (tree / "etc").symlink_to("/etc2")
    (tree / "etc2").symlink_to("/etc")
    with pytest.raises(hr.HyperRuntimeError, match="too many links"):
        runtime.container(hr.ContainerSpec(image=str(tree), limits=LIMITS))
    assert not [one for one in runtime.containers() if one.owner.pid == os.getpid()]
