"""Files of a tree are given to other users, and no link leads the change out of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hyperruntime.errors import ImageError
from hyperruntime.layers import owners
from hyperruntime.layers.archive import pack
from hyperruntime.layers.owners import give_owners

OWNER = (4001, 4002)


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine's root do what root of a user namespace does elsewhere."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away; tests/contract/test_image_users.py does")
    monkeypatch.setattr(owners, "has_all_ids", lambda: True)
    monkeypatch.setattr(owners, "as_root_inside", list)


@pytest.mark.usefixtures("as_root")
def test_files_get_their_owners_and_keep_their_special_bits(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    tree = tmp_path / "tree"
    closed = tree / "closed"
    closed.mkdir(parents=True, mode=0o700)
    for path in (tree / "tool", closed / "deep", tree / "of-root"):
        path.touch()
    (tree / "tool").chmod(0o6711)
    os.link(tree / "tool", closed / "again")
    (tree / "out").symlink_to(outside)
    noted = {path.lstat().st_ino: OWNER for path in (tree / "tool", closed, closed / "deep")}
    noted |= {(tree / "out").lstat().st_ino: OWNER, (outside / "file").stat().st_ino: OWNER}
    give_owners(tree, noted)
    for path in (tree / "tool", closed / "again", closed, closed / "deep", tree / "out"):
        assert (path.lstat().st_uid, path.lstat().st_gid) == OWNER
    for path in (tree, tree / "of-root", outside, outside / "file"):
        assert path.stat().st_uid == 0
    assert stat.S_IMODE((tree / "tool").stat().st_mode) == 0o6711


@pytest.mark.usefixtures("as_root")
def test_a_failure_is_an_error_of_the_image(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"owners of its files cannot be set: .*missing"):
        give_owners(tmp_path / "missing", {1: OWNER})


def test_without_other_ids_all_files_stay_this_users_and_are_saved_as_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "has_all_ids", lambda: False)
    monkeypatch.setattr("hyperruntime.layers.archive.has_all_ids", lambda: False)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").touch()
    give_owners(tree, {(tree / "file").stat().st_ino: OWNER})
    assert (tree / "file").stat().st_uid == os.getuid()
    assert b"\x00ustar" in pack(tree, tmp_path / "saved.tar").read_bytes()
