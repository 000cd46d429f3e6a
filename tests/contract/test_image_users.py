"""The USER of an image and the owners of its files: the same on every engine."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import psutil
import pytest

import hyperruntime as hr
from hyperruntime.driver import OpensShells
from hyperruntime.errors import UnsupportedOptionError, UserNotFoundError
from hyperruntime.host.process import find_program, wait_until
from hyperruntime.layers.overlays import FUSE
from hyperruntime.layers.scratch import remove_tree
from hyperruntime_bubblewrap.probe import cached_probe
from tests.doubles.layers import Entry, docker_archive, entry, layer

pytestmark = pytest.mark.engine
NAME = "localhost/hyperruntime-test/users:{}"
APPLETS = "cat chmod head id ls mkdir mv rm setsid sleep stat touch wc"
PASSWD = "root:x:0:0::/root:/bin/sh\nann:x:4001:4001::/home/ann:/bin/sh\nben:x:4002:0::/home/ben:\n"
GROUP = "root:x:0:\nann:x:4001:\nteam:x:4100:ann\n"
CONFIGS: dict[str, dict[str, object]] = {
    "ann": {"User": "ann"},
    "team": {"User": "ann:team"},
    "number": {"User": "1234", "Env": ["HOME=/app"]},
    "gone": {"User": "nobody-at-all"},
    "root": {},
}
WHO = ["sh", "-c", 'echo $(id -u):$(id -G) "$HOME"']


def owned(one: Entry, uid: int, gid: int) -> Entry:
    one.uid = uid
    one.gid = gid
    return one


def program(path: str, target: str) -> Entry:
    made = entry(target, mode=0o755)
    made.content = Path(path).read_bytes()
    made.size = len(made.content)
    return made


def files() -> list[Entry | str]:
    """Return two shells, busybox, and a program that switches users, with their libraries."""
    # the `sh` of busybox would take its own `setpriv`, which switches no user
    programs = {
        "/bin/dash": "bin/sh",
        "/bin/bash": "bin/bash",
        "/usr/bin/setpriv": "usr/bin/setpriv",
    }
    listed = subprocess.check_output(["ldd", *programs], text=True)
    libraries = {path: path.removeprefix("/") for path in re.findall(r"(/\S+) \(", listed)}
    return [
        "etc/",
        "tmp/",
        program("/bin/busybox", "bin/busybox"),
        *(entry(f"bin/{name}", "symlink", "busybox") for name in APPLETS.split()),
        *(program(path, target) for path, target in {**programs, **libraries}.items()),
        entry("etc/passwd", text=PASSWD),
        entry("etc/group", text=GROUP),
        owned(entry("home/ann", "directory", mode=0o700), 4001, 4001),
        owned(entry("home/ann/file", text="of ann\n", mode=0o600), 4001, 4001),
        owned(entry("home/ann/link", "symlink", "/etc/passwd"), 4001, 4001),
        owned(entry("shared", "directory", mode=0o2775), 0, 4100),
        owned(entry("tool", text="x", mode=0o4755), 4002, 0),
        owned(entry("again", "hardlink", "tool", mode=0o4755), 4002, 0),
    ]


@pytest.fixture(scope="module")
def runtime_of_test(
    runtime_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[hr.Runtime]:
    """Yield a runtime with a store of its own, and an image for each USER."""
    folder = tmp_path_factory.mktemp("users")
    data = layer(files())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYPERRUNTIME_IMAGES", str(folder / "store"))
        with hr.open_runtime(runtime_name) as runtime:
            loaded: list[str] = []
            for tag, own in CONFIGS.items():
                path = docker_archive(folder / f"{tag}.tar", data, name=NAME.format(tag), **own)
                loaded += runtime.images.load(path)
            yield runtime
        with hr.open_runtime(runtime_name) as runtime:  # the other one has ended its containers
            for name in loaded:
                runtime.images.remove(name)


def spec(tag: str, **fields: object) -> hr.ContainerSpec:
    return hr.ContainerSpec(image=NAME.format(tag), limits=hr.Limits(pids=None), **fields)  # type: ignore[arg-type]


@pytest.fixture
def runtime(runtime_of_test: hr.Runtime) -> hr.Runtime:
    if not runtime_of_test.info.users:
        with pytest.raises(UnsupportedOptionError, match="user"):
            runtime_of_test.container(spec("root", user="ann"))
        pytest.skip("there is one user here; this has checked that another one is refused")
    return runtime_of_test


@pytest.mark.parametrize(
    ("tag", "fields", "who"),
    [
        ("ann", {}, "4001:4001 4100 /home/ann"),
        ("team", {}, "4001:4100 /home/ann"),
        ("number", {}, "1234:0 /app"),
        ("number", {"env": {"HOME": "/of spec"}}, "1234:0 /of spec"),
        ("root", {}, "0:0 /root"),
        ("ann", {"user": "root"}, "0:0 /root"),
        ("ann", {"user": "ben"}, "4002:0 /home/ben"),
        ("root", {"user": "1000:1001"}, "1000:1001 /"),
    ],
)
def test_commands_run_as_the_user_of_the_image_or_of_the_spec(
    runtime: hr.Runtime, tag: str, fields: dict[str, object], who: str
) -> None:
    with runtime.container(spec(tag, **fields)) as container:
        assert container.exec(WHO).check().stdout.decode() == f"{who}\n"
        with container.shell() as shell:
            assert shell.run(WHO[2]).check().stdout.decode() == f"{who}\n"
        assert container.exec(["id", "-u"], user="root").check().stdout == b"0\n"


def test_a_user_that_the_image_does_not_have_is_named(runtime: hr.Runtime) -> None:
    with pytest.raises(UserNotFoundError, match="nobody-at-all"):
        runtime.container(spec("root", user="nobody-at-all"))
    with pytest.raises(UserNotFoundError):
        runtime.container(spec("gone"))


def test_files_of_an_image_have_their_owners_and_a_user_its_rights(runtime: hr.Runtime) -> None:
    names = [
        "/home/ann",
        "/home/ann/file",
        "/home/ann/link",
        "/shared",
        "/tool",
        "/again",
        "/etc/passwd",
    ]
    with runtime.container(spec("ann")) as container:
        listed = container.exec(["stat", "-c", "%n %u:%g %a", *names]).check().stdout
        assert listed.decode().splitlines() == [
            "/home/ann 4001:4001 700",
            "/home/ann/file 4001:4001 600",
            "/home/ann/link 4001:4001 777",
            "/shared 0:4100 2775",
            "/tool 4002:0 4755",
            "/again 4002:0 4755",
            "/etc/passwd 0:0 644",
        ]
        container.write_file("/home/ann/new", b"new")
        assert container.read_file("/home/ann/file") == b"of ann\n"
        made = container.exec(["stat", "-c", "%u:%g", "/home/ann/new"]).check()
        assert made.stdout == b"4001:4001\n"
        with pytest.raises(PermissionError):
            container.write_file("/etc/passwd", b"")
        script = "while read a b; do case $a in Cap[PEA]*) echo $b;; esac; done </proc/self/status"
        shown = container.exec(["sh", "-c", script]).check().stdout
        assert shown.split() == [b"0" * 16] * 3  # permitted, effective, ambient
        if not isinstance(container._live, OpensShells):
            other = hr.RunAs(uid=20_001)
            assert container.exec(["ls", "/home/ann"], user=other).exit_code != 0


def test_a_saved_image_has_the_owners(runtime: hr.Runtime, tmp_path: Path) -> None:
    if runtime.name not in ("apptainer", "bubblewrap"):
        pytest.skip("the engine's own program writes its archives")
    runtime.images.save(NAME.format("ann"), tmp_path / "saved.tar")
    with tarfile.open(tmp_path / "saved.tar") as saved:
        inner = saved.extractfile("layer.tar")
        assert inner is not None
        with tarfile.open(fileobj=inner) as rootfs:
            owners = {one.name: (one.uid, one.gid, one.mode) for one in rootfs}
    assert owners["./home/ann/file"] == (4001, 4001, 0o600)
    assert owners["./shared"] == (0, 4100, 0o2775)
    assert owners["./tool"] == (4002, 0, 0o4755)
    assert owners["./etc/passwd"] == (0, 0, 0o644)


def test_a_packed_image_has_the_owners(
    runtime: hr.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a store on a network file system keeps it, and each machine unpacks it."""
    if runtime.name not in ("apptainer", "bubblewrap"):
        pytest.skip("the engine has its own store")
    monkeypatch.setattr("hyperruntime.layers.store.file_system", lambda _: "nfs")
    monkeypatch.setenv("HYPERRUNTIME_IMAGES", str(tmp_path / "shared"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    archive = docker_archive(
        tmp_path / "a.tar", layer(files()), name=NAME.format("packed"), User="ann"
    )
    with hr.open_runtime(runtime.name) as other:
        other.images.load(archive)
        unpacked = next(tmp_path.glob("hyperruntime-*-images"))
        remove_tree(str(unpacked))
        with other.container(spec("packed")) as container:
            assert container.exec(["stat", "-c", "%u:%g %a", "/home/ann", "/tool"]).stdout == (
                b"4001:4001 700\n4002:0 4755\n"
            )
    assert list(unpacked.iterdir())
    remove_tree(str(unpacked))  # pytest cannot remove files of subordinate ids


def test_an_owner_that_is_no_user_here_is_root_and_gives_no_rights(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    """A program with its set-user-ID bit would have those of root."""
    if runtime.name not in ("apptainer", "bubblewrap"):
        pytest.skip("the engine's own program unpacks its images")
    far = [
        owned(entry(f"far-{uid}", text="x", mode=0o4755), uid, 5)
        for uid in (3_000_000_000, 2**32 - 1)
    ]
    name = NAME.format("far")
    runtime.images.load(docker_archive(tmp_path / "far.tar", layer([*files(), *far]), name=name))
    try:
        with runtime.container(spec("far")) as container:
            listed = container.exec(["sh", "-c", "stat -c '%u %a' /far-*"]).check().stdout
    finally:
        runtime.images.remove(name)
    assert listed == b"0 755\n" * 2


def test_a_snapshot_has_the_owners_and_the_user(runtime: hr.Runtime) -> None:
    if not runtime.info.snapshots:
        pytest.skip("this engine has no snapshots")
    with runtime.container(spec("ann")) as container:
        container.exec(["touch", "/home/ann/kept"]).check()
        snapshot = container.snapshot()
        container.exec(["touch", "/home/ann/lost"]).check()
        container.rollback(snapshot)
        assert container.exec(["ls", "/home/ann"]).stdout == b"file\nkept\nlink\n"
        assert container.exec(WHO).stdout == b"4001:4001 4100 /home/ann\n"


@pytest.mark.parametrize("storage", [FUSE, "copy"])
def test_files_are_the_same_where_the_kernel_mounts_no_overlay(
    runtime: hr.Runtime, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the program that mounts them is left."""
    if runtime.name != "bubblewrap":
        pytest.skip("the engine mounts its files itself")
    if storage == FUSE and not (find_program(FUSE) and os.path.exists("/dev/fuse")):
        pytest.skip("fuse-overlayfs is not installed here")
    found = attrs.evolve(cached_probe()[0], storage=storage)
    monkeypatch.setattr("hyperruntime_bubblewrap.driver.cached_probe", lambda: (found, True))
    with hr.open_runtime("bubblewrap") as other:
        assert other.info.storage == storage
        with other.container(spec("ann")) as container:
            names = ["/home/ann", "/shared", "/tool"]
            listed = container.exec(["stat", "-c", "%n %u:%g %a", *names]).check().stdout
            assert listed == b"/home/ann 4001:4001 700\n/shared 0:4100 2775\n/tool 4002:0 4755\n"
            container.exec(["touch", "/home/ann/kept"]).check()
            container.exec(["rm", "-r", "/tool", "/shared"], user="root").check()
            snapshot = container.snapshot()
            with container.fork() as child:
                assert child.exec(["ls", "/home/ann"]).stdout == b"file\nkept\nlink\n"
            container.exec(["rm", "/home/ann/kept"]).check()
            container.rollback(snapshot)
            assert (
                container.exec(["ls", "/home/ann", "/tool", "/shared"]).stdout
                == b"/home/ann:\nfile\nkept\nlink\n"
            )
            name = container.name
    assert wait_until(
        lambda: (
            not any(
                name in word
                for p in psutil.process_iter(["cmdline"])
                for word in p.info["cmdline"] or ()
            )
        ),
        10,
    )
