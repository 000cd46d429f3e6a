"""The store of images: one image for all callers, and nothing left of a killed one."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hyperruntime.errors import ImageError, StorageFullError
from hyperruntime.host.process import run_process
from hyperruntime.layers.config import ImageConfig
from hyperruntime.layers.images import StoredImages
from hyperruntime.layers.store import Store

DIGEST = "a" * 64
OTHER = "b" * 64


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "images of mine")


def fill(directory: Path) -> None:
    (directory / "rootfs").mkdir()
    (directory / "rootfs" / "file").write_bytes(b"text")


def left_behind(store: Store) -> list[str]:
    return [path.name for path in store.root.iterdir() if path.name.startswith(".new-")]


def test_an_image_is_found_only_by_its_exact_reference_or_identifier(store: Store) -> None:
    store.make(DIGEST, "localhost/a/b", fill, ImageConfig(workdir="/w"))
    for name in ("localhost/a/b", "localhost/a/b:latest", DIGEST, f"sha256:{DIGEST}"):
        found = store.find(name)
        assert found is not None
        assert (found.references, found.config.workdir) == (("localhost/a/b:latest",), "/w")
    for almost in ("localhost/a", "b", "localhost/a/b:lates", "localhost/a/b:latest2", DIGEST[:12]):
        assert store.find(almost) is None


def test_a_full_disk_at_the_end_leaves_no_image(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StorageFullError, match=r"image store .* cannot be written"):
        store.make(DIGEST, "localhost/a", fill)
    assert store.entries() == ()
    assert left_behind(store) == []


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
    code = "import os, sys; from pathlib import Path; from hyperruntime.layers.store import Store\n"
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


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Say that the store is on a network file system; return the place on this machine's disk."""
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path))
    monkeypatch.setattr("hyperruntime.layers.store.file_system", lambda path: "nfs")
    return tmp_path / f"hyperruntime-{os.getuid()}-images"


def test_a_store_on_a_network_file_system_keeps_one_file_and_each_machine_a_tree(
    store: Store, network: Path
) -> None:
    store.make(DIGEST, "localhost/x", fill)
    (entry,) = store.entries()
    assert {path.name for path in entry.path.iterdir()} == {"meta.json", "rootfs.tar.gz"}
    assert store.tree(entry) == network / DIGEST
    assert entry.size_bytes == 4
    shutil.rmtree(network / DIGEST)  # as on another machine
    assert (store.tree(entry) / "file").read_bytes() == b"text"
    assert left_behind(store) == []
    assert [path.name for path in network.iterdir()] == [DIGEST]
    store.untag(entry, "localhost/x")
    assert (list(network.iterdir()), store.entries()) == ([], ())


@pytest.mark.parametrize("planted", ["a link", "open to others"])
def test_images_are_not_run_from_a_directory_that_another_user_can_write(
    store: Store, tmp_path: Path, network: Path, planted: str
) -> None:
    real = tmp_path / "elsewhere" if planted == "a link" else network
    (real / DIGEST).mkdir(parents=True)
    real.chmod(0o777 if planted == "open to others" else 0o700)
    if planted == "a link":
        network.symlink_to(real)
    store.make(DIGEST, "localhost/x", fill)
    (entry,) = store.entries()
    assert store.tree(entry) == entry.path / "rootfs"


def test_a_sif_is_kept_where_there_is_no_space_to_unpack_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime.layers.store._UNPACKED_FACTOR", 1 << 60)
    sif = tmp_path / "mine.sif"
    sif.write_bytes(b"#!launch\nSIF_MAGIC" + bytes(100))
    images = StoredImages("test", store=store)
    (name,) = images.load(sif)
    (entry,) = store.entries()
    assert store.tree(entry).read_bytes() == sif.read_bytes()
    with pytest.raises(ImageError, match="no space to unpack"):
        images.source(name)
    images.starts_sif = True
    assert images.source(name).files == str(entry.path / "image.sif")


def test_others_cannot_reach_the_files_of_an_image(store: Store) -> None:
    """They may be set-user-ID programs of another system, and belong to this user here."""
    store.make(DIGEST, "localhost/x", fill)
    assert stat.S_IMODE((store.root / "images").stat().st_mode) == 0o700


def test_a_reference_moves_to_the_newest_image(store: Store) -> None:
    store.make(DIGEST, "localhost/x", fill)
    store.make(OTHER, "localhost/x", fill)
    found = store.find("localhost/x")
    assert found is not None
    assert found.id == OTHER


def test_an_image_stays_if_it_gets_a_new_reference_during_untag(store: Store) -> None:
    store.make(DIGEST, "localhost/x:1", fill)
    seen = store.find("localhost/x:1")
    assert seen is not None
    store.make(DIGEST, "localhost/x:2", fill)
    store.untag(seen, "localhost/x:1")
    left = store.find("localhost/x:2")
    assert left is not None
    assert (left.references, left.path.exists()) == (("localhost/x:2",), True)
