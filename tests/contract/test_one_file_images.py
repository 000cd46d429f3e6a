"""Images of one file each: what a container sees, and what becomes of its snapshots."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import EngineError, ImageError, SpecError
from hyperruntime.host.process import find_program
from hyperruntime.layers import one_file
from tests.contract.test_image_users import files
from tests.doubles.layers import docker_archive, layer

pytestmark = pytest.mark.engine
NAME = "localhost/hyperruntime-test/one-file:latest"
SHOWN = (
    "busybox find / -xdev ! -type d ! -path '/proc/*' ! -path '/dev/*' ! -path '/.singularity.d/*' "
    "! -path '/etc/*' ! -path /environment ! -path /singularity -exec busybox stat -c "
    "'%n %F %a %u:%g %s %h %N' {} + | busybox sort; busybox stat -c '%n %a %u:%g' / /home/ann /shared"
)
Open = Callable[[str], hr.Runtime]


def spec() -> hr.ContainerSpec:
    return hr.ContainerSpec(image=NAME, limits=hr.Limits(pids=None))


def said(container: hr.Container, script: str) -> str:
    return container.exec(["sh", "-c", script]).check().stdout.decode()


@pytest.fixture
def opened(runtime_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Yield what opens a runtime with a store of a format, which has the image."""
    if runtime_name not in ("apptainer", "bubblewrap"):
        pytest.skip("this engine has images of its own, and starts no directory")
    archive = docker_archive(tmp_path / "image.tar", layer(files()), name=NAME)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    runtimes: list[hr.Runtime] = []

    def open_one(kind: str) -> hr.Runtime:
        monkeypatch.setenv("HYPERRUNTIME_IMAGES", str(tmp_path / kind))
        monkeypatch.setenv(one_file.VARIABLE, kind)
        runtimes.append(runtime := hr.open_runtime(runtime_name))
        assert runtime.images.load(archive) == (NAME,)
        return runtime

    yield open_one
    for runtime in runtimes:
        runtime.close()
    for kind in ("directory", "squashfs"):
        monkeypatch.setenv("HYPERRUNTIME_IMAGES", str(tmp_path / kind))
        with hr.open_runtime(runtime_name) as runtime:
            for one in runtime.snapshots.list():
                runtime.snapshots.remove(one.name)
            for image in runtime.images.list():
                if image.id != "host":
                    runtime.images.remove(image.id)


def test_a_container_sees_the_files_of_the_unpacked_image(opened: Open, tmp_path: Path) -> None:
    with opened("directory").container(spec()) as container:
        unpacked = said(container, SHOWN)
    with opened("squashfs").container(spec()) as container:
        assert said(container, SHOWN) == unpacked
        assert said(container, "setpriv --version") != ""
        with container.fork() as child:
            assert said(child, "cat /home/ann/file") == "of ann\n"
    (image,) = (tmp_path / "squashfs/images").iterdir()
    assert sorted(os.listdir(image)) == ["meta.json", "rootfs", "rootfs.squashfs"]
    assert os.listdir(image / "rootfs") == []
    assert not (tmp_path / "squashfs/unpacked").exists()


def test_snapshots_know_what_the_file_has(opened: Open, tmp_path: Path) -> None:
    runtime = opened("squashfs")
    script = (
        "rm /home/ann/file; rm -r /shared; mkdir /shared; echo new >/shared/new; echo x >>/tool"
    )
    gone = "ls /home/ann /shared; cat /shared/new; wc -c </tool"
    with runtime.container(spec()) as container:
        first = container.snapshot()
        said(container, script)
        second = container.snapshot()
        shown = said(container, gone)
        assert "file\n" not in shown
        changes = {one.path: one.kind for one in second.diff(first)}
        assert changes["/home/ann/file"] == "removed"
        assert changes["/shared/new"] == "added"
        assert changes["/tool"] == "changed"
        assert {one.path for one in second.diff()} >= changes.keys()
        kept = container.snapshot(name="one-file")
        container.rollback(first)
        assert said(container, "cat /home/ann/file") == "of ann\n"
    with runtime.container(spec(), base="one-file") as container:
        assert said(container, gone) == shown
    assert {one.path for one in kept.diff()} >= changes.keys()
    kept.save(tmp_path / "saved.tar", "localhost/hyperruntime-test/saved:1")
    with pytest.raises(EngineError, match="is used by a snapshot"):
        runtime.images.remove(NAME)
    runtime.snapshots.remove("one-file")
    assert runtime.images.load(tmp_path / "saved.tar")
    saved = hr.ContainerSpec(
        image="localhost/hyperruntime-test/saved:1", limits=hr.Limits(pids=None)
    )
    with runtime.container(saved) as container:
        assert said(container, gone) == shown


def test_builds_and_saved_images_have_the_files(opened: Open, tmp_path: Path) -> None:
    runtime = opened("squashfs")
    context = tmp_path / "context"
    context.mkdir()
    (context / "Containerfile").write_text(f"FROM {NAME}\nRUN rm /home/ann/file && echo 1 >/new\n")
    built = "localhost/hyperruntime-test/built:1"
    runtime.images.build(built, containerfile=context / "Containerfile", context=context)
    runtime.images.save(built, tmp_path / "built.tar")
    runtime.images.remove(built)
    (name,) = runtime.images.load(tmp_path / "built.tar")
    with runtime.container(hr.ContainerSpec(image=name, limits=hr.Limits(pids=None))) as container:
        assert said(container, "cat /new; ls /home/ann; stat -c %a /tool") == "1\nlink\n4755\n"


def test_without_a_program_that_mounts_it_the_file_is_unpacked(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = opened("squashfs")
    with runtime.container(spec()) as container:
        shown = said(container, SHOWN)

    def without(program: str) -> str | None:
        return None if program in hidden else find_program(program)

    hidden = {one_file.PROGRAM}
    monkeypatch.setattr(one_file, "find_program", without)
    with runtime.container(spec()) as container:
        assert said(container, SHOWN) == shown
    assert (tmp_path / "squashfs/unpacked").exists()
    hidden.add("mksquashfs")
    runtime.images.remove(NAME)
    with pytest.raises(ImageError, match="no `mksquashfs` on PATH; install squashfs-tools"):
        opened("squashfs")
    with pytest.raises(SpecError, match="one of directory, squashfs"):
        opened("erofs")
