"""What only Charliecloud's driver does: no program of the image ever has rights, and the container
shows none of the host's files that ``ch-run`` shows.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import attrs
import pytest

import hyperruntime as hr
from hyperruntime_charliecloud.probe import cached_probe

pytestmark = pytest.mark.engine
LIMITS = hr.Limits(pids=None)
# runs as /bin/sh, and notes with which rights
SHELL = """#!/bin/busybox sh
busybox grep -E 'CapEff|CapBnd|Seccomp:' /proc/self/status >>/notes
exec busybox sh "$@"
"""
SHOWN = ("hosts", "machine-id", "resolv.conf")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return an image by its path: a static busybox, and files that the host has too."""
    tree = tmp_path / "tree"
    for name in ("bin", "etc", "tmp"):
        (tree / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", tree / "bin")
    for name in ("sh", "cat", "rm", "mkdir", "sleep"):
        (tree / "bin" / name).symlink_to("busybox")
    for name in SHOWN:
        (tree / "etc" / name).write_text("of the image\n")
    (tree / "tmp/file").write_text("of the image\n")
    return tree


def said(container: hr.Container, *args: str) -> str:
    return container.exec(args).check().stdout.decode()


def test_no_program_of_the_image_ever_has_rights(runtime: hr.Runtime, tree: Path) -> None:
    """``ch-run`` starts it with all capabilities, and without a filter."""
    (tree / "bin/sh").unlink()
    (tree / "bin/sh").write_text(SHELL)
    (tree / "bin/sh").chmod(0o755)
    with runtime.container(hr.ContainerSpec(image=str(tree), limits=LIMITS)) as container:
        notes = said(container, "cat", "/notes").split()
    assert set(notes[::2]) == {"CapEff:", "CapBnd:", "Seccomp:"}
    assert set(notes[1::2]) == {"0" * 16, "2"}


@pytest.mark.parametrize("network", ["none", "host"])
def test_a_container_sees_the_files_of_the_image_and_not_the_hosts(
    runtime: hr.Runtime, tree: Path, network: str
) -> None:
    spec = hr.ContainerSpec(image=str(tree), limits=LIMITS, network=network)  # type: ignore[arg-type]
    with runtime.container(spec) as container:
        assert said(container, "cat", "/etc/machine-id", "/tmp/file") == "of the image\n" * 2
        hosts = said(container, "cat", "/etc/hosts")
        resolver = said(container, "cat", "/etc/resolv.conf")
    if network == "none":
        assert (hosts, resolver) == ("127.0.0.1 localhost\n::1 localhost\n", "of the image\n")
    else:
        assert hosts == Path("/etc/hosts").read_text()
        assert resolver == Path("/etc/resolv.conf").read_text()


@pytest.mark.parametrize("read_only", [True, False])
def test_without_overlays_the_files_are_copies_with_all_mounts(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    found = attrs.evolve(cached_probe()[0], storage="copy")
    monkeypatch.setattr("hyperruntime_charliecloud.driver.cached_probe", lambda: (found, True))
    (tmp_path / "given").write_text("given\n")
    mount = hr.Mount(source=str(tmp_path / "given"), target="/deep/er/file")
    spec = hr.ContainerSpec(
        image=str(tree), limits=LIMITS, mounts=(mount,), read_only_rootfs=read_only
    )
    with hr.open_runtime("charliecloud") as runtime, runtime.container(spec) as container:
        assert said(container, "cat", "/deep/er/file") == "given\n"
        written = container.exec(["sh", "-c", "echo new >/new && cat /new"]).stdout
        assert written == (b"" if read_only else b"new\n")
        assert container.exec(["sh", "-c", "echo 1 >/tmp/new && cat /tmp/new"]).stdout == b"1\n"
    assert not (tree / "new").exists()


def test_a_link_in_a_mount_leads_no_other_mount_out_of_it(
    runtime: hr.Runtime, tree: Path, tmp_path: Path
) -> None:
    (outer := tmp_path / "outer").mkdir()
    (outer / "in").symlink_to("/bin")
    mounts = (
        hr.Mount(source=str(outer), target="/mnt", read_only=False),
        hr.Mount(source=str(tmp_path), target="/mnt/in"),
    )
    with pytest.raises(hr.HyperRuntimeError, match="is a link"):
        runtime.container(hr.ContainerSpec(image=str(tree), limits=LIMITS, mounts=mounts))
