"""Specs and errors beyond the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.driver import OpensShells
from hyperruntime.errors import (
    SpecError,
    TransferError,
    UserNotFoundError,
)
from hyperruntime.host.process import wait_until

pytestmark = pytest.mark.engine


def test_the_source_of_a_mount_can_be_relative(
    runtime: hr.Runtime, busybox_image: str, odd_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (odd_path / "file").write_text("host")
    monkeypatch.chdir(odd_path)
    mount = hr.Mount(source=".", target="/data")
    monkeypatch.chdir("/")
    with runtime.container(hr.ContainerSpec(image=busybox_image, mounts=(mount,))) as started:
        assert started.exec(["cat", "/data/file"]).stdout == b"host"


@pytest.mark.parametrize("shell", ["dash", "busybox"])
def test_copies_do_not_depend_on_the_path_variable_of_the_spec(
    runtime: hr.Runtime, images: dict[str, str], shell: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    with runtime.container(
        hr.ContainerSpec(image=images[shell], env={"PATH": "/nowhere"})
    ) as started:
        started.put(tmp_path / "file", "/new/file")
        started.get("/new/file", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "x"


def test_the_error_says_that_an_image_has_no_tar(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        started.exec(["rm", "/bin/tar"]).check()
        with pytest.raises(TransferError, match="has no tar"):
            started.put(tmp_path / "file", "/file")
        with pytest.raises(TransferError, match="has no tar"):
            started.get("/bin", tmp_path / "bin")


def test_the_error_names_the_user_of_the_exec(container: hr.Container, has_users: bool) -> None:
    if not has_users or not isinstance(container._live, OpensShells):
        return
    error = container._live.explain_start_failure(
        "unable to find user x: no matching entries in passwd file", "x"
    )
    assert isinstance(error, UserNotFoundError)
    assert error.value == "x"


def test_runtimes_and_containers_say_what_they_are(
    runtime: hr.Runtime, runtime_name: str, base_image: str
) -> None:
    spec = hr.ContainerSpec(image=base_image, env={"KEY": "k-123456"})
    with runtime.container(spec) as started, runtime.container(spec) as lost:
        assert (
            repr(started)
            == f"<Container {started.name} on {runtime_name}, image {base_image!r}: running>"
        )
        assert repr(runtime).startswith(f"<Runtime {runtime_name}")
        lost.exec(["true"])
        lost._live.remove()
        assert wait_until(
            lambda: repr(lost).endswith(": ended>") or repr(lost).endswith(": closed>"), 120
        )
    assert repr(started).endswith(": closed>")
    assert "k-123456" not in repr((runtime, started, started.spec))


def test_an_environment_that_is_too_large_is_refused(runtime: hr.Runtime, base_image: str) -> None:
    env = {f"A{number}": "x" * 100_000 for number in range(40)}
    with pytest.raises(SpecError, match="more than a command line holds"):
        runtime.container(hr.ContainerSpec(image=base_image, env=env))


def test_a_variable_that_is_too_long_is_refused(runtime: hr.Runtime, base_image: str) -> None:
    with pytest.raises(SpecError, match="128 KiB"):
        runtime.container(hr.ContainerSpec(image=base_image, env={"A": "x" * 128 * 1024}))
