"""Images: builds and their errors, archives, and no repeated work."""

from __future__ import annotations

import os
import socket
import stat
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    ImageBuildError,
    ImageError,
    ImageNotFoundError,
    SpecError,
    StorageError,
)
from hyperruntime.host.process import run_process
from tests.contract.builds import built

pytestmark = pytest.mark.engine

REFERENCE = "localhost/hyperruntime-test/built:one"
SAVED = "localhost/hyperruntime-test/saved:1"
LOG_LINE = "the whole output is kept in "


@pytest.fixture
def saved_image(runtime: hr.Runtime, odd_path: Path, busybox_image: str) -> Iterator[str]:
    """An image that a test may remove."""
    (odd_path / "Containerfile").write_text(f"FROM {busybox_image}\nRUN echo kept > /kept\n")
    yield runtime.images.build(SAVED, containerfile=odd_path / "Containerfile", force=True)
    if runtime.images.exists(SAVED):
        runtime.images.remove(SAVED)


def test_a_build_has_the_hosts_network_and_its_proxy_is_not_in_the_image(
    runtime: hr.Runtime, odd_path: Path, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        (odd_path / "Containerfile").write_text(
            f'FROM {base_image}\nRUN echo "$http_proxy $no_proxy" > /seen && python3 -c '
            f'"{connect}"\n'
        )
        with built(runtime, REFERENCE, odd_path / "Containerfile") as started:
            seen = started.exec(["cat", "/seen"]).stdout
            assert seen == b"http://proxy.invalid:3128 127.0.0.1\n"
            assert b"proxy" not in started.exec(["env"]).stdout


def test_a_build_error_shows_the_failed_step_and_a_log_has_the_whole_output(
    runtime: hr.Runtime,
    odd_path: Path,
    base_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = "echo the first; seq 100 200; echo the reason >&2; exit 9"
    (odd_path / "Containerfile").write_text(f"FROM {base_image}\nRUN echo fine\nRUN {command}\n")
    lines: list[str] = []
    with pytest.raises(ImageBuildError) as caught:
        runtime.images.build(
            REFERENCE, containerfile=odd_path / "Containerfile", on_output=lines.append
        )
    message = str(caught.value)
    assert f"the step `RUN {command}` failed" in message
    assert "the reason" in message
    assert "    105\n" not in message
    assert "fine" not in message
    assert "\x1b" not in "".join((message, *lines))
    assert not runtime.images.exists(REFERENCE)
    log = Path(lines[0].removeprefix(LOG_LINE))
    assert lines[0] == f"{LOG_LINE}{log}"
    assert str(log) in message
    assert {"the first", "105", "the reason"} <= set(log.read_text().splitlines())
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.slow
def test_base_images_without_a_registry_get_one_if_the_user_says_so(
    runtime: hr.Runtime, odd_path: Path, busybox_image: str
) -> None:
    """Images of this machine keep their names; Podman's error without the option names it."""
    (odd_path / "Dockerfile").write_text("ARG TAG=1\nFROM nobody/nothing:$TAG\nRUN true\n")
    build = partial(
        runtime.images.build, REFERENCE, containerfile=odd_path / "Dockerfile", force=True
    )
    with pytest.raises(ImageBuildError, match=r"registry\.invalid"):
        build(short_names="registry.invalid")
    if runtime.name == "podman":
        with pytest.raises(ImageBuildError, match=r"--short-names docker\.io"):
            build()
    (odd_path / "Dockerfile").write_text(f"FROM {busybox_image.removeprefix('localhost/')}\n")
    if runtime.name == "podman":
        assert build(short_names="registry.invalid") == REFERENCE
        runtime.images.remove(REFERENCE)


def test_errors_of_missing_images_and_files_name_the_next_step(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    nothing = "localhost/hyperruntime-test/nothing:1"
    with pytest.raises(ImageNotFoundError, match="hyperrun image list"):
        runtime.images.remove(nothing)
    with pytest.raises(ImageNotFoundError, match="hyperrun image list"):
        runtime.images.save(nothing, tmp_path / "x.tar")
    with pytest.raises(ImageNotFoundError, match=f"hyperrun image build {nothing} --file"):
        runtime.images.ensure(nothing)
    with pytest.raises(ImageNotFoundError, match=r"hyperrun image pull example\.org/nothing:1"):
        runtime.images.ensure("example.org/nothing:1")
    with pytest.raises(ImageNotFoundError, match="no registry serves localhost/ names"):
        runtime.images.pull(nothing)
    with pytest.raises(SpecError, match="did you mean 'base'"):
        runtime.images.build("bas")
    with pytest.raises(SpecError, match="exists"):
        runtime.images.build("x", containerfile=tmp_path / "nothing")
    assert os.listdir(tmp_path) == []


def test_a_saved_image_is_loaded_with_its_reference_and_content(
    runtime: hr.Runtime, saved_image: str, tmp_path: Path
) -> None:
    archive = tmp_path / 'a b, "c".tar'
    runtime.images.save(saved_image, archive)
    assert [name for name in os.listdir(tmp_path) if "tar" in name] == [archive.name]
    archive.write_text("mine")
    with pytest.raises(SpecError, match="does not exist yet"):
        runtime.images.save(saved_image, archive)
    assert archive.read_text() == "mine"
    runtime.images.save(saved_image, archive, force=True)
    with pytest.raises(StorageError, match="name a file in a writable directory"):
        runtime.images.save(saved_image, tmp_path / "nothing/mine.tar")
    runtime.images.remove(saved_image)
    assert not runtime.images.exists(saved_image)
    assert runtime.images.load(archive) == (saved_image,)
    with runtime.container(hr.ContainerSpec(image=saved_image)) as started:
        assert started.exec(["cat", "/kept"]).stdout == b"kept\n"


def test_files_without_an_image_are_refused_in_one_line(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    (tmp_path / "junk.tar").write_text("junk" * 1000)
    (tmp_path / "empty.tar").touch()
    with tarfile.open(tmp_path / "rootfs.tar", "w") as tar:
        tar.add(tmp_path / "junk.tar", arcname="etc/passwd")
    for name, said in (
        ("junk", "cannot be loaded as an image"),
        ("empty", "it is empty"),
        ("rootfs", "root file system"),
    ):
        with pytest.raises(ImageError, match=rf"{name}\.tar .*{said}|{name}\.tar {said}") as caught:
            runtime.images.load(tmp_path / f"{name}.tar")
        assert "\n" not in str(caught.value)
    with pytest.raises(SpecError, match="hyperrun image save"):
        runtime.images.load(tmp_path / "nothing.tar")
    with pytest.raises(SpecError, match="hyperrun image save"):
        runtime.images.load(tmp_path)


BUILDER = """
import sys
import hyperruntime as hr
with hr.open_runtime(sys.argv[1]) as runtime:
    runtime.images.build(sys.argv[2], containerfile=sys.argv[3], on_output=print)
"""


@pytest.mark.slow
def test_two_simultaneous_builds_make_one_image(
    runtime: hr.Runtime, runtime_name: str, odd_path: Path, busybox_image: str
) -> None:
    (odd_path / "Containerfile").write_text(
        f"FROM {busybox_image}\nRUN sleep 1; echo {time.time_ns()}\n"
    )
    args = [sys.executable, "-c", BUILDER, runtime_name, REFERENCE, str(odd_path / "Containerfile")]
    try:
        with ThreadPoolExecutor(2) as threads:
            outputs = threads.map(lambda _: run_process(args, timeout_s=120).stdout, range(2))
        assert runtime.images.exists(REFERENCE)
        assert sorted(b"sleep 1" in output for output in outputs) == [False, True]
    finally:
        runtime.images.remove(REFERENCE)


def test_bootstrap_does_not_build_an_existing_image_again(
    runtime: hr.Runtime, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("hyperruntime.images.store.build_rootfs")
    assert runtime.images.bootstrap() == base_image


def test_the_base_image_has_the_programs_that_agents_need(container: hr.Container) -> None:
    for program in ("python3", "git", "patch", "tar", "ps"):
        assert container.exec([program, "--version"]).exit_code == 0
    assert (
        container.exec(["python3", "-c", "import ctypes, json, sqlite3, ssl, venv"]).exit_code == 0
    )


@pytest.mark.slow
def test_the_agent_image_has_its_packages_and_no_files_of_the_host(runtime: hr.Runtime) -> None:
    reference = runtime.images.ensure("agent")
    with runtime.container(hr.ContainerSpec(image=reference)) as started:
        result = started.exec(
            ["python3", "-c", "import openai, sys; print('%d.%d' % sys.version_info[:2])"]
        )
        assert result.check().stdout == b"3.11\n"
        assert (
            started.exec(["python3", "-c", "import openai; openai.OpenAI(api_key='x')"]).exit_code
            == 0
        )
        left = started.exec(
            ["sh", "-c", "ls -d /build /etc/pip.conf /root/.config /root/.pip /root/.cache"]
        )
        assert left.stdout == b""


@pytest.mark.slow
def test_the_packages_of_a_requirements_file_are_installed_without_a_registry(
    runtime: hr.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pandas needs libstdc++; the container has no network, pip and apt are there. Apptainer builds
    alone.
    """
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    (tmp_path / "requirements.txt").write_text(
        "# as public agent repositories have\npandas\nlitellm\n"
    )
    reference = "localhost/hyperruntime-test/packages:1"
    lines: list[str] = []
    runtime.images.build_requirements(
        reference, tmp_path / "requirements.txt", force=True, on_output=lines.append
    )
    assert not any("the build downloads the packages itself" in line for line in lines)
    try:
        with runtime.container(hr.ContainerSpec(image=reference)) as started:
            for command in (
                "python3 -c 'import pandas, litellm'",
                "pip --version",
                "apt-get --version",
                "test ! -e /build",
            ):
                assert started.exec(["sh", "-c", command]).exit_code == 0, command
    finally:
        runtime.images.remove(reference)
