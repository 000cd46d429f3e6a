"""Small Python packages, and an index of them that only a caller with a certificate, a login and a
proxy reaches.
"""

from __future__ import annotations

import base64
import io
import shutil
import socket
import ssl
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import attrs
import pytest

from hyperruntime.host.process import run_process

HOST = "packages.invalid"  # only the proxy knows it
INDEX_PASSWORD, PROXY_PASSWORD = "index-password-of-no-use", "proxy-password-of-no-use"
_BACKEND = """\
import os, zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    if os.path.isdir(os.path.dirname({mark!r})):  # on the host; a container does not have it
        open({mark!r}, "a").write("built\\n")
    info = "{name}-{version}.dist-info"
    with zipfile.ZipFile(os.path.join(directory, "{name}-{version}-py3-none-any.whl"), "w") as file:
        file.writestr("{name}.py", "built = True\\n")
        file.writestr(info + "/METADATA", {metadata!r})
        file.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        file.writestr(info + "/RECORD", "")
    return "{name}-{version}-py3-none-any.whl"
"""
_PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def use_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip of this machine find only the packages of a new directory."""
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


def metadata(name: str, version: str, *requires: str) -> str:
    """Return the metadata of a package."""
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"


def install_plugin(folder: Path, name: str, points: str, code: str = "") -> None:
    """Install a package in a folder for PYTHONPATH: a module, and its entry points."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(metadata(name.replace("_", "-"), "1"))
    (info / "entry_points.txt").write_text(points)
    if code:
        (folder / f"{name}.py").write_text(code)


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    """Write a wheel with one module."""
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", "built = False\n")
        file.writestr(f"{info}/METADATA", metadata(name, version, *requires))
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    return path


def source_files(name: str, version: str, mark: Path, *requires: str) -> dict[str, str]:
    """Return the files of a source package that needs no other to be built; its build writes to
    ``mark``.
    """
    known = metadata(name, version, *requires)
    backend = _BACKEND.format(name=name, version=version, mark=str(mark), metadata=known)
    return {"PKG-INFO": known, "pyproject.toml": _PROJECT, "backend.py": backend}


def make_sdist(folder: Path, name: str, version: str, mark: Path, *requires: str) -> Path:
    """Write a source distribution whose build writes to the file ``mark``."""
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for file, text in source_files(name, version, mark, *requires).items():
            member = tarfile.TarInfo(f"{name}-{version}/{file}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def make_repository(folder: Path, files: dict[str, str]) -> None:
    """Write a bare git repository that a server of plain files can offer."""
    work = folder.with_suffix(".work")
    work.mkdir()
    for name, text in files.items():
        (work / name).write_text(text)
    git = ["git", "-C", str(work), "-c", "user.name=test", "-c", "user.email=test@example.org"]
    for args in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["commit", "--quiet", "--message", "first"],
    ):
        assert run_process([*git, *args], timeout_s=60).exit_code == 0
    assert (
        run_process(
            ["git", "clone", "--quiet", "--bare", str(work), str(folder)], timeout_s=60
        ).exit_code
        == 0
    )
    assert (
        run_process(["git", "-C", str(folder), "update-server-info"], timeout_s=60).exit_code == 0
    )
    shutil.rmtree(work)


@attrs.frozen
class PackageIndex:
    """A running index.

    Attributes:
        files: the directory of its packages.
        certificate: the file of the authority that signed its certificate.
        url: its address, with a login.
        proxy: the address of the only proxy that reaches it, with a login.
        port: its port on loopback.
        through: the addresses for which the proxy was asked.
    """

    files: Path
    certificate: Path
    url: str
    proxy: str
    port: int
    through: list[str]


@contextmanager
def serve_packages(folder: Path) -> Iterator[PackageIndex]:
    """Serve an index over HTTPS, and a proxy to it.

    Args:
        folder: an empty directory for the packages, the repositories (``git/NAME.git``) and the
            certificates.
    """
    files = folder / "files"
    files.mkdir()
    authority = make_certificates(folder, HOST)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    index = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Index, directory=str(folder)))
    index.socket = context.wrap_socket(
        index.socket, server_side=True, do_handshake_on_connect=False
    )
    port, through = index.server_address[1], list[str]()
    proxy = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Proxy", (_Proxy,), {"port": port, "through": through})
    )
    for server in (index, proxy):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield PackageIndex(
            files=files,
            certificate=authority,
            url=f"https://user:{INDEX_PASSWORD}@{HOST}/simple",
            proxy=f"http://user:{PROXY_PASSWORD}@127.0.0.1:{proxy.server_address[1]}",
            port=port,
            through=through,
        )
    finally:
        for server in (proxy, index):
            server.shutdown()
            server.server_close()


class _Index(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        expected = base64.b64encode(f"user:{INDEX_PASSWORD}".encode()).decode()
        if self.path.startswith("/git/"):
            super().do_GET()
        elif self.headers.get("Authorization") != f"Basic {expected}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="packages"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path.startswith("/simple/"):
            self._send_page(self.path.strip("/").rpartition("/")[2])
        else:
            super().do_GET()

    def _send_page(self, name: str) -> None:
        names = [path.name for path in Path(self.directory, "files").iterdir()]
        own = [one for one in names if one.partition("-")[0].lower().replace("_", "-") == name]
        page = "".join(f'<a href="/files/{one}">{one}</a>' for one in own).encode()
        self.send_response(200 if own else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # git asks again over the same connection
    port = 0
    through: list[str]

    def do_CONNECT(self) -> None:
        expected = base64.b64encode(f"user:{PROXY_PASSWORD}".encode()).decode()
        if self.headers.get("Proxy-Authorization") != f"Basic {expected}":
            self.send_response(407)
            self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.through.append(self.path)
        if self.path != f"{HOST}:443":
            self.send_error(502)
            return
        self.send_response(200)
        self.end_headers()
        with socket.create_connection(("127.0.0.1", self.port)) as other:
            back = threading.Thread(target=_copy, args=(other, self.connection), daemon=True)
            back.start()
            _copy(self.connection, other)
            back.join()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def make_certificates(folder: Path, host: str) -> Path:
    """Write an authority, and the certificate of a host that it signed (``server.pem``, ``.key``);
    return the file of the authority.
    """
    authority, key = folder / "authority.pem", folder / "authority.key"
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj"]
    own = [
        "/CN=authority of a test",
        "-x509",
        "-days",
        "2",
        "-keyout",
        str(key),
        "-out",
        str(authority),
    ]
    asked = [
        f"/CN={host}",
        "-keyout",
        str(folder / "server.key"),
        "-out",
        str(folder / "server.csr"),
    ]
    (folder / "names").write_text(f"subjectAltName=DNS:{host}\n")
    sign = [
        "openssl",
        "x509",
        "-req",
        "-in",
        str(folder / "server.csr"),
        "-CA",
        str(authority),
        "-CAkey",
        str(key),
    ]
    sign += [
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        str(folder / "names"),
        "-out",
        str(folder / "server.pem"),
    ]
    for args in ([*new, *own], [*new, *asked], sign):
        assert run_process(args, timeout_s=60).exit_code == 0
    return authority
