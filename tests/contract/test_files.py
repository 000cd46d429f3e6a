"""Single files of containers and of slots, beyond the conformance suite."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hyperruntime as hr
from hyperruntime.errors import SpecError, TransferTimeoutError
from hyperruntime.transfer.file_errors import FileError, FileTooLargeError
from tests.contract.pools import make_pool

pytestmark = pytest.mark.engine

MIB = 1024**2
TEMPORARY = ".hyperruntime-"
_NAME = st.binary(min_size=1, max_size=60).map(
    lambda name: name.replace(b"/", b"-").replace(b"\0", b"\n")
)
_NAMES = st.sets(_NAME.filter(lambda name: name not in (b".", b"..")), min_size=1, max_size=4)
relaxed = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


@relaxed
@given(names=_NAMES, data=st.binary(max_size=300))
def test_files_have_any_name_and_any_content(
    shell_container: hr.Container, names: set[bytes], data: bytes
) -> None:
    shell_container.exec(["rm", "-rf", "/tmp/any"]).check()
    files = {f"/tmp/any/{os.fsdecode(name)}": data + name for name in names}
    shell_container.write_files(files)
    assert shell_container.read_files(files) == files
    assert {shell_container.read_file(path) for path in files} == set(files.values())
    assert {os.fsencode(name) for name in shell_container.listdir("/tmp/any")} == names
    for path, content in files.items():  # one short file goes another way
        shell_container.write_file(path, b"-%d" + content)
        assert shell_container.read_file(path) == b"-%d" + content


def test_readers_see_the_old_content_or_the_new_one(container: hr.Container) -> None:
    contents = [bytes([letter]) * MIB for letter in b"ab"]
    container.write_file("/tmp/changing", contents[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for content in contents:
                container.write_file("/tmp/changing", content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {container.read_file("/tmp/changing") for _ in range(20)}
    finally:
        stop.set()
        writer.join()
    assert seen <= set(contents)


def test_a_full_disk_keeps_the_old_file_and_leaves_nothing(
    runtime: hr.Runtime, base_image: str
) -> None:
    spec = hr.ContainerSpec(image=base_image, limits=hr.Limits(tmpfs_bytes=4 * MIB))
    with runtime.container(spec) as container:
        container.write_file("/tmp/file", b"old")
        with pytest.raises(FileError, match="no space left") as caught:
            container.write_file("/tmp/file", bytes(8 * MIB))
        assert caught.value.errno == errno.ENOSPC
        assert container.read_file("/tmp/file") == b"old"
        assert container.listdir("/tmp") == ["file"]


@pytest.mark.parametrize("shell", ["dash", "busybox", "bash"])
def test_a_short_text_that_does_not_fit_is_an_error_in_every_shell(
    runtime: hr.Runtime, images: dict[str, str], shell: str
) -> None:
    spec = hr.ContainerSpec(image=images[shell], limits=hr.Limits(tmpfs_bytes=4 * MIB))
    with runtime.container(spec) as container:
        assert (
            container.exec(
                ["dd", "if=/dev/zero", "of=/tmp/filler", "bs=65536", "count=99"]
            ).exit_code
            == 1
        )
        with pytest.raises(FileError, match="no space left") as caught:
            container.write_file("/tmp/file", b"text\n" * 3000)
        assert caught.value.errno == errno.ENOSPC
        assert container.listdir("/tmp") == ["filler"]


@pytest.mark.parametrize(("program", "data"), [("mv", b"\0"), ("dd", bytes(1 << 17))])
def test_a_write_that_cannot_end_leaves_nothing(
    runtime: hr.Runtime, base_image: str, program: str, data: bytes
) -> None:
    with runtime.container(
        hr.ContainerSpec(image=base_image, env={"PATH": "/tools:/usr/bin:/bin"})
    ) as container:
        hangs = b"#!/bin/sh\nexec sleep 1000\n"
        container.write_files({f"/tools/{program}": hangs}, mode=0o755)
        with pytest.raises(TransferTimeoutError, match="timeout_s"):
            container.write_file("/tmp/there/file", data, timeout_s=0.5)
        assert container.listdir("/tmp/there") == []


def test_programs_of_the_container_that_lie_are_errors_and_no_crash(
    runtime: hr.Runtime, base_image: str
) -> None:
    lies = {
        f"/tools/{name}": b"#!/bin/sh\necho '7 x' 0x 1; echo lies >&2\n"
        for name in ("stat", "head", "mv")
    }
    with runtime.container(
        hr.ContainerSpec(image=base_image, env={"PATH": "/tools:/usr/bin:/bin"})
    ) as container:
        container.write_files(lies, mode=0o755)
        with pytest.raises(FileError, match="stat"):
            container.stat("/etc/passwd")
        assert container.read_file("/etc/passwd") == b"7 x 0x 1\n"
        container.write_file("/tmp/x", b"x")  # the false mv ends with 0


def test_files_that_cannot_be_renamed_are_written_in_place(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    mounted = tmp_path / "mounted"
    mounted.write_text("old")
    mounted.chmod(0o666)
    inode = mounted.stat().st_ino
    mount = hr.Mount(source=str(mounted), target="/mounted", read_only=False)
    with runtime.container(hr.ContainerSpec(image=base_image, mounts=(mount,))) as container:
        container.write_file("/mounted", b"new and longer")
        assert (mounted.read_bytes(), mounted.stat().st_ino) == (b"new and longer", inode)
        assert not [name for name in container.listdir("/") if name.startswith(TEMPORARY)]


def test_links_modes_and_hard_links_are_as_documented(container: hr.Container) -> None:
    script = (
        "mkdir -p d && cd d && echo old >file && chmod 4750 file && ln file hard && ln -s file "
        "link && ln -s . here"
    )
    container.exec(["sh", "-c", script], workdir="/tmp").check()
    container.write_file("/tmp/d/here/../d/here/link", b"new")
    assert container.read_file("/tmp/d/file") == b"new"
    assert container.stat("/tmp/d/link", follow_symlinks=False).kind == "symlink"
    assert container.stat("/tmp/d/file").mode == 0o4750
    assert container.read_file("/tmp/d/hard") == b"old\n"
    container.write_file("/tmp/d/file", b"", mode=0o600)
    assert container.stat("/tmp/d/file").mode == 0o600


def test_a_write_keeps_the_owner_and_the_group_of_a_file(container: hr.Container) -> None:
    script = "mkdir -p own && cd own && touch group owner && chgrp 5 group && chown 6 owner"
    if container.exec(["sh", "-c", script], workdir="/tmp").exit_code:
        pytest.skip("this engine's containers have one user")
    container.write_files({"/tmp/own/group": b"1", "/tmp/own/owner": b"2"})
    group, owner = (container.stat(f"/tmp/own/{name}") for name in ("group", "owner"))
    assert [(group.uid, group.gid), (owner.uid, owner.gid)] == [(0, 5), (6, 0)]


def test_a_user_writes_a_file_whose_owner_it_cannot_set(container: hr.Container) -> None:
    """The content was lost: the temporary file was closed to the user too."""
    script = "mkdir -m 777 other; cd other; touch a b; chown 1234:5 a; chmod 666 b"
    if container.exec(["sh", "-c", script], workdir="/tmp").exit_code:
        pytest.skip("this engine's containers have one user")
    user = hr.RunAs(uid=1234)
    for name in ("a", "b"):
        path = f"/tmp/other/{name}"
        container.write_file(path, b"new", user=user)
        assert container.read_file(path) == b"new"


def test_the_limit_is_exact_and_that_of_many_files_is_for_all_together(
    container: hr.Container,
) -> None:
    container.write_files({"/tmp/one": bytes(1000), "/tmp/two": bytes(1000)})
    assert len(container.read_file("/tmp/one", limit_bytes=1000)) == 1000
    assert len(container.read_files(["/tmp/one", "/tmp/two"], limit_bytes=2000)) == 2
    for files, limit in ((["/tmp/one"], 999), (["/tmp/one", "/tmp/two"], 1999)):
        with pytest.raises(FileTooLargeError, match=f"more than {limit} bytes"):
            container.read_files(files, limit_bytes=limit)


def test_more_paths_than_a_command_line_holds(container: hr.Container) -> None:
    directory = "/tmp/" + "/".join(["d" * 200] * 10)
    files = {f"{directory}/{number}": b"%d" % number for number in range(400)}  # 800 KB of paths
    container.write_files(files)
    assert container.read_files(files) == files


def test_a_file_that_fails_does_not_stop_the_others(container: hr.Container) -> None:
    errors: list[FileError] = []
    files = {
        "/tmp/before": b"1",
        "/tmp": bytes(70_000),
        "/etc/passwd/x": bytes(3 * MIB),
        "/tmp/after": b"2",
    }
    container.write_files(files, on_error=errors.append)
    assert [(error.path, error.errno) for error in errors] == [
        ("/tmp", errno.EISDIR),
        ("/etc/passwd/x", errno.ENOTDIR),
    ]
    assert container.read_files(["/tmp/before", "/tmp/after"]) == {
        "/tmp/before": b"1",
        "/tmp/after": b"2",
    }
    with pytest.raises(IsADirectoryError, match="'/tmp'"):
        container.write_files(files)
    container.write_files({})
    assert container.read_files([]) == {}


def test_invalid_arguments_are_refused_before_anything_runs(container: hr.Container) -> None:
    for call in (
        lambda: container.read_file("relative"),
        lambda: container.read_file("/nul\0"),
        lambda: container.read_file("/tmp/one", limit_bytes=-1),
        lambda: container.read_file("/tmp/one", timeout_s=0),
        lambda: container.write_file("/tmp/text", "text"),  # type: ignore[arg-type]
        lambda: container.write_file("/tmp/text", b"", mode=0o10000),
    ):
        with pytest.raises(SpecError):
            call()


async def use_async_twins(container: hr.Container) -> None:
    await container.awrite_file("/tmp/async/a", b"a")
    await container.awrite_files({"/tmp/async/b": b"b"}, mode=0o600)
    assert await container.aread_file("/tmp/async/a") == b"a"
    assert await container.aread_files(["/tmp/async/b"]) == {"/tmp/async/b": b"b"}
    assert (await container.astat("/tmp/async/b")).mode == 0o600
    assert await container.alistdir("/tmp/async") == ["a", "b"]
    container.exec(["mkfifo", "/tmp/async/pipe"]).check()
    reading = asyncio.ensure_future(container.aread_file("/tmp/async/pipe", timeout_s=None))
    await asyncio.sleep(0.2)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


def test_the_async_twins_do_the_same_and_can_be_cancelled(container: hr.Container) -> None:
    asyncio.run(use_async_twins(container))


async def test_a_lease_reads_and_writes_in_its_workspace(
    runtime: hr.Runtime, base_image: str
) -> None:
    async with make_pool(runtime, base_image) as pool, pool.lease() as lease:
        await lease.write_file("deep/er", b"exact\xff")
        assert await lease.read_file(f"{lease.slot.workspace}/deep/er") == b"exact\xff"
        assert await lease.listdir() == ["deep"]
        assert (await lease.stat("deep")).kind == "directory"
        await lease.write_files({"a": b"1", "b": b"2"}, mode=0o600)
        assert sorted((await lease.read_files(["a", "b"])).values()) == [b"1", b"2"]
        with pytest.raises(FileNotFoundError, match="nothing"):
            await lease.read_file("nothing")
        if runtime.info.users:
            async with pool.lease() as other:
                with pytest.raises(PermissionError):
                    await other.read_file(f"{lease.slot.workspace}/a")


def test_a_lease_without_asyncio_does_the_same(runtime: hr.Runtime, base_image: str) -> None:
    with hr.open_pool(hr.ContainerSpec(image=base_image), runtime) as pool, pool.lease() as lease:
        lease.write_file("a", b"1")
        lease.write_files({"b": b"2"})
        assert (lease.read_file("a"), list(lease.read_files(["b"]).values())) == (b"1", [b"2"])
        assert (lease.listdir(), lease.stat("a").size_bytes) == (["a", "b"], 1)
