"""Steps of builds: files that they change, mount points, the cache, and archives."""

from __future__ import annotations

import errno
import io
import os
import tarfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import ImageBuildError, StorageFullError
from hyperruntime.host.process import ProcessResult
from hyperruntime.images.building.context import Context
from hyperruntime.images.building.read import Containerfile
from hyperruntime.images.building.steps import BuildMount, Copy, Run
from hyperruntime.layers import blobs
from hyperruntime.layers.blobs import NoProgramError, is_archive
from hyperruntime.layers.config import ImageConfig
from hyperruntime.layers.stepwise import builder, file_program
from hyperruntime.layers.stepwise.build_cache import BuildCache
from hyperruntime.layers.stepwise.builder import (
    Base,
    Files,
    ImageBuild,
    Means,
    _Lines,
    _remove_mount_points,
)
from hyperruntime.spec import ContainerSpec

KEY = "0123456789abcdef" * 4


class _Locks:
    """A store that notes the locks that are taken."""

    def __init__(self, root: Path) -> None:
        self.taken: list[str] = []
        self._root = root

    def builds(self) -> Path:
        return self._root / "builds"

    def lock(self, name: str) -> nullcontext[None]:
        self.taken.append(name)
        return nullcontext()


class _StartedError(Exception):
    """A container would be started."""


def _start(spec: ContainerSpec, **options: Any) -> nullcontext[Any]:
    raise _StartedError(spec)


def build_of(tmp_path: Path) -> tuple[ImageBuild, _Locks]:
    """Return a build of a context ``context``, whose containers do not start."""
    locks = _Locks(tmp_path)
    base = Base(tree=str(tmp_path), id="0", config=ImageConfig())
    asked = iter([base])  # a second question would end the test
    store: Any = locks
    means = Means(
        engine="test", start=_start, users=False, overlay=True, store=store,
        base=lambda name: next(asked),
    )  # fmt: skip
    (tmp_path / "context").mkdir()
    context = Context(tmp_path / "context", tmp_path / "context/Containerfile")
    file = Containerfile("FROM x\n", {}, {"TARGETPLATFORM": "linux/amd64"})
    return ImageBuild(means, context, file, force=False, on_output=print), locks


def run_with(*mounts: BuildMount, script: str = "") -> Run:
    """Return a step with mounts."""
    return Run(
        line=2, text="RUN", args=("true",), env={}, workdir="/", user="", mounts=mounts,
        script=script,
    )  # fmt: skip


def test_a_bound_directory_lies_in_the_context_whatever_was_read(tmp_path: Path) -> None:
    build, _ = build_of(tmp_path)
    (tmp_path / "context/up").symlink_to("../../etc")
    mount = BuildMount(kind="bind", target="/m", source="../../up/x")
    with build._mount(mount, run_with(mount)) as made:
        assert made.source == str(tmp_path / "context/etc/x")


def test_locks_of_caches_are_taken_once_and_in_one_order(tmp_path: Path) -> None:
    build, locks = build_of(tmp_path)
    ids = enumerate("baca")
    mounts = [BuildMount(kind="cache", target=f"/m{n}", source=name) for n, name in ids]
    with pytest.raises(_StartedError):
        build._run(Files(key="", tree=str(tmp_path)), run_with(*mounts), KEY)
    assert len(locks.taken) == 3
    assert locks.taken == sorted(locks.taken)


def test_a_program_of_a_step_may_be_run_by_each_user_and_has_any_bytes(tmp_path: Path) -> None:
    build, _ = build_of(tmp_path)
    with build._script("#!/bin/sh\n\udcff") as made:
        assert Path(made.source).stat().st_mode & 0o777 == 0o755
        assert Path(made.source, "run").read_bytes() == b"#!/bin/sh\n\xff"


def test_a_base_is_asked_for_once(tmp_path: Path) -> None:
    build, _ = build_of(tmp_path)
    assert build._base("x") is build._base("x")


def copied(tmp_path: Path, *sources: str, **more: Any) -> Path:
    """Copy sources of ``from`` into ``/t/`` of a tree without other users; return the tree."""
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    job = {
        "root": str(root), "from": str(tmp_path / "from"), "kept": None, "users": False,
        "keeps_owners": True, "scratch": str(tmp_path), "sources": sources, "target": "/t/",
        "chown": f"{os.getuid()}:{os.getgid()}", "chmod": "", "link": False, "unpacks": False,
    }  # fmt: skip
    owners = file_program._Owners(str(root), users=True)
    file_program._copy({**job, **more}, str(root), owners)
    return root


@pytest.mark.parametrize("mode", ["777", "a+x"])
def test_a_mode_is_given_to_no_target_of_a_link(tmp_path: Path, mode: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o600)
    for name in ("one", "two"):
        (tmp_path / "from" / name).mkdir(parents=True)
    (tmp_path / "from/one/x").write_text("")
    (tmp_path / "from/one/y").write_text("")
    (tmp_path / "from/two/x").symlink_to(outside)
    root = copied(tmp_path, "one", "two", chmod=mode)
    assert (root / "t/x").is_symlink()
    assert (root / "t/y").stat().st_mode & 0o111 == 0o111
    assert outside.stat().st_mode & 0o777 == 0o600


