"""The trees of this library's store are those that another engine makes of the same image."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.host.process import run_process
from hyperruntime.layers import owners
from hyperruntime.layers.archive import ENV_FILE, ImageArchive
from hyperruntime.layers.images import StoredImages
from hyperruntime.layers.store import Store
from hyperruntime.layers.unpack import MOUNT_POINTS
from tests.registry import busybox_layer

pytestmark = pytest.mark.engine
NAME = "localhost/hyperruntime-test/layers:latest"
# Each line is a layer: hidden files and directories, a directory that hides an older one, links in
# place of directories and the reverse, hard links, odd modes, names and owners.
STEPS = """\
mkdir -p /a/b/c /d /e /swap /modes && echo one >/a/1 && echo two >/a/b/2 && echo three >/d/3
busybox ln -s /a /link && busybox ln /a/1 /hard && busybox ln -s 1 /a/soft && busybox ln /a/1 /a/b/hard
rm -rf /d && mkdir /d && echo new >/d/4
rm /a/b/2 && busybox ln -s b /a/to-b && echo changed >/a/1
rm -rf /swap && busybox ln -s a /swap && rm /link && mkdir /link && echo five >/link/5
chmod 4755 /a/b/hard && chmod 1777 /e && chmod 2750 /modes && chmod 0 /a/b/c && echo x >/e/.hidden
rm -rf /a/b && echo file >/a/b && busybox mkfifo /e/pipe && echo é >'/e/ü x'
busybox chown 5:6 /a /a/1 /e/.hidden && busybox chown -h 7:8 /swap && busybox chown 9 /link && chmod 6755 /hard
busybox chown 0:0 /e/.hidden && echo again >/link/5 && busybox chown 1:2 /d/4 && rm /d/4 && echo new >/d/4
busybox rmdir /e/none || rm -rf /modes && mkdir /modes && chmod 700 /modes && busybox touch -d 2001-02-03 /e
"""
IS_ROOT = os.geteuid() == 0
Facts = dict[str, tuple[str, int, object, int, object]]


def facts_of_export(tar: Path) -> Facts:
    """Return what an exported container has, with the rights that the store gives its owner."""
    found: Facts = {}
    with tarfile.open(tar) as exported:
        contents = {one.name: one for one in exported}
        for name, member in contents.items():
            mode = stat.S_IMODE(member.mode) | 0o600
            mode |= 0o100 if member.isdir() or mode & 0o111 else 0
            also = (int(member.mtime), (member.uid, member.gid) if IS_ROOT else None)
            if member.issym():
                found[name] = ("link", 0, member.linkname, *also)
            elif member.isdir():
                found[name] = ("directory", mode, None, *also)
            elif member.isreg() or member.islnk():
                file = exported.extractfile(member)
                assert file is not None
                found[name] = ("file", mode, file.read(), *also)
    return found


def facts_of_tree(root: Path) -> Facts:
    found: Facts = {}
    for path in root.rglob("*"):
        status = path.lstat()
        content: object = None
        kind = "directory"
        if path.is_symlink():
            kind = "link"
            content = os.readlink(path)
        elif path.is_file():
            kind = "file"
            content = path.read_bytes()
        mode = 0 if kind == "link" else stat.S_IMODE(status.st_mode)
        owner = (status.st_uid, status.st_gid) if IS_ROOT else None
        found[str(path.relative_to(root))] = (kind, mode, content, int(status.st_mtime), owner)
    return found


@pytest.mark.parametrize("kind", ["docker-archive", "oci-archive"])
def test_a_tree_is_what_podman_makes_of_the_same_image(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if IS_ROOT:  # the machine's root does what root of a user namespace does elsewhere
        monkeypatch.setattr(owners, "has_all_ids", lambda: True)
        monkeypatch.setattr(owners, "as_root_inside", list)

    def podman(*args: str) -> None:
        done = run_process(["podman", *args], cwd=tmp_path)
        assert done.exit_code == 0, done.error_text

    (tmp_path / "base.tar").write_bytes(busybox_layer("hello\n"))
    lines = (f"RUN {step}\n" for step in STEPS.splitlines())
    text = f"FROM scratch\nADD base.tar /\nENV A=1 PATH=/bin\n{''.join(lines)}WORKDIR /a\n"
    (tmp_path / "Containerfile").write_text(text)
    with hr.open_runtime("podman") as runtime:
        runtime.images.build(NAME, containerfile=tmp_path / "Containerfile", force=True)
    try:
        podman("save", "--format", kind, "--output", "saved.tar", NAME)
        podman("create", "--name", "hyperruntime-test-layers", NAME, "true")
        podman("export", "--output", "export.tar", "hyperruntime-test-layers")
    finally:
        run_process(["podman", "rm", "-f", "hyperruntime-test-layers"])
        run_process(["podman", "rmi", "-f", NAME])
    with ImageArchive(tmp_path / "saved.tar", tmp_path) as saved:
        assert len(saved.images[0].layers) > len(STEPS.splitlines())
    images = StoredImages("test", store=Store(tmp_path / "store"))
    assert images.load(tmp_path / "saved.tar") == (NAME,)
    source = images.source(NAME)
    assert (source.env, source.workdir) == ({"A": "1", "PATH": "/bin"}, "/a")
    tree = facts_of_tree(Path(source.files))
    exported = facts_of_export(tmp_path / "export.tar")
    own = {*MOUNT_POINTS, "var", ENV_FILE, *map(str, Path(ENV_FILE).parents)}
    for facts in (tree, exported):
        for name in [*facts]:
            if name in own or name.split("/")[0] in ("dev", "etc", "proc", "run", "sys"):
                del facts[name]
    assert tree == exported
    assert not IS_ROOT or tree["a/1"][-1] == (5, 6)
    assert {"a/1", "hard", "d/4", "swap", "link/5", "a/b", "e/.hidden", "e/ü x"} <= tree.keys()


def test_the_base_image_of_podman_is_the_same_here(tmp_path: Path) -> None:
    with hr.open_runtime("podman") as runtime:
        image = runtime.images.ensure("base")
        runtime.images.save(image, tmp_path / "base.tar")
        with runtime.container(hr.ContainerSpec(image=image)) as container:
            listed = container.exec(["find", "/usr", "-printf", "%P %y %s %T@\\n"]).check().stdout
    images = StoredImages("test", store=Store(tmp_path / "store"))
    (name,) = images.load(tmp_path / "base.tar")
    usr = f"{images.source(name).files}/usr"
    args = ["find", usr, "-printf", "%P %y %s %T@\\n"]
    ours = {line for line in run_process(args).stdout.splitlines() if b" d " not in line}
    theirs = {line for line in listed.splitlines() if b" d " not in line}
    assert ours == theirs
