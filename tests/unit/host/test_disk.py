"""The disk usage of a directory, and the removal of very deep directories."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperruntime.driver import PostMortem
from hyperruntime.errors import (
    ContainerLostError,
    RepositoryError,
    SpecError,
    StorageFullError,
    write_error,
)
from hyperruntime.host import disk
from hyperruntime.host.disk import LEAST_BYTES, NOTHING, DiskWatch, Use, free_space, measure
from hyperruntime.host.engine_program import start_refusal
from hyperruntime.host.process import wait_until
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.failures import translate_failure
from hyperruntime.spec import ContainerSpec, Limits
from hyperruntime.units import GIB, MIB

NAMES = st.text("ab.\u00e9", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
TREES = st.recursive(
    st.integers(0, 40_000), lambda below: st.dictionaries(NAMES, below, max_size=4), max_leaves=12
).filter(lambda tree: isinstance(tree, dict))


def make(folder: Path, tree: object) -> int:
    """Make files of these sizes; return the number of names."""
    count = 0
    for name, below in tree.items() if isinstance(tree, dict) else ():
        count += 1
        if isinstance(below, dict):
            (folder / name).mkdir()
            count += make(folder / name, below)
        else:
            (folder / name).write_bytes(os.urandom(below))
    return count


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """Make a directory that is deeper than any path can name."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(tmp_path)
    os.mkdir("top")
    os.chdir("top")
    for _ in range(1100):  # also deeper than Python calls a function
        os.mkdir("deep")
        os.chdir("deep")
    Path("file").write_bytes(bytes(MIB))
    os.fchdir(here)
    os.close(here)
    yield tmp_path / "top"
    remove_tree(tmp_path / "top")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES)
def test_the_usage_of_a_tree_is_that_of_its_files_and_it_can_be_removed(
    tmp_path: Path, tree: object
) -> None:
    top = tmp_path / "top"
    top.mkdir()
    names = make(top, tree)
    content = sum(path.stat().st_size for path in top.rglob("*") if path.is_file())
    least, most = max(names * LEAST_BYTES, content), content + names * 2 * LEAST_BYTES
    # A file system may report blocks late while it still writes them back.
    assert wait_until(lambda: least <= measure([str(top)], None, GIB).used_bytes <= most, 60)
    assert not measure([str(top)], None, GIB).hidden
    remove_tree(top)
    assert not top.exists()


def test_sparse_files_use_nothing_and_hard_links_count_once(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(10 * GIB)
    (tmp_path / "content").write_bytes(bytes(MIB))
    os.link(tmp_path / "content", tmp_path / "again")
    assert MIB <= measure([str(tmp_path)], None, GIB).used_bytes < 2 * MIB


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    (tmp_path / "elsewhere").write_bytes(bytes(MIB))
    os.symlink("/", tmp_path / "top" / "root")
    os.symlink("../elsewhere", tmp_path / "top" / "file")
    assert measure([str(tmp_path / "top")], None, GIB).used_bytes <= 2 * LEAST_BYTES
    remove_tree(tmp_path / "top")
    assert (tmp_path / "elsewhere").exists()


def test_a_tree_that_is_too_deep_is_reported_and_can_be_removed(deep: Path) -> None:
    assert measure([str(deep)], None, GIB).hidden
    remove_tree(deep)
    assert not deep.exists()


def test_directories_that_their_owner_may_not_read_or_change_are_removed(tmp_path: Path) -> None:
    """The work directory of an overlay mount is one."""
    for number, mode in enumerate((0o000, 0o500, 0o300)):
        below = tmp_path / "top" / str(number) / "closed"
        below.mkdir(parents=True)
        (below / "file").touch()
        below.chmod(mode)
        below.parent.chmod(mode)
    # Root may read and change all directories by two capabilities.
    drop = () if os.geteuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    remove = (
        "import sys; from hyperruntime.host.rmtree import remove_tree; remove_tree(sys.argv[1])"
    )
    subprocess.run([*drop, sys.executable, "-c", remove, str(tmp_path / "top")], check=True)
    assert not (tmp_path / "top").exists()


def test_a_missing_directory_is_not_an_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "none")
    assert measure([str(tmp_path / "none")], None, GIB).used_bytes == 0
    assert free_space([str(tmp_path / "none")]) == {}


def watch(top: Path, limit_bytes: int, copied: Use = NOTHING) -> list[tuple[str, str]]:
    """Watch a directory; return the list to which the watch appends its reports."""
    said: list[tuple[str, str]] = []
    DiskWatch(
        limit_bytes,
        [str(top)],
        None,
        lambda why, limit: said.append((why, limit)),
        copied,
    )
    return said


def test_files_of_an_image_that_were_copied_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(os.urandom(5 * MIB))
    said = watch(tmp_path, 2 * MIB, measure([str(tmp_path)], None, 2**60))
    (tmp_path / "new").write_bytes(os.urandom(3 * MIB))
    assert wait_until(lambda: bool(said), 60)
    used = re.search("at least ([0-9]+) bytes", said[0][0])
    assert used is not None
    assert 3 * MIB <= int(used[1]) < 5 * MIB


