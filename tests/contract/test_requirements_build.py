"""Images of requirements files whose wheels a container builds, on a machine with a proxy,
certificates and logins.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.host.process import run_process
from tests.doubles.packages import (
    HOST,
    INDEX_PASSWORD,
    PROXY_PASSWORD,
    PackageIndex,
    make_repository,
    make_sdist,
    make_wheel,
    serve_packages,
    source_files,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

REFERENCE = "localhost/hyperruntime-test/requirements:1"
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture
def index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: hr.Runtime
) -> Iterator[PackageIndex]:
    """An index that only pip with this machine's settings reaches: login, certificate and proxy."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing")
    for name in (
        *PROXIES,
        "PIP_FIND_LINKS",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "SSL_CERT_FILE",
    ):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "index"
    folder.mkdir()
    with serve_packages(folder) as served:
        config = tmp_path / "pip.conf"
        rows = (
            f"index-url = {served.url}",
            f"cert = {served.certificate}",
            "find-links =",
            "retries = 1",
        )
        config.write_text("\n".join(["[global]", *rows, "extra-index-url =", ""]))
        monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("HTTPS_PROXY", served.proxy)  # in one spelling only
        yield served


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file on the host that exists if the code of a package ran there."""
    return tmp_path / "mark"


@pytest.fixture
def dev(runtime: hr.Runtime) -> str:
    """The image `dev`, which is made before the test changes how this machine reaches the
    network.
    """
    return runtime.images.ensure("dev")


def fill(index: PackageIndex, mark: Path) -> None:
    make_wheel(index.files, "ready", "1.0", "needed==2.*")
    make_sdist(index.files, "needed", "2.1", mark)
    make_sdist(index.files, "sourceonly", "1.0", Path("/tmp/mark"))
    git = index.files.parent / "git"
    git.mkdir()
    make_repository(git / "cloned.git", source_files("cloned", "3.0", Path("/tmp/mark")))


@pytest.mark.slow
def test_a_container_builds_missing_wheels_with_this_machines_network_and_leaves_none_of_it_in_the_image(
    dev: str, index: PackageIndex, runtime: hr.Runtime, tmp_path: Path
) -> None:
    fill(index, Path("/tmp/mark"))
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"ready\nsourceonly==1.0\ngit+https://{HOST}/git/cloned.git\n")
    lines: list[str] = []
    runtime.images.build_requirements(REFERENCE, requirements, force=True, on_output=lines.append)
    said = "\n".join(lines)
    for missing in (
        "sourceonly==1.0: only source code",
        "needed==2.*: only source code",
        "git/cloned.git: source code",
    ):
        assert missing in said
    try:
        with runtime.container(hr.ContainerSpec(image=REFERENCE)) as started:
            script = (
                "import ready, needed, sourceonly, cloned; assert needed.built and cloned.built "
                "and not ready.built"
            )
            started.exec(["python3", "-c", script]).check()
            environment = started.exec(
                ["sh", "-c", "env; cat /etc/pip.conf; pip config list; ls -d /hyper* /build"]
            )
            assert not has_secret(environment.stdout, index)
            assert b"proxy" not in environment.stdout.lower()
            assert b"certificates" not in environment.stdout
        runtime.images.save(REFERENCE, tmp_path / "image.tar")
        assert not [
            name for name, data in contents(tmp_path / "image.tar") if has_secret(data, index)
        ]
        if runtime.name in ("podman", "docker"):
            for args in (("history", "--no-trunc"), ("image", "inspect")):
                shown = run_process([runtime.name, *args, REFERENCE], timeout_s=60)
                assert shown.exit_code == 0
                assert not has_secret(shown.stdout, index)
        assert INDEX_PASSWORD not in said
        assert PROXY_PASSWORD not in said
    finally:
        runtime.images.remove(REFERENCE)


@pytest.mark.slow
def test_sdist_builds_missing_wheels_on_this_machine_and_only_if_asked(
    dev: str, index: PackageIndex, runtime: hr.Runtime, tmp_path: Path, mark: Path
) -> None:
    fill(index, mark)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("ready\n")
    runtime.images.build_requirements(REFERENCE, requirements, force=True)
    assert not mark.exists(), "a package ran code on the host"
    try:
        lines: list[str] = []
        runtime.images.build_requirements(
            REFERENCE, requirements, force=True, sdist=True, on_output=lines.append
        )
        assert mark.read_text() == "built\n"
        assert not any("a container builds the rest" in line for line in lines)
        with runtime.container(hr.ContainerSpec(image=REFERENCE)) as started:
            started.exec(["python3", "-c", "import needed; assert needed.built"]).check()
    finally:
        runtime.images.remove(REFERENCE)


def has_secret(data: bytes, index: PackageIndex) -> bool:
    authority = index.certificate.read_bytes().splitlines()[3]
    port = index.proxy.rpartition(":")[2].encode()
    return any(
        secret in data
        for secret in (INDEX_PASSWORD.encode(), PROXY_PASSWORD.encode(), authority, b":" + port)
    )


def contents(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an image archive, and those of its layers."""
    with tarfile.open(archive) as outer:
        for member in outer:
            data = (file := outer.extractfile(member)) and file.read()
            if not data:
                continue
            yield member.name, data
            try:
                plain = zlib.decompress(data, 31) if data[:2] == b"\x1f\x8b" else data
                with tarfile.open(fileobj=io.BytesIO(plain)) as layer:
                    for inner in layer:
                        if inner.isreg() and (content := layer.extractfile(inner)):
                            yield f"{member.name}: {inner.name}", content.read()
            except tarfile.TarError:
                continue
