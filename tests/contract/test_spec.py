"""Fields of a spec beyond the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    SpecError,
    TransferError,
)

pytestmark = pytest.mark.engine


def test_the_source_of_a_mount_may_be_relative(
    runtime: hr.Runtime, busybox_image: str, odd_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (odd_path / "file").write_text("host")
    monkeypatch.chdir(odd_path)
    mount = hr.Mount(source=".", target="/data")
    monkeypatch.chdir("/")
    with runtime.container(hr.ContainerSpec(image=busybox_image, mounts=(mount,))) as started:
        assert started.exec(["cat", "/data/file"]).stdout == b"host"


@pytest.mark.parametrize("shell", ["dash", "busybox"])
def test_copying_does_not_depend_on_the_path_of_the_spec(
    runtime: hr.Runtime, images: dict[str, str], shell: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    with runtime.container(hr.ContainerSpec(image=images[shell], env={"PATH": "/nowhere"})) as started:
        started.put(tmp_path / "file", "/new/file")
        started.get("/new/file", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "x"


def test_an_image_without_tar_is_named_as_that(runtime: hr.Runtime, base_image: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        started.exec(["rm", "/bin/tar"]).check()
        with pytest.raises(TransferError, match="has no tar"):
            started.put(tmp_path / "file", "/file")
        with pytest.raises(TransferError, match="has no tar"):
            started.get("/bin", tmp_path / "bin")


def test_the_user_that_an_exec_asked_for_is_the_one_that_is_named(container: hr.Container, has_users: bool) -> None:
    if not has_users:
        return
    error = container._live.explain_start_failure("unable to find user x: no matching entries in passwd file", "x")
    assert isinstance(error, SpecError)
    assert error.value == "x"


def test_more_environment_than_a_command_line_holds_is_refused(runtime: hr.Runtime, base_image: str) -> None:
    env = {f"A{number}": "x" * 100_000 for number in range(40)}
    with pytest.raises(SpecError, match="more than a command line holds"):
        runtime.container(hr.ContainerSpec(image=base_image, env=env))


def test_one_variable_longer_than_a_command_can_have_is_refused(runtime: hr.Runtime, base_image: str) -> None:
    with pytest.raises(SpecError, match="128 KiB"):
        runtime.container(hr.ContainerSpec(image=base_image, env={"A": "x" * 128 * 1024}))