def test_hidden_parts_of_a_copied_image_do_not_make_other_work_on_the_disk_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other users: here, a double of what the count says."""
    image, counts = Use(5 * MIB, hidden=True), iter(range(100))

    def count(*_: object) -> Use:
        return Use(5 * MIB if next(counts) < 3 else 9 * MIB, hidden=True)

    monkeypatch.setattr(disk, "measure", count)
    monkeypatch.setattr(disk, "_taken", lambda *_: 10 * GIB)
    said = watch(tmp_path, 2 * MIB, image)
    assert wait_until(lambda: bool(said), 60)
    assert "at least 4194304 bytes" in said[0][0]


def test_usage_above_the_limit_is_reported_once(tmp_path: Path) -> None:
    said = watch(tmp_path, 4 * MIB)
    (tmp_path / "file").write_bytes(os.urandom(5 * MIB))
    assert wait_until(lambda: bool(said), 60)
    assert [limit for _, limit in said] == ["disk_bytes"]
    assert "limits.disk_bytes=4194304" in said[0][0]


def test_a_file_that_was_counted_twice_ends_no_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, watched = [Use(10 * MIB, hidden=False)], threading.Event()

    def count(*args: object) -> Use:
        if not counts:
            watched.set()
            return Use(MIB, hidden=False)
        return counts.pop()

    monkeypatch.setattr(disk, "measure", count)
    reasons: list[tuple[str, str]] = []
    watch = DiskWatch(
        5 * MIB, [str(tmp_path)], None, lambda why, limit: reasons.append((why, limit))
    )
    assert watched.wait(60)
    assert wait_until(lambda: watch.used_bytes == MIB, 60)
    watch.stop()
    assert reasons == []


def test_a_disk_that_others_fill_is_not_reported_as_a_limit_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor if its own files take more than what is left: they are within its limit."""
    free = disk.free_space([str(tmp_path)])
    (tmp_path / "file").write_bytes(bytes(2 * MIB))
    monkeypatch.setattr(disk, "RESERVE_BYTES", MIB)
    said = watch(tmp_path, GIB)
    low = {device: disk.Free(1000, 1000) for device in free}
    monkeypatch.setattr(disk, "free_space", lambda _: low)
    assert wait_until(lambda: bool(said), 60)
    assert said[0][1] == ""
    assert "left" in said[0][0]


@pytest.mark.parametrize(("limit", "failure"), [("disk_bytes", "agent"), ("wall_s", "timeout")])
def test_a_generation_past_its_limit_is_not_retried(limit: str, failure: str) -> None:
    post_mortem = PostMortem(state="exited", ended_by="x", limit=limit)
    error = translate_failure(ContainerLostError("lost", post_mortem), "meta agent")
    assert (error.failure, error.again) == (failure, False)


def caused_by(number: int) -> Exception:
    """Return an error that has an error of the kernel as its cause."""
    error = ValueError("the answer could not be stored")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


@pytest.mark.parametrize(
    "error",
    [
        ContainerLostError("lost", PostMortem(state="exited", ended_by="x")),
        caused_by(errno.ENOSPC),
        caused_by(errno.EDQUOT),
        StorageFullError("no space is left"),
        RepositoryError("git add failed: error: unable to write file a: No space left on device"),
        start_refusal(
            "write /var/lib/x: no space left on device",
            ContainerSpec(image="a"),
            None,
            "storage is full",
        ),
        write_error("/tmp/x cannot be written", OSError(errno.ENOSPC, "full")),
    ],
)
def test_a_full_disk_of_the_host_is_never_blamed_on_the_generation(error: Exception) -> None:
    for step in ("meta agent", "settle", "diff", "load check", "evaluate"):
        reason = translate_failure(error, step)
        assert (reason.failure, reason.again, reason.ends_run) == ("infrastructure", True, True)


def test_a_name_of_an_agents_file_does_not_say_that_the_disk_is_full() -> None:
    error = RepositoryError(
        "git add failed: fatal: pathspec 'a: No space left on device' did not match any files"
    )
    assert not translate_failure(error, "diff").ends_run


def test_a_run_has_a_disk_limit_by_default_and_a_container_has_none() -> None:
    assert GenerateOptions(domains="circle_packing").limits.disk_bytes == 10 * GIB
    assert Limits().disk_bytes is None
    with pytest.raises(SpecError, match="disk_bytes"):
        Limits(disk_bytes=1000)


def test_a_file_that_is_deleted_during_the_count_counts_once(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.write(b"x" * (8 * MIB))
        file.flush()
        count = disk._Count(stop_at=2**40)
        count.add_top(str(tmp_path))
        before = count.used
        os.unlink(file.name)
        count.add_deleted(os.fstat(file.fileno()), is_on_root=False)
    assert count.used == before >= 8 * MIB
