"""The images of a driver that starts containers from a directory."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import (
    EngineError,
    ImageError,
    ImageNotFoundError,
    ImagePullError,
    UnsupportedOptionError,
)
from hyperruntime.host.temporary import scratch_directory, why_unusable
from hyperruntime.layers.images import ImageSource, StoredImages, pull_args
from hyperruntime.layers.records import Records
from hyperruntime.layers.store import ROOTFS, Store
from tests.doubles.layers import Oci, docker_archive, entry, layer

DIGEST = "a" * 64
LAYER = layer(["bin/", entry("bin/sh", text="shell", mode=0o755)])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "images of mine")


@pytest.fixture
def images(store: Store) -> StoredImages:
    return StoredImages("test", store=store)


def fill(directory: Path) -> None:
    (directory / ROOTFS).mkdir()


def test_a_loaded_image_is_started_saved_and_loaded_again(
    images: StoredImages, tmp_path: Path
) -> None:
    own: dict[str, Any] = {"Env": ["A=1"], "WorkingDir": "/w", "User": "u"}
    assert images.load(docker_archive(tmp_path / "a.tar", LAYER, **own)) == ("x:1",)
    source = images.source("x:1")
    assert source == ImageSource(files=source.files, env={"A": "1"}, workdir="/w", user="u")
    assert Path(source.files, "bin/sh").read_text() == "shell"
    (image,) = images.list()
    assert (image.references, image.size_bytes > 5) == (("x:1",), True)
    images.save("x:1", tmp_path / "saved.tar")
    other = StoredImages("other", store=Store(tmp_path / "other"))
    assert other.load(tmp_path / "saved.tar") == ("x:1",)
    again = other.source("x:1")
    assert (again.env, again.workdir, again.user) == (source.env, source.workdir, source.user)
    assert Path(again.files, "bin/sh").stat().st_mode == Path(source.files, "bin/sh").stat().st_mode


def test_a_root_file_system_becomes_an_image(images: StoredImages, tmp_path: Path) -> None:
    (tmp_path / "root.tar").write_bytes(LAYER)
    identifier = images.load_rootfs(tmp_path / "root.tar", "localhost/x")
    assert [image.id for image in images.list()] == [identifier]
    assert Path(images.source("localhost/x").files, "bin/sh").read_text() == "shell"
    (tmp_path / "no.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(ImageError, match=r"no\.tar cannot be loaded as an image"):
        images.load_rootfs(tmp_path / "no.tar", "localhost/y")


@pytest.mark.parametrize("content", [b"", b"no tar at all", b"\0" * 4096])
def test_a_file_that_is_not_an_archive_is_rejected(
    images: StoredImages, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(ImageError, match="it is not an image archive"):
        images.load(tmp_path / "x.tar")


def test_a_refused_archive_leaves_nothing(
    images: StoredImages, store: Store, tmp_path: Path
) -> None:
    hostile = layer(["a/", entry("a/b", text="x" * 1000), "../outside"])
    with pytest.raises(ImageError, match=r"a\.tar cannot be loaded as an image: its member"):
        images.load(docker_archive(tmp_path / "a.tar", LAYER, hostile))
    assert images.list() == ()
    assert {path.name for path in store.root.iterdir()} == {"locks"}
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", store.root.name}


def test_an_image_is_removed_with_its_last_reference(store: Store, images: StoredImages) -> None:
    store.make(DIGEST, "localhost/x:1", fill)
    store.make(DIGEST, "localhost/x:2", fill)
    images.remove("localhost/x:1")
    assert images.exists("localhost/x:2")
    images.remove("localhost/x:2")
    assert images.list() == ()
    assert [path.parent.name for path in store.root.glob("*/" + DIGEST)] == ["locks"]
    with pytest.raises(ImageNotFoundError, match="image list"):
        images.remove("localhost/x:2")


def test_an_image_that_a_container_of_any_engine_uses_is_not_removed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    images = StoredImages("test", store)
    store.make(DIGEST, "localhost/x:1", fill)
    store.make(DIGEST, "localhost/x:2", fill)
    tree = images.source("localhost/x:2").files
    Records("another").write("its-user", "localhost/x:2", tree, {}, os.getpid(), "/files")
    images.remove("localhost/x:1")
    with pytest.raises(EngineError, match="used by the container its-user"):
        images.remove("localhost/x:2")


def test_a_sif_file_of_the_user_is_an_image_and_is_never_removed(
    store: Store, tmp_path: Path
) -> None:
    images = StoredImages("test", store=store)
    sif = tmp_path / "mine.sif"
    assert not images.exists(str(sif))
    with pytest.raises(ImageNotFoundError, match="no file or directory"):
        images.source(str(sif))
    sif.write_bytes(b"sif")
    assert images.exists(str(sif))
    with pytest.raises(EngineError, match="a file of yours"):
        images.remove(str(sif))
    assert sif.exists()


def test_plain_http_is_used_only_for_registries_on_this_machine(tmp_path: Path) -> None:
    assert "--src-tls-verify=false" in pull_args("localhost:5000/a", tmp_path)
    assert "--src-tls-verify=false" not in pull_args("localhost.example.org/a", tmp_path)


def skopeo(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program of this name on PATH."""
    (folder / "skopeo").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "skopeo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_an_image_is_pulled_by_skopeo(
    images: StoredImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oci = Oci()
    saved = oci.write(tmp_path / "saved.tar", {"digest": oci.manifest(LAYER, WorkingDir="/w")})
    script = f'echo "$@"; for last; do :; done; cp {shlex.quote(str(saved))} "${{last#*:}}"'
    skopeo(tmp_path, monkeypatch, script)
    lines: list[str] = []
    identifier = images.pull("example.org/x", on_output=lines.append)
    assert lines[0].startswith("copy docker://example.org/x:latest oci-archive:")
    assert images.source("example.org/x").workdir == "/w"
    assert images.pull("example.org/x", on_output=lines.append) == identifier
    skopeo(tmp_path, monkeypatch, 'echo "manifest unknown" >&2; exit 1')
    with pytest.raises(ImagePullError, match="has no such image or tag"):
        images.pull("example.org/y", on_output=lines.append)


def test_a_pull_without_a_program_for_it_is_refused_with_the_next_step(
    images: StoredImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedOptionError, match=r"images\.pull: .* `skopeo`.*; install it"):
        images.pull("example.org/x", on_output=print)


def test_the_scratch_directory_is_on_a_file_system_that_allows_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Builds and loads failed with an unclear error if TMPDIR was on a file system mounted with
    noexec.
    """
    look = os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        status = look(path)
        flags = (
            status.f_flag | os.ST_NOEXEC if path == str(tmp_path) else status.f_flag & ~os.ST_NOEXEC
        )
        return os.statvfs_result((*status[:8], flags, status.f_namemax))

    for name in ("APPTAINER_TMPDIR", "SCRATCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert scratch_directory() == str(tmp_path)
    monkeypatch.setattr(os, "statvfs", statvfs)
    assert "noexec" in why_unusable(str(tmp_path))
    assert scratch_directory() == "/tmp"
