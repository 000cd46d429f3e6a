"""Copies in and out, beyond the conformance suite."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import SpecError, TransferError
from tests.contract.pools import make_pool, shell

pytestmark = pytest.mark.engine


def test_a_copy_is_merged_into_an_existing_directory(
    container: hr.Container, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
        container.put(tmp_path / name, "/merged")
    assert container.exec(["ls", "/merged"]).stdout == b"one\ntwo\n"


def test_read_only_and_relative_targets_are_clear_errors(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image, read_only_rootfs=True)) as started:
        (tmp_path / "file").write_text("x")
        with pytest.raises(TransferError, match="Read-only file system"):
            started.put(tmp_path / "file", "/usr/x")
        with pytest.raises(SpecError, match="absolute"):
            started.put(tmp_path / "file", "relative")
        started.put(tmp_path / "file", "/tmp/file")
        assert started.exec(["cat", "/tmp/file"]).stdout == b"x"


@pytest.mark.slow
def test_a_copy_of_a_gibibyte_needs_little_memory(container: hr.Container, tmp_path: Path) -> None:
    size = 1 << 30
    with open(tmp_path / "big", "wb") as big:
        big.truncate(size)
        for offset in range(0, size, 1 << 26):
            big.seek(offset)
            big.write(os.urandom(4096))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    container.put(tmp_path / "big", "/big")
    container.get("/big", tmp_path / "back")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    container.exec(["rm", "/big"])
    with open(tmp_path / "big", "rb") as big, open(tmp_path / "back", "rb") as back:
        while chunk := big.read(1 << 22):
            assert chunk == back.read(1 << 22)
        assert back.read(1) == b""
    assert grown < 64


def test_a_tree_of_which_tar_cannot_read_a_file_is_not_copied(
    runtime: hr.Runtime, base_image: str, busybox_image: str, tmp_path: Path
) -> None:
    script = (
        "mkdir -p /tmp/some && echo a >/tmp/some/a && echo b >/tmp/some/b && chmod 600 /tmp/some/b"
    )
    # GNU tar, and busybox's; on Apptainer, busybox cannot switch to a user by number.
    for image in dict.fromkeys(
        (base_image, base_image if runtime.name == "apptainer" else busybox_image)
    ):
        with runtime.container(hr.ContainerSpec(image=image)) as started:
            started.exec(["/bin/sh", "-c", script]).check()
            with pytest.raises(TransferError, match="Permission denied"):
                started.get("/tmp/some", tmp_path / "copy", user="1234")
            assert not (tmp_path / "copy").exists()


@pytest.fixture
def repository(runtime: hr.Runtime, base_image: str, tmp_path: Path) -> Path:
    """A repository of one commit; as root, it belongs to another user."""
    tmp_path.chmod(0o755)
    source = tmp_path / "repo"
    make = (
        "git init -q . && touch f && git add f && git -c user.name=n -c user.email=e commit -qm "
        "first"
    )
    source.mkdir()
    writable = hr.Mount(source=str(source), target="/made", read_only=False)
    with runtime.container(hr.ContainerSpec(image=base_image, mounts=(writable,))) as maker:
        maker.exec(["sh", "-c", f"cd /made && {make}"]).check()
    if os.geteuid() == 0:
        for path in (source, *source.rglob("*")):
            os.chown(path, 1234, 1234)
    return source


def test_git_works_in_a_repository_of_another_user_that_was_put_or_mounted(
    runtime: hr.Runtime, base_image: str, repository: Path
) -> None:
    users = (None, hr.RunAs(uid=20_004)) if runtime.info.users else (None,)
    mount = hr.Mount(source=str(repository), target="/in/repo")
    with runtime.container(hr.ContainerSpec(image=base_image, mounts=(mount,))) as container:
        container.put(repository, "/srv/repo/")
        for user in users:
            for place in ("/srv/repo", "/in/repo"):
                log = ["git", "-C", place, "log", "--format=%s"]
                assert container.exec(log, user=user).check().stdout == b"first\n"
            with container.shell(user=user) as shell:
                assert shell.run("cd /srv/repo && git log --format=%s").stdout == b"first\n"
        assert (
            container.exec(
                ["git", "config", "safe.directory"], env={"GIT_CONFIG_COUNT": "0"}
            ).exit_code
            == 1
        )


async def test_git_works_in_a_repository_of_another_user_in_a_slot(
    runtime: hr.Runtime, base_image: str, repository: Path
) -> None:
    mount = hr.Mount(source=str(repository), target="/in/repo")

    async with make_pool(
        runtime, base_image, spec=hr.ContainerSpec(image=base_image, mounts=(mount,))
    ) as pool:
        lease = pool.lease_of(await pool.acquire("first"))
        await lease.put(repository, "copy")
        for place in ("copy", "/in/repo"):
            assert await shell(lease, f"git -C {place} log --format=%s") == "first\n"
        async with await lease.shell() as kept:
            assert (await kept.arun("cd /in/repo && git log --format=%s")).stdout == b"first\n"
