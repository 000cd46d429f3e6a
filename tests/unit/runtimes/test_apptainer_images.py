"""Apptainer's images without Apptainer: the store, archives, and pull arguments."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hyperruntime.errors import EngineError, ImageError, ImageNotFoundError
from hyperruntime.host.process import run_process
from hyperruntime_apptainer.archive import extract_sif, read_archive, write_archive, write_single
from hyperruntime_apptainer.images import ApptainerImages, pull_args
from hyperruntime_apptainer.scratch import scratch_directory, why_unusable
from hyperruntime_apptainer.store import Store

DIGEST, OTHER = "a" * 64, "b" * 64


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "images of mine")


def fill(directory: Path) -> None:
    (directory / "image.sif").write_bytes(b"sif")
    (directory / "rootfs").mkdir()


def left_behind(store: Store) -> list[str]:
    return [path.name for path in store.root.iterdir() if path.name.startswith(".new-")]


def test_an_image_is_found_only_by_its_exact_reference_or_identifier(store: Store) -> None:
    store.make(DIGEST, "localhost/a/b", fill, workdir="/w")
    for name in ("localhost/a/b", "localhost/a/b:latest", DIGEST, f"sha256:{DIGEST}"):
        found = store.find(name)
        assert found is not None
        assert (found.references, found.workdir) == (("localhost/a/b:latest",), "/w")
    for almost in ("localhost/a", "b", "localhost/a/b:lates", "localhost/a/b:latest2", DIGEST[:12]):
        assert store.find(almost) is None


def test_concurrent_callers_make_an_image_only_once(store: Store) -> None:
    made = []

    def slowly(directory: Path) -> None:
        made.append(directory)
        fill(directory)

    with ThreadPoolExecutor(8) as threads:
        names = [f"localhost/x:{number}" for number in range(8)]
        list(threads.map(lambda name: Store(store.root).make(DIGEST, name, slowly), names))
    assert len(made) == 1
    (entry,) = store.entries()
    assert set(entry.references) == set(names)


def test_a_failed_image_leaves_no_entry(store: Store) -> None:
    def fail(directory: Path) -> None:
        fill(directory)
        raise ImageError("no")

    with pytest.raises(ImageError):
        store.make(DIGEST, "localhost/x", fail)
    assert store.entries() == ()
    assert left_behind(store) == []
    store.make(DIGEST, "localhost/x", fill)
    assert store.find("localhost/x") is not None


def test_the_next_make_removes_files_of_a_killed_one(store: Store) -> None:
    code = (
        "import os, sys; from pathlib import Path; from hyperruntime_apptainer.store import Store\n"
    )
    code += (
        "Store(Path(sys.argv[1])).make('b' * 64, 'localhost/x', lambda directory: "
        "os.kill(os.getpid(), 9))"
    )
    assert run_process([sys.executable, "-c", code, str(store.root)]).exit_code == -signal.SIGKILL
    assert len(left_behind(store)) == 1
    with store.scratch() as in_use:
        store.make(DIGEST, "localhost/x", fill)
        assert left_behind(store) == [in_use.name]
    assert left_behind(store) == []


def test_files_of_a_killed_removal_do_not_block_a_make(store: Store) -> None:
    store.make(DIGEST, "localhost/x", fill)
    (store.root / "images" / DIGEST / "meta.json").unlink()
    assert store.find("localhost/x") is None
    store.make(DIGEST, "localhost/x", fill)
    assert store.find("localhost/x") is not None


@pytest.mark.parametrize("planted", ["a link", "open to others", "our own"])
def test_images_are_not_run_from_a_directory_that_another_user_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path))
    monkeypatch.setattr("hyperruntime_apptainer.store.file_system", lambda path: "nfs")
    place = tmp_path / f"hyperruntime-{os.getuid()}-images"
    real = tmp_path / "elsewhere" if planted == "a link" else place
    (real / DIGEST).mkdir(parents=True)
    real.chmod(0o777 if planted == "open to others" else 0o700)
    if planted == "a link":
        place.symlink_to(real)
    store = Store(tmp_path / "images")
    (store.root / "unpacked" / DIGEST).mkdir(parents=True)
    expected = place if planted == "our own" else store.root / "unpacked"
    assert store.unpacked(DIGEST, tmp_path / "image.sif") == expected / DIGEST


def test_a_reference_moves_to_the_newest_image(store: Store) -> None:
    store.make(DIGEST, "localhost/x", fill)
    store.make(OTHER, "localhost/x", fill)
    found = store.find("localhost/x")
    assert found is not None
    assert found.id == OTHER


def test_an_image_is_removed_with_its_last_reference(store: Store) -> None:
    images = ApptainerImages(store)
    store.make(DIGEST, "localhost/x:1", fill)
    store.make(DIGEST, "localhost/x:2", fill)
    images.remove("localhost/x:1")
    assert images.exists("localhost/x:2")
    images.remove("localhost/x:2")
    assert images.list() == ()
    assert [path.parent.name for path in store.root.glob("*/" + DIGEST)] == ["locks"]
    with pytest.raises(ImageNotFoundError, match="image list"):
        images.remove("localhost/x:2")


def test_an_image_stays_if_it_gets_a_new_reference_during_untag(store: Store) -> None:
    store.make(DIGEST, "localhost/x:1", fill)
    seen = store.find("localhost/x:1")
    assert seen is not None
    store.make(DIGEST, "localhost/x:2", fill)
    store.untag(seen, "localhost/x:1")
    left = store.find("localhost/x:2")
    assert left is not None
    assert (left.references, left.sif.exists()) == (("localhost/x:2",), True)


def test_a_sif_file_of_the_user_is_an_image_and_is_never_removed(
    store: Store, tmp_path: Path
) -> None:
    images = ApptainerImages(store)
    sif = tmp_path / "mine.sif"
    assert not images.exists(str(sif))
    with pytest.raises(ImageNotFoundError, match="no file or directory"):
        images.source(str(sif))
    sif.write_bytes(b"sif")
    assert images.exists(str(sif))
    with pytest.raises(EngineError, match="a file of yours"):
        images.remove(str(sif))
    assert sif.exists()


def add(archive: tarfile.TarFile, name: str, content: object) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
    return hashlib.sha256(data).hexdigest()


def docker_archive(path: Path, *names: str) -> dict[str, str]:
    ids: dict[str, str] = {}
    entries: list[dict[str, object]] = []
    with tarfile.open(path, "w") as archive:
        for name in names:
            config = {"config": {"WorkingDir": f"/{name.partition(':')[2]}"}}
            ids[name] = add(archive, f"{len(entries)}.json", config)
            entries.append({"Config": f"{len(entries)}.json", "RepoTags": [name], "Layers": []})
        add(archive, "manifest.json", entries)
    return ids


def test_a_docker_archive_is_read_and_split_into_single_images(tmp_path: Path) -> None:
    ids = docker_archive(tmp_path / "a.tar", "x:1", "y:2")
    one, two = read_archive(tmp_path / "a.tar")
    assert (one.reference, one.id, one.workdir) == ("x:1", ids["x:1"], "/1")
    write_single(two, tmp_path / "one.tar")
    (alone,) = read_archive(tmp_path / "one.tar")
    assert (alone.reference, alone.id, alone.entry) == ("y:2", ids["y:2"], None)


def test_a_written_archive_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "layer.tar").write_bytes(b"layer")
    (tmp_path / "image.sif").write_bytes(sif := b"#!launch\nSIF_MAGIC" + bytes(100))
    write_archive(
        tmp_path / "a.tar", "localhost/x:1", tmp_path / "layer.tar", "/w", tmp_path / "image.sif"
    )
    (image,) = read_archive(tmp_path / "a.tar")
    assert (image.reference, image.workdir, image.kind, image.entry) == (
        "localhost/x:1",
        "/w",
        "docker-archive",
        None,
    )
    extract_sif(image, tmp_path / "copy.sif")
    assert (image.has_sif, (tmp_path / "copy.sif").read_bytes()) == (True, sif)
    (tmp_path / "image.sif").write_bytes(b"no SIF")
    write_archive(
        tmp_path / "a.tar", "localhost/x:1", tmp_path / "layer.tar", "/w", tmp_path / "image.sif"
    )
    assert not read_archive(tmp_path / "a.tar")[0].has_sif


def test_an_oci_archive_is_read(tmp_path: Path) -> None:
    path = tmp_path / "Name.tar"
    with tarfile.open(path, "w") as archive:
        config = {"config": {"WorkingDir": "/w"}}
        digest = hashlib.sha256(json.dumps(config).encode()).hexdigest()
        add(archive, f"blobs/sha256/{digest}", config)
        manifest = {"config": {"digest": f"sha256:{digest}"}}
        pointer = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
        add(archive, f"blobs/sha256/{pointer}", manifest)
        add(archive, "index.json", {"manifests": [{"digest": f"sha256:{pointer}"}]})
    (image,) = read_archive(path)
    assert (image.reference, image.id, image.workdir) == ("localhost/name:latest", digest, "/w")
    assert image.kind == "oci-archive"


def test_plain_http_is_used_only_for_registries_on_this_machine() -> None:
    assert "--no-https" in pull_args("localhost:5000/a", "/x.sif")
    assert "--no-https" not in pull_args("localhost.example.org/a", "/x.sif")


@pytest.mark.parametrize("content", [b"", b"no tar at all", b"\0" * 4096])
def test_a_file_that_is_not_an_archive_is_rejected(
    store: Store, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(ImageError, match="it is not an image archive"):
        ApptainerImages(store).load(tmp_path / "x.tar")


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
