"""Read what an image archive holds: OCI archives (OCI image layout 1.0) and those of ``docker save``."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

_NAME = "org.opencontainers.image.ref.name"
_CONTAINERD_NAME = "io.containerd.image.name"


@attrs.frozen(kw_only=True)
class SavedImage:
    """One image of an archive.

    Attributes:
        path: the archive.
        reference: the image's name.
        id: the digest of its configuration, which is what engines call an image's identifier.
        workdir: where its commands start.
        source: how Apptainer is told to read it.
    """

    path: Path
    reference: str
    id: str
    workdir: str
    source: str


def read_archive(path: Path) -> tuple[SavedImage, ...]:
    """Return the images of an archive; nothing when it is none."""
    try:
        with tarfile.open(path) as tar:
            if (index := _read(tar, "index.json")) is not None and "manifest.json" not in tar.getnames():
                return tuple(_oci_images(path, tar, index))
            if (manifest := _read(tar, "manifest.json")) is not None:
                return tuple(_docker_images(path, tar, manifest))
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError):
        return ()
    return ()


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
            source=f"oci-archive:{path}" + (f":{annotations[_NAME]}" if _NAME in annotations else ""),
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
                source=f"docker-archive:{path}" + (f":{name}" if entry.get("RepoTags") else ""),
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
