"""Read and write image archives, and tars of a root file system.

An image archive is an OCI archive (OCI image layout 1.0) or of the form of ``docker save``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import ImageError
from hyperruntime.host.engine_limits import engine_call
from hyperruntime.host.process import run_process
from hyperruntime.json_values import parse_json
from hyperruntime_apptainer.args import NAME, environment
from hyperruntime_apptainer.store import make_usable, sif_objects, unpack

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_NAME = "org.opencontainers.image.ref.name"
_CONTAINERD_NAME = "io.containerd.image.name"
_SIF = "hyperruntime-image.sif"


@attrs.frozen(kw_only=True)
class SavedImage:
    """One image of an archive.

    Attributes:
        path: the archive.
        reference: the image's name.
        id: the digest of its configuration; engines use it as the image's identifier.
        workdir: the working directory of its commands.
        kind: Apptainer's name for the archive's format: ``oci-archive`` or ``docker-archive``.
        entry: its entry in the index or manifest if the archive holds several images (Apptainer
            cannot select one).
        has_sif: whether the archive also has the image as a SIF, which need not be made then.
    """

    path: Path
    reference: str
    id: str
    workdir: str
    kind: str
    entry: Mapping[str, Any] | None = None
    has_sif: bool = False


def read_archive(path: Path) -> tuple[SavedImage, ...]:
    """Return the images of an archive; empty if the file is not an image archive."""
    try:
        with tarfile.open(path) as tar:
            if "manifest.json" in tar.getnames():
                return tuple(_docker_images(path, tar))
            return tuple(_oci_images(path, tar))
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError):
        return ()


def write_single(image: SavedImage, path: Path) -> None:
    """Write a copy of an image's archive that lists only this image; the layers of the others stay
    in it, unused.

    Args:
        image: an image whose ``entry`` is set.
        path: the archive to write.
    """
    index = (
        {"schemaVersion": 2, "manifests": [image.entry]}
        if image.kind == "oci-archive"
        else [image.entry]
    )
    name = "index.json" if image.kind == "oci-archive" else "manifest.json"
    with tarfile.open(image.path) as source, tarfile.open(path, "w") as target:
        for member in source:
            if member.name != name:
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
        _add(target, name, json.dumps(index).encode())


def write_archive(path: Path, reference: str, layer: Path, workdir: str, sif: Path) -> None:
    """Write an image of one layer in the format of ``docker save``, and its SIF beside it, which
    other engines ignore.

    Args:
        path: the archive to write.
        reference: the image's name.
        layer: an uncompressed tar file of the root file system.
        workdir: the working directory of its commands.
        sif: the same files as a SIF.

    Source: Docker image specification 1.2.
    """
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"WorkingDir": workdir},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{file_digest(layer)}"]},
    }
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        tar.add(layer, "layer.tar")
        tar.add(sif, _SIF)
        _add(tar, name, text)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def extract_sif(image: SavedImage, sif: Path) -> None:
    """Write the SIF of an archive to a file.

    Raises:
        ImageError: the archive cannot be read, or the file not be written.
    """
    try:
        with tarfile.open(image.path) as tar, open(sif, "xb") as file:
            if (member := tar.extractfile(_SIF)) is not None:
                shutil.copyfileobj(member, file, 1 << 20)
    except (OSError, tarfile.TarError) as error:
        raise ImageError(
            f"{image.path} cannot be loaded: {error}; copy it again, or free space"
        ) from error


def pack(sif: Path, directory: Path) -> Path:
    """Write the files of a SIF to a tar, where they belong to root; return the path of the tar.

    Args:
        sif: the file to unpack.
        directory: takes the unpacked files and the tar.

    Raises:
        ImageError: the SIF cannot be unpacked, or the tar cannot be written.
    """
    rootfs = directory / "rootfs"
    tar = directory / "rootfs.tar"
    unpack(sif, rootfs)
    args = ["tar", "--create", "--file", str(tar), "--owner=0", "--group=0", "--numeric-owner"]
    result = run_process(
        [*args, "--directory", str(rootfs), "."], cwd="/", env=environment(os.environ)
    )
    if result.exit_code != 0:
        raise ImageError(f"{tar} cannot be written: {result.error_text}; free space there")
    return tar


def extract(tar: Path, rootfs: Path) -> None:
    """Unpack a tar as files of this user, without ``/dev``: a container gets its own.

    Raises:
        ImageError: the tar cannot be unpacked.
    """
    rootfs.mkdir()
    excluded = ["--exclude=./dev/*", "--exclude=dev/*"]
    args = [
        "tar",
        "--extract",
        "--file",
        str(tar),
        "--directory",
        str(rootfs),
        "--anchored",
        *excluded,
    ]
    args += ["--no-same-owner", "--same-permissions", "--delay-directory-restore"]
    result = run_process(args, cwd="/", env=environment(os.environ))
    if result.exit_code != 0:
        raise ImageError(f"{tar} cannot be unpacked as a root file system: {result.error_text}")
    make_usable(rootfs)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _oci_images(path: Path, tar: tarfile.TarFile) -> Iterator[SavedImage]:
    index = parse_json(_read(tar, "index.json"))
    for entry in index["manifests"]:
        manifest = _blob(tar, entry["digest"])
        config = _blob(tar, manifest["config"]["digest"])
        annotations = entry.get("annotations") or {}
        name = str(annotations.get(_CONTAINERD_NAME) or annotations.get(_NAME) or "")
        yield SavedImage(
            path=path,
            reference=name
            if "/" in name or ":" in name
            else f"localhost/{path.stem.lower()}:{name or 'latest'}",
            id=str(manifest["config"]["digest"]).partition(":")[2],
            workdir=_workdir(config),
            kind="oci-archive",
            entry=entry if len(index["manifests"]) > 1 else None,
        )


def _docker_images(path: Path, tar: tarfile.TarFile) -> Iterator[SavedImage]:
    manifest = parse_json(_read(tar, "manifest.json"))
    for entry in manifest:
        raw = _read(tar, entry["Config"])
        for name in entry.get("RepoTags") or [f"localhost/{path.stem.lower()}:latest"]:
            yield SavedImage(
                path=path,
                reference=name,
                id=hashlib.sha256(raw).hexdigest(),
                workdir=_workdir(parse_json(raw)),
                kind="docker-archive",
                entry=entry if len(manifest) > 1 else None,
                has_sif=len(manifest) == 1 and _has_sif(tar),
            )


def _has_sif(tar: tarfile.TarFile) -> bool:
    member = tar.extractfile(_SIF) if _SIF in tar.getnames() else None
    return member is not None and is_sif(member.read(64))


def is_sif(head: bytes) -> bool:
    """Return whether a file is a SIF, by its first 64 bytes."""
    return b"SIF_MAGIC" in head


def sif_workdir(sif: Path) -> str:
    """Return the working directory of the OCI image that a SIF was made of; "/" without one.

    Source: ``apptainer sif list``: a SIF made of an OCI image has its configuration as a
    ``JSON.Generic`` object.
    """
    for number in (row[0] for row in sif_objects(sif) if row[-1] == "JSON.Generic"):
        with engine_call(NAME, "call") as timeout_s:
            text = run_process(
                ["apptainer", "sif", "dump", number, str(sif)], timeout_s=timeout_s
            ).stdout
        with suppress(ValueError):
            config = parse_json(text)
            if isinstance(config, dict) and isinstance(config.get("WorkingDir"), str):
                return _workdir({"config": config})
    return "/"


def _workdir(config: dict[str, Any]) -> str:
    workdir = str((config.get("config") or {}).get("WorkingDir") or "/")
    return workdir if workdir.startswith("/") else "/"


def _blob(tar: tarfile.TarFile, digest: str) -> Any:  # noqa: ANN401 - JSON
    return parse_json(_read(tar, f"blobs/{digest.replace(':', '/')}"))


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.extractfile(name)
    return b"" if member is None else member.read()
