"""Archives of other engines, and hostile ones."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperruntime.errors import HyperRuntimeError, ImageError
from hyperruntime.layers import archive as archives
from hyperruntime.layers.archive import ENV_FILE, ImageArchive, SavedImage, pack, write_archive
from hyperruntime.layers.blobs import archive_errors
from hyperruntime.layers.config import ImageConfig
from tests.doubles.layers import Oci, config, digest, docker_archive, entry, layer, write_tar

LOWER = layer(["a/", entry("a/1", text="one"), entry("gone")])
UPPER = layer([".wh.gone", entry("a/2", text="two")])
AMD = {"os": "linux", "architecture": "amd64"}
ARM = {"os": "linux", "architecture": "arm64"}


@pytest.fixture(autouse=True)
def amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def read(path: Path) -> tuple[SavedImage, ...]:
    with archive_errors(path, path.parent), ImageArchive(path, path.parent) as opened:
        return opened.images


def unpacked(path: Path) -> Path:
    """Unpack the first image of an archive and return its tree."""
    root = path.parent / "root"
    with archive_errors(path, path.parent), ImageArchive(path, path.parent) as opened:
        opened.unpack(opened.images[0], root)
    return root


def check(root: Path) -> None:
    assert ((root / "a/1").read_text(), (root / "a/2").read_text()) == ("one", "two")
    assert not (root / "gone").exists()


def test_an_archive_of_docker_save_is_read(tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "Env": ["A=1"],
        "WorkingDir": "/w",
        "User": "u",
        "Cmd": ["c"],
        "Entrypoint": ["e"],
    }
    path = docker_archive(tmp_path / "a.tar", LOWER, UPPER, **own)
    (image,) = read(path)
    assert (image.reference, image.id) == ("x:1", digest(config([LOWER, UPPER], **own))[7:])
    known = ImageConfig(env={"A": "1"}, workdir="/w", user="u", cmd=("c",), entrypoint=("e",))
    assert image.config == known
    check(unpacked(path))
    assert "A" in (tmp_path / "root" / ENV_FILE).read_text()


def test_two_names_for_one_image_and_layers_that_are_links(tmp_path: Path) -> None:
    text = config([LOWER, UPPER])
    manifest = [{"Config": "c.json", "RepoTags": ["x:1", "y:2"], "Layers": ["1/l.tar", "2/l.tar"]}]
    files = {"c.json": text, "manifest.json": json.dumps(manifest).encode(), "2/l.tar": UPPER}
    path = write_tar(tmp_path / "a.tar", {**files, "real.tar": LOWER})
    with tarfile.open(path, "a") as tar:
        tar.addfile(entry("1/l.tar", "symlink", "../real.tar"))
    one, two = read(path)
    assert (one.reference, two.reference, one.id) == ("x:1", "y:2", two.id)
    check(unpacked(path))


@pytest.mark.parametrize("nested", [False, True])
def test_the_image_of_this_machine_is_taken_from_an_index(tmp_path: Path, nested: bool) -> None:
    oci = Oci()
    attested = {
        "digest": oci.blob(b"no manifest"),
        "platform": {"os": "unknown", "architecture": "unknown"},
        "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
    }
    arm = {"digest": oci.manifest(layer(["arm"])), "platform": ARM}
    amd = {"digest": oci.manifest(LOWER, UPPER, WorkingDir="/w"), "platform": AMD}
    entries = [attested, arm, amd]
    if nested:
        name = {"org.opencontainers.image.ref.name": "tag"}
        entries = [{"digest": oci.blob({"manifests": entries}), "annotations": name}]
    path = oci.write(tmp_path / "Name.tar", *entries)
    (image,) = read(path)
    assert image.reference == f"localhost/name:{'tag' if nested else 'latest'}"
    assert image.config.workdir == "/w"
    check(unpacked(path))


def test_an_index_without_an_image_for_this_machine_says_so(tmp_path: Path) -> None:
    oci = Oci()
    arm = {"digest": oci.manifest(LOWER), "platform": ARM}
    other = {"digest": oci.manifest(UPPER), "platform": {"os": "windows", "architecture": "amd64"}}
    path = oci.write(tmp_path / "a.tar", arm, other)
    with pytest.raises(ImageError, match=r"no image for linux/amd64, only for linux/arm64, windo"):
        read(path)


def test_several_images_of_one_archive_are_told_apart_by_their_names(tmp_path: Path) -> None:
    oci = Oci()
    entries = [
        {"digest": oci.manifest(LOWER), "annotations": {"io.containerd.image.name": "b.io/x:1"}},
        {"digest": oci.manifest(UPPER), "annotations": {"io.containerd.image.name": "b.io/y:1"}},
    ]
    names = [image.reference for image in read(oci.write(tmp_path / "a.tar", *entries))]
    assert names == ["b.io/x:1", "b.io/y:1"]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_archive_is_read(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    path = docker_archive(tmp_path / "a.tar", LOWER, UPPER)
    path.write_bytes(compress(path.read_bytes()))
    check(unpacked(path))


def zstd_archive(path: Path) -> Path:
    """Write an archive whose layer is a frame of zstd with one raw block (RFC 8878)."""
    oci = Oci()
    size = len(LOWER)
    blocks = b"".join(
        ((min(1 << 16, size - at) << 3) | (at + (1 << 16) >= size)).to_bytes(3, "little")
        + LOWER[at : at + (1 << 16)]
        for at in range(0, size, 1 << 16)
    )
    frame = b"\x28\xb5\x2f\xfd\xa0" + size.to_bytes(4, "little") + blocks
    layers = [{"digest": oci.blob(frame)}]
    manifest = {"config": {"digest": oci.blob(config([LOWER]))}, "layers": layers}
    return oci.write(path, {"digest": oci.blob(manifest)})


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the program zstd")
def test_a_layer_of_zstd_is_read_by_the_program(tmp_path: Path) -> None:
    assert (unpacked(zstd_archive(tmp_path / "a.tar")) / "a/1").read_text() == "one"
    assert not list(tmp_path.glob("compressed*"))


def test_a_layer_of_zstd_without_the_program_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = zstd_archive(tmp_path / "a.tar")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match="no `zstd` is on PATH; install it"):
        unpacked(path)


def damage(oci: Oci, data: bytes) -> None:
    """Replace the content of a blob under its old name."""
    oci.files[f"blobs/{digest(data).replace(':', '/')}"] = gzip.compress(UPPER)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    oci = Oci()
    image = {"digest": oci.manifest(LOWER)}
    damage(oci, gzip.compress(LOWER, mtime=0))
    with pytest.raises(ImageError, match=f"{digest(LOWER)} is damaged"):
        unpacked(oci.write(tmp_path / "a.tar", image))
    oci = Oci()
    image = {"digest": oci.manifest(LOWER)}
    damage(oci, config([LOWER]))
    with pytest.raises(ImageError, match=f"{digest(config([LOWER]))} is damaged"):
        read(oci.write(tmp_path / "b.tar", image))


@pytest.mark.parametrize("cut", [0.1, 0.3, 0.5])
def test_an_archive_that_ends_early_is_an_error(tmp_path: Path, cut: float) -> None:
    path = docker_archive(tmp_path / "a.tar", LOWER, UPPER)
    whole = path.read_bytes()
    for data in (whole, gzip.compress(whole)):
        path.write_bytes(data[: int(len(data) * cut)])
        with pytest.raises(ImageError, match=r"a\.tar cannot be loaded as an image: "):
            unpacked(path)
        shutil.rmtree(tmp_path / "root", ignore_errors=True)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"index.json": b"{"},
        {"index.json": b"[]"},
        {"index.json": b'{"manifests": [{"digest": "sha256:../../../../etc/passwd"}]}'},
        {"index.json": b'{"manifests": []}'},
        {"manifest.json": b'[{"Config": "/etc/passwd", "RepoTags": ["x"], "Layers": []}]'},
        {"manifest.json": b"[" * 100_000},
        {"manifest.json": b'[{"Config": 7}]'},
        {"manifest.json": b'[{"Config": "manifest.json", "RepoTags": ["x"], "Layers": ["y"]}]'},
    ],
)
def test_an_invalid_archive_is_refused(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(ImageError, match=r"a\.tar cannot be loaded as an image: it"):
        unpacked(write_tar(tmp_path / "a.tar", files))
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


PARTS = st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=40))


@pytest.mark.parametrize("form", ["docker", "oci"])
@settings(max_examples=60, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=4))
def test_an_archive_with_changed_bytes_is_an_image_or_an_error(
    form: str, changes: list[tuple[float, bytes]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.tar")
        if form == "docker":
            docker_archive(path, LOWER, UPPER)
        else:
            oci = Oci()
            oci.write(path, {"digest": oci.manifest(LOWER, UPPER)})
        data = bytearray(path.read_bytes())
        for at, new in changes:
            place = int(at * len(data))
            data[place : place + len(new)] = new
        path.write_bytes(data)
        with suppress(ImageError):
            check(unpacked(path))
        assert {one.name for one in Path(folder).iterdir()} <= {"a.tar", "root", "archive.tar"}


def test_indexes_of_indexes_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oci = Oci()
    pointer = {"digest": oci.manifest(LOWER), "platform": ARM}
    for _ in range(3):
        pointer = {"digest": oci.blob({"manifests": [pointer] * 20})}
    with pytest.raises(ImageError, match="too many other indexes"):
        read(oci.write(tmp_path / "a.tar", pointer))


def test_links_of_an_archive_lead_to_its_own_members_and_end(tmp_path: Path) -> None:
    manifest = [{"Config": "c.json", "RepoTags": ["x"], "Layers": ["l.tar"]}]
    files = {"c.json": config([LOWER]), "manifest.json": json.dumps(manifest).encode()}
    for target in ("/etc/passwd", "../../../../etc/passwd", "l.tar"):
        path = write_tar(tmp_path / "a.tar", files)
        with tarfile.open(path, "a") as tar:
            tar.addfile(entry("l.tar", "symlink", target))
        with pytest.raises(ImageError, match=r"its layer l\.tar is missing"):
            unpacked(path)
        shutil.rmtree(tmp_path / "root")


def test_a_written_archive_is_read_back(tmp_path: Path) -> None:
    known = ImageConfig(env={"A": "a'b\n"}, workdir="/w", user="1", cmd=("x",))
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d/file").write_text("text")
    (tree / "link").symlink_to("/nowhere")
    write_archive(tmp_path / "a.tar", "localhost/x:1", pack(tree, tmp_path / "l.tar"), known)
    (image,) = read(tmp_path / "a.tar")
    assert (image.reference, image.config) == ("localhost/x:1", known)
    root = unpacked(tmp_path / "a.tar")
    assert (root / "d/file").read_text() == "text"
    assert (root / "link").is_symlink()


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archives, "unpack_layers", full)
    with pytest.raises(HyperRuntimeError, match="cannot be written: No space left on device"):
        unpacked(docker_archive(tmp_path / "a.tar", LOWER))


def test_the_script_of_the_variables_cannot_be_left_by_a_value(tmp_path: Path) -> None:
    raw = {"Env": ["PATH=/x", "A='; touch x; '$(touch y)`touch z`", "bad;name=1", "=empty", 7]}
    config = ImageConfig.from_oci(raw)
    assert config.to_script().splitlines() == [
        "#!/bin/sh",
        "export PATH=/x",
        """[ -n "${A:-}" ] || export A=''"'"'; touch x; '"'"'$(touch y)`touch z`'""",
    ]
    odd = {"Env": "x", "WorkingDir": "relative", "User": 7, "Labels": ["a"], "Shell": "sh"}
    assert ImageConfig.from_oci(odd) == ImageConfig()
    assert ImageConfig.from_oci({"OnBuild": [1, "RUN x"]}).more == {"OnBuild": ["RUN x"]}


def test_a_tree_whose_files_get_more_names_meanwhile_is_packed(tmp_path: Path) -> None:
    """An image that is built over it shares its files by hard links."""
    (tree := tmp_path / "tree").mkdir()
    (tree / "file").write_bytes(bytes(10_000_000))
    link = f"--checkpoint-action=exec=ln -f {tree}/file {tmp_path}/name"
    tar = pack(tree, tmp_path / "a.tar", "--checkpoint=10", link)
    assert (tmp_path / "name").stat().st_nlink == 2
    with tarfile.open(tar) as packed:
        assert packed.getmember("./file").size == 10_000_000


def test_a_tree_that_cannot_be_packed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="cannot be written: tar"):
        pack(tmp_path / "missing", tmp_path / "a.tar")
