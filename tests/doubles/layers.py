"""Layers and image archives made in memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TYPES = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "fifo": tarfile.FIFOTYPE,
    "sparse": tarfile.GNUTYPE_SPARSE,
}
MTIME = 1_600_000_000


class Entry(tarfile.TarInfo):
    """A member with its content."""

    content = b""


def entry(name: str, kind: str = "file", text: str = "", mode: int = 0o644) -> Entry:
    """Return a member; ``text`` is a file's content or a link's target."""
    member = Entry(name)
    member.type = TYPES[kind]
    member.mode = mode
    member.mtime = MTIME
    if kind in ("symlink", "hardlink"):
        member.linkname = text
    if kind == "file":
        member.content = text.encode()
        member.size = len(member.content)
    return member


def layer(members: Iterable[Entry | str]) -> bytes:
    """Return a tar; a text is an empty file, or a directory if it ends with a slash."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for one in members:
            member = _of_name(one) if isinstance(one, str) else one
            tar.addfile(member, io.BytesIO(member.content))
    return stream.getvalue()


def _of_name(name: str) -> Entry:
    if name.endswith("/"):
        return entry(name.rstrip("/"), "directory", mode=0o755)
    return entry(name)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config(layers: Iterable[bytes], **own: Any) -> bytes:
    """Return an image configuration."""
    ids = [digest(data) for data in layers]
    rootfs = {"type": "layers", "diff_ids": ids}
    whole = {"architecture": "amd64", "os": "linux", "config": own, "rootfs": rootfs}
    return json.dumps(whole).encode()


def write_tar(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def docker_archive(path: Path, *layers: bytes, name: str = "x:1", **own: Any) -> Path:
    """Write an image in the format of ``docker save``."""
    text = config(layers, **own)
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": names}]
    files = dict(zip(names, layers, strict=True))
    listed = json.dumps(manifest).encode()
    return write_tar(path, {**files, "config.json": text, "manifest.json": listed})


class Oci:
    """The parts of an OCI archive."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def blob(self, data: object) -> str:
        """Add a blob, or a JSON document, and return its digest."""
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.files[f"blobs/{digest(raw).replace(':', '/')}"] = raw
        return digest(raw)

    def manifest(self, *layers: bytes, **own: Any) -> str:
        """Add an image with compressed layers, and return the digest of its manifest."""
        blobs = [{"digest": self.blob(gzip.compress(data, mtime=0))} for data in layers]
        return self.blob({"config": {"digest": self.blob(config(layers, **own))}, "layers": blobs})

    def write(self, path: Path, *entries: object) -> Path:
        """Write the archive with an index of these entries."""
        index = json.dumps({"schemaVersion": 2, "manifests": entries}).encode()
        return write_tar(path, {**self.files, "index.json": index})