def test_a_file_with_several_names_may_be_copied_twice(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from/package.json").write_text("1")
    os.link(tmp_path / "from/package.json", tmp_path / "from/package-lock.json")
    root = copied(tmp_path, "package.json", "package*.json")
    assert [one.read_text() for one in (root / "t").iterdir()] == ["1", "1"]


def test_mount_points_are_not_removed_through_links(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    for name in ("layer/real/deep", "base", "outside/deep", "devices/empty"):
        (tmp_path / name).mkdir(parents=True)
    (layer / "link").symlink_to(tmp_path / "outside")
    (layer / "dev").symlink_to(tmp_path / "devices")
    files = Files(key="", tree=str(tmp_path / "base"))
    _remove_mount_points(str(layer), files, ("/link/deep", "/real/deep"))
    assert (tmp_path / "outside/deep").is_dir()
    assert (tmp_path / "devices/empty").is_dir()
    assert not (layer / "real").exists()


def test_marks_of_fuse_overlayfs_hide_what_lies_below_and_end_there(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    target = tmp_path / "target"
    for name in ("layer/new", "layer/run/mounted", "target/gone", "target/new", "target/run"):
        (tmp_path / name).mkdir(parents=True)
    (target / "gone/in").touch()
    (target / "new/below").touch()
    for name in (".wh.gone", ".wh.", ".wh..", ".wh..."):  # the last ones name no file
        (layer / name).touch()
    for name in file_program.OPAQUE:
        (layer / "new" / name).touch()
        (layer / "run/mounted" / name).touch()
    _remove_mount_points(str(layer), Files(key="", tree=str(target)), ("/run/mounted",))
    file_program._lay(str(layer), str(target), by_fuse=True)
    assert sorted(str(one.relative_to(target)) for one in target.rglob("*")) == ["new", "run"]


def test_files_with_the_names_of_marks_are_files_where_the_kernel_mounts(tmp_path: Path) -> None:
    for name in ("layer/.wh.kept", "layer/.wh.", "layer/.wh...", "layer/.wh..wh..opq", "tree/kept"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.setxattr(tmp_path / "layer", "user.fuseoverlayfs.opaque", b"y")
    trees = [str(tmp_path / name) for name in ("layer", "tree")]
    file_program._merge(trees, str(tmp_path / "made"))
    assert sorted(os.listdir(tmp_path / "made")) == [
        ".wh.",
        ".wh...",
        ".wh..wh..opq",
        ".wh.kept",
        "kept",
    ]
    assert os.listxattr(tmp_path / "made") == []


def test_a_full_disk_is_no_error_of_the_containerfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, _ = build_of(tmp_path)
    step = Copy(line=2, text="COPY x /y", target="/y")
    why = os.strerror(errno.ENOSPC)
    failed = ProcessResult(args=(), exit_code=1, stdout=b"", stderr=f"/disk/y: {why}".encode())
    monkeypatch.setattr(builder, "run_process", lambda *_, **__: failed)
    with pytest.raises(StorageFullError, match=f"/disk/y: {why}; free space there"):
        build._program(step, {})

    def make(*_: object) -> str:
        raise OSError(errno.ENOSPC, why)

    monkeypatch.setattr(build, "_make", make)
    with pytest.raises(ImageBuildError, match=f"line 2: COPY x /y: .*{why}; free space"):
        build._after(Files(key="", tree=str(tmp_path)), step)


def test_the_cache_is_private_and_compares_whole_keys(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path / "builds", ())
    (tmp_path / "builds").mkdir(mode=0o755)
    (tmp_path / "layer").mkdir()
    kept = cache.add(KEY, str(tmp_path / "layer"))
    assert (tmp_path / "builds").stat().st_mode & 0o777 == 0o700
    assert cache.find(KEY) == kept
    assert cache.find(KEY[:-1] + "0") is None


def test_an_old_layer_is_renamed_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = BuildCache(tmp_path / "builds", ())
    (tmp_path / "layer").mkdir()
    kept = Path(cache.add(KEY, str(tmp_path / "layer"))).parent
    os.utime(kept, (0, time.time() - 8 * 24 * 3600))
    removed: list[str] = []
    monkeypatch.setattr("hyperruntime.layers.stepwise.build_cache.remove_tree", removed.append)
    cache.remove_old()
    assert not kept.exists()
    assert [Path(one).name[:5] for one in removed] == [".old-"]
    assert cache.find(KEY) is None


def test_a_layer_that_goes_while_it_is_looked_up_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = BuildCache(tmp_path / "builds", ())
    (tmp_path / "layer").mkdir()
    cache.add(KEY, str(tmp_path / "layer"))

    def gone(path: Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "utime", gone)
    assert cache.find(KEY) is None


def test_a_file_that_no_program_can_decompress_is_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(blobs._ZSTD + b"0" * 100)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoProgramError, match="zstd"):
        is_archive(tmp_path / "x", tmp_path)


def test_an_archive_is_known_by_its_first_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(tmp_path / "tar", "w") as tar:
        member = tarfile.TarInfo("x")
        member.size = 10
        tar.addfile(member, io.BytesIO(b"0" * 10))
    (tmp_path / "zstd").write_text(f"#!/bin/sh\ncat {tmp_path}/tar\nexec sleep 600\n")
    (tmp_path / "zstd").chmod(0o755)
    (tmp_path / "x").write_bytes(blobs._ZSTD)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert is_archive(tmp_path / "x", tmp_path)


def test_long_lines_of_output_are_passed_on_in_parts() -> None:
    seen: list[str] = []
    lines = _Lines(seen.append)
    for _ in range(3):
        lines("stdout", b"x" * 40_000)
    lines("stdout", b"\ny")
    lines.end()
    assert [len(one) for one in seen] == [80_000, 40_000, 1]
