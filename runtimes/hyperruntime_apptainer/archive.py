"""Read and write image archives: OCI archives (OCI image layout 1.0) and ``docker save`` archives."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_NAME = "org.opencontainers.image.ref.name"
_CONTAINERD_NAME = "io.containerd.image.name"


@attrs.frozen(kw_only=True)
class SavedImage:
    """One image of an archive.

    Attributes:
        path: the archive.
        reference: the image's name.
        id: the digest of its configuration; engines use it as the image's identifier.
        workdir: the working directory of its commands.
        kind: Apptainer's name for the archive's format: ``oci-archive`` or ``docker-archive``.
        entry: its entry in the index or manifest if the archive holds several images (Apptainer cannot select one).
    """

    path: Path
    reference: str
    id: str
    workdir: str
    kind: str
    entry: Mapping[str, Any] | None = None


def read_archive(path: Path) -> tuple[SavedImage, ...]:
    """Return the images of an archive; empty if the file is not an image archive."""
    try:
        with tarfile.open(path) as tar:
            if (index := _read(tar, "index.json")) is not None and "manifest.json" not in tar.getnames():
                return tuple(_oci_images(path, tar, index))
            if (manifest := _read(tar, "manifest.json")) is not None:
                return tuple(_docker_images(path, tar, manifest))
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError):
        return ()
    return ()


def write_single(image: SavedImage, path: Path) -> None:
    """Write a copy of an image's archive that lists only this image; the layers of the others stay in it, unused.

    Args:
        image: an image whose ``entry`` is set.
        path: the archive to write.
    """
    index = {"schemaVersion": 2, "manifests": [image.entry]} if image.kind == "oci-archive" else [image.entry]
    name = "index.json" if image.kind == "oci-archive" else "manifest.json"
    with tarfile.open(image.path) as source, tarfile.open(path, "w") as target:
        for member in source:
            if member.name != name:
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
        _add(target, name, json.dumps(index).encode())


def write_archive(path: Path, reference: str, layer: Path, digest: str, workdir: str) -> None:
    """Write an image of one layer in the format of ``docker save``.

    Args:
        path: the archive to write.
        reference: the image's name.
        layer: an uncompressed tar file of the root file system.
        digest: the SHA-256 of the layer, in hexadecimal.
        workdir: the working directory of its commands.

    Source: Docker image specification 1.2.
    """
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"WorkingDir": workdir},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        tar.add(layer, "layer.tar")
        _add(tar, name, text)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _oci_images(path: Path, tar: tarfile.TarFile, index: dict[str, Any]) -> Iterator[SavedImage]:
    for entry in index["manifests"]:
        manifest = _blob(tar, entry["digest"])
        config = _blob(tar, manifest["config"]["digest"])
        annotations = entry.get("annotations") or {}
        name = str(annotations.get(_CONTAINERD_NAME) or annotations.get(_NAME) or "")
        yield SavedImage(
            path=path,
            reference=name if "/" in name or ":" in name else f"localhost/{path.stem.lower()}:{name or 'latest'}",
            id=str(manifest["config"]["digest"]).partition(":")[2],
            workdir=_workdir(config),
            kind="oci-archive",
            entry=entry if len(index["manifests"]) > 1 else None,
        )


def _docker_images(path: Path, tar: tarfile.TarFile, manifest: list[dict[str, Any]]) -> Iterator[SavedImage]:
    for entry in manifest:
        raw = _bytes(tar, entry["Config"]) or b"{}"
        for name in entry.get("RepoTags") or [f"localhost/{path.stem.lower()}:latest"]:
            yield SavedImage(
                path=path,
                reference=name,
                id=hashlib.sha256(raw).hexdigest(),
                workdir=_workdir(json.loads(raw)),
                kind="docker-archive",
                entry=entry if len(manifest) > 1 else None,
            )


def _workdir(config: dict[str, Any]) -> str:
    return str((config.get("config") or {}).get("WorkingDir") or "/")


def _blob(tar: tarfile.TarFile, digest: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads(_bytes(tar, f"blobs/{digest.replace(':', '/')}") or b"{}")


def _read(tar: tarfile.TarFile, name: str) -> Any:  # noqa: ANN401 - JSON
    raw = _bytes(tar, name)
    return None if raw is None else json.loads(raw)


def _bytes(tar: tarfile.TarFile, name: str) -> bytes | None:
    try:
        member = tar.extractfile(name)
    except KeyError:
        return None
    return None if member is None else member.read()
