"""A real registry on loopback for the tests of pulls; images are pushed without an engine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import socket
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import attrs

from hyperruntime.host.process import DEVNULL, kill_group, spawn, wait_until

UNPACKED = "/var/lib/hyperruntime-registry/usr/bin/docker-registry"
USER, PASSWORD = "someone", "a password of no use"
_HTPASSWD = "someone:$2b$04$Z2/Zibz6SDWJjv9CgvkKK.vYtCO0CQAExR6csVJ9DGr/SfZgztJ8.\n"
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_APPLETS = (
    "sh true false cat echo sleep tar mkdir ls env id ps setsid dd pwd rm chmod yes head wc kill"
)


@attrs.frozen
class Registry:
    """A running registry.

    Attributes:
        address: its ``host:port``.
        digests: the reference by digest of each pushed ``name:tag``.
    """

    address: str
    digests: dict[str, str] = attrs.field(factory=dict)

    def push_busybox(self, name: str, tag: str, greeting: str) -> str:
        """Push an image of a static busybox and ``/greeting``; return its reference."""
        layer = busybox_layer(greeting)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            }
        ).encode()
        blob = gzip.compress(layer, mtime=0)
        parts = {"config": config, "layer": blob}
        for data in parts.values():
            self._put_blob(name, data)
        entries = {key: {"size": len(data), "digest": _digest(data)} for key, data in parts.items()}
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                **entries["config"],
            },
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    **entries["layer"],
                }
            ],
        }
        self._send("PUT", f"/v2/{name}/manifests/{tag}", json.dumps(manifest).encode(), _MANIFEST)
        self.digests[f"{name}:{tag}"] = (
            f"{self.address}/{name}@{_digest(json.dumps(manifest).encode())}"
        )
        return f"{self.address}/{name}:{tag}"

    def _put_blob(self, name: str, data: bytes) -> None:
        place = self._send("POST", f"/v2/{name}/blobs/uploads/", b"", "")
        joint = "&" if "?" in place else "?"
        self._send("PUT", f"{place}{joint}digest={_digest(data)}", data, "application/octet-stream")

    def _send(self, method: str, path: str, data: bytes, kind: str) -> str:
        url = urljoin(f"http://{self.address}", path)
        request = urllib.request.Request(
            url, data=data, method=method, headers={"Content-Type": kind}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=20) as answer:
            return str(answer.headers.get("Location", ""))


@contextmanager
def run_registry(
    directory: Path,
    *,
    locked: bool = False,
    host: str = "127.0.0.1",
    certificates: Path | None = None,
) -> Iterator[Registry]:
    """Run a registry on a free port.

    Args:
        directory: for its files.
        locked: whether it requires USER and PASSWORD.
        host: the address of this machine.
        certificates: a directory with ``server.pem`` and ``server.key``; None means plain HTTP.
    """
    program = shutil.which("docker-registry") or UNPACKED
    assert Path(program).is_file(), "docker-registry is missing; run `scripts/setup all` as root"
    with socket.create_server((host, 0)) as free:
        address = f"{host}:{free.getsockname()[1]}"
    directory.mkdir(exist_ok=True)
    (directory / "htpasswd").write_text(_HTPASSWD)
    auth = (
        {"auth": {"htpasswd": {"realm": "test", "path": str(directory / "htpasswd")}}}
        if locked
        else {}
    )
    tls = {}
    if certificates is not None:
        names = {"certificate": "server.pem", "key": "server.key"}
        tls = {"tls": {key: str(certificates / name) for key, name in names.items()}}
    storage = {"filesystem": {"rootdirectory": str(directory / "data")}}
    config = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": storage,
        "http": {"addr": address, **tls},
        **auth,
    }
    (directory / "config.yml").write_text(json.dumps(config))
    process = spawn(
        [program, "serve", str(directory / "config.yml")],
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    try:
        assert wait_until(lambda: _answers(address), 60)
        yield Registry(address)
    finally:
        kill_group(process)
        process.wait()


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0


def busybox_layer(greeting: str) -> bytes:
    """Return a layer with a static busybox and `/greeting`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("bin", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        _add(
            tar, "bin/busybox", Path(shutil.which("busybox") or "/bin/busybox").read_bytes(), 0o755
        )
        _add(tar, "greeting", greeting.encode(), 0o644)
        for applet in _APPLETS.split():
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
