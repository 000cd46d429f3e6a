"""Read and write image archives: of ``docker save``, ``podman save``, and of the OCI image layout.

Sources: Docker image specification 1.2; OCI image specification 1.1.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from hyperruntime.concurrency.closing import Closing
from hyperruntime.errors import ImageError, TransferError
from hyperruntime.host.inherited import english_environment
from hyperruntime.host.process import ProcessResult, run_process
from hyperruntime.json_values import parse_json
from hyperruntime.layers.blobs import (
    DAMAGED,
    Files,
    Folder,
    TarFiles,
    checked,
    decompressed,
    is_compressed,
    opened,
    read_json_file,
)
from hyperruntime.layers.config import ImageConfig
from hyperruntime.layers.owners import as_root_inside, has_all_ids
from hyperruntime.layers.unpack import unpack_layers

ENV_FILE = ".singularity.d/env/10-docker2singularity.sh"  # Apptainer's own name for it

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_NAME = "org.opencontainers.image.ref.name"
_CONTAINERD_NAME = "io.containerd.image.name"
_ATTESTATION = "vnd.docker.reference.type"
_MOST_LAYERS = 1000
_MOST_MANIFESTS = 1000
_DIGEST = re.compile(r"sha(256|512):[0-9a-f]{64,128}")


@attrs.frozen(kw_only=True)
class SavedImage:
    """One image of an archive.

    Attributes:
        reference: its name.
        id: the digest of its configuration; engines use it as the image's identifier.
        config: what it says about its commands.
        layers: the names of its layers in the archive, from the lowest one.
        digests: the digests of the uncompressed layers.
    """

    reference: str
    id: str
    config: ImageConfig
    layers: tuple[str, ...]
    digests: tuple[str, ...]


class ImageArchive(Closing):
    """An open archive, or a directory of the OCI image layout.

    Attributes:
        images: its images for this machine, one for each name.
    """

    def __init__(self, path: Path, scratch: Path) -> None:
        """Read what the archive holds.

        Args:
            path: the archive, a tar that may be compressed, or the directory.
            scratch: an existing directory of our own on the disk of the store.

        Raises:
            ImageError: it is not an image archive, is damaged, or has no image for this machine.
        """
        self._undo = ExitStack()
        self._scratch = scratch
        self._stem = path.stem.lower()
        self._manifests = 0
        with self._undo as undo:
            try:
                self._files = self._opened(path, undo)
                self.images = tuple(self._read())
                if not self.images:
                    raise ValueError
            except (
                TransferError,
                KeyError,
                TypeError,
                ValueError,
                AttributeError,
                *DAMAGED,
            ) as error:
                raise ImageError(
                    "it is not an image archive; use a SIF, or a file of `podman save` or `docker "
                    "save`"
                ) from error
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Close the archive."""
        self._undo.close()

    def unpack(self, image: SavedImage, rootfs: Path) -> None:
        """Make the directory of an image's files.

        Args:
            image: one of this archive.
            rootfs: the directory to make.

        Raises:
            ImageError: the archive is hostile, damaged or too large for the disk.
        """
        if len(image.layers) > _MOST_LAYERS or len(image.layers) != len(image.digests):
            raise ImageError("its list of layers is invalid")
        layers = [
            partial(self._layer, name, digest)
            for name, digest in zip(image.layers, image.digests, strict=True)
        ]
        env = [(ENV_FILE, image.config.to_script().encode())] if image.config.env else []
        unpack_layers(rootfs, layers, env)

    def _opened(self, path: Path, undo: ExitStack) -> Files:
        if path.is_dir():
            return Folder(path)
        if is_compressed(path):
            copy = self._scratch / "archive.tar"
            with opened(path, self._scratch) as content, open(copy, "wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            path = copy
        return undo.enter_context(TarFiles(path))

    @contextmanager
    def _layer(self, name: str, digest: str) -> Iterator[BinaryIO]:
        try:
            file = self._files.open(name)
        except KeyError:
            raise ImageError(f"its layer {name} is missing; save the image again") from None
        with decompressed(file, self._scratch) as content, checked(content, digest) as layer:
            yield layer

    def _read(self) -> Iterator[SavedImage]:
        try:
            manifest = parse_json(read_json_file(self._files, "manifest.json"))
        except KeyError:
            yield from self._oci_images()
            return
        for entry in manifest:
            raw = read_json_file(self._files, entry["Config"])
            for name in entry.get("RepoTags") or [f"localhost/{self._stem}:latest"]:
                digest = hashlib.sha256(raw).hexdigest()
                yield _image(str(name), digest, raw, map(str, entry["Layers"]))

    def _oci_images(self) -> Iterator[SavedImage]:
        index = parse_json(read_json_file(self._files, "index.json"))
        named: dict[str, list[Mapping[str, Any]]] = {}
        for entry in index["manifests"]:
            annotations = entry.get("annotations") or {}
            name = str(annotations.get(_CONTAINERD_NAME) or annotations.get(_NAME) or "")
            named.setdefault(name, []).append(entry)
        for name, entries in named.items():
            found = [one for entry in entries for one in self._flat(entry)]
            if not found:
                continue
            manifest = self._manifest_of_this_machine(found)
            full = (
                name if "/" in name or ":" in name else f"localhost/{self._stem}:{name or 'latest'}"
            )
            digest = str(manifest["config"]["digest"])
            layers = [_blob(str(layer["digest"])) for layer in manifest["layers"]]
            yield _image(full, digest.partition(":")[2], self._blob(digest), layers)

    def _flat(self, entry: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
        """Yield the manifests that an entry of an index stands for, without attestations."""
        if _is_attestation(entry):
            return
        self._manifests += 1
        if depth > 3 or self._manifests > _MOST_MANIFESTS:
            raise ImageError("its index holds too many other indexes")
        content = parse_json(self._blob(str(entry["digest"])))
        if "manifests" in content:
            for below in content["manifests"]:
                yield from self._flat(below, depth + 1)
        else:
            yield {"platform": entry.get("platform") or self._platform(content), **content}

    def _platform(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        config = parse_json(self._blob(str(manifest["config"]["digest"])))
        return {name: config[name] for name in ("os", "architecture") if name in config}

    def _manifest_of_this_machine(self, found: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        wanted = ("linux", architecture())
        for one in found:
            if (one["platform"].get("os"), one["platform"].get("architecture")) == wanted:
                return one
        if len(found) == 1:
            return found[0]
        others = ", ".join(
            sorted(f"{p.get('os')}/{p.get('architecture')}" for p in (o["platform"] for o in found))
        )
        raise ImageError(f"it holds no image for {'/'.join(wanted)}, only for {others}")

    def _blob(self, digest: str) -> bytes:
        content = read_json_file(self._files, _blob(digest))
        if hashlib.new(digest.partition(":")[0], content).hexdigest() != digest.partition(":")[2]:
            raise ImageError(f"its part {digest} is damaged: it has another digest; copy it again")
        return content


def architecture() -> str:
    """Return this machine's architecture, as images name it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def write_archive(path: Path, reference: str, layer: Path, config: ImageConfig) -> None:
    """Write an image of one layer in the format of ``docker save``.

    Args:
        path: the archive to write.
        reference: the image's name.
        layer: an uncompressed tar file of the root file system.
        config: what the image says about its commands.
    """
    whole = {
        "architecture": architecture(),
        "os": "linux",
        "config": config.to_oci(),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{file_digest(layer)}"]},
    }
    text = json.dumps(whole).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        tar.add(layer, "layer.tar")
        _add(tar, name, text)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def pack(rootfs: Path, tar: Path, *options: str) -> Path:
    """Write a tree to a tar, with the owners that a container sees; return the path of the tar.

    Args:
        rootfs: the tree.
        tar: the file to write.
        *options: more options of ``tar``.

    Raises:
        ImageError: the tar cannot be written.
    """
    args = ["tar", "--create", "--file", str(tar), "--numeric-owner"]
    args += [] if has_all_ids() else ["--owner=0", "--group=0"]
    args += [
        "--format=pax",
        "--xattrs",
        "--xattrs-include=user.*",
        "--pax-option=delete=atime,delete=ctime",
    ]
    args += [*options, "--directory", str(rootfs), "."]
    check_packed(run_process(as_root_inside(args), cwd="/", env=english_environment()), tar)
    return tar


def check_packed(result: ProcessResult, tar: Path) -> None:
    """Check that ``tar`` wrote all files. Nothing writes to a tree, but a build may give its files
    further names meanwhile, by hard links, and ``tar`` reports these as changed.

    Raises:
        ImageError: it did not.
    """
    lines = result.stderr.decode(errors="replace").splitlines()
    only_linked = all(line.endswith(": file changed as we read it") for line in lines)
    if result.exit_code != 0 and not (result.exit_code == 1 and lines and only_linked):
        raise ImageError(f"{tar} cannot be written: {result.error_text}; free space there")


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _image(
    reference: str, digest: str, raw: bytes, layers: Iterator[str] | list[str]
) -> SavedImage:
    config = parse_json(raw)
    return SavedImage(
        reference=reference,
        id=digest,
        config=ImageConfig.from_oci(config.get("config")),
        layers=tuple(layers),
        digests=tuple(map(str, config["rootfs"]["diff_ids"])),
    )


def _is_attestation(entry: Mapping[str, Any]) -> bool:
    known = entry.get("platform") or {}
    return known.get("os") == "unknown" or _ATTESTATION in (entry.get("annotations") or {})


def _blob(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise ImageError(f"its digest {digest[:100]!r} is of an unknown kind")
    return f"blobs/{digest.replace(':', '/')}"


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
