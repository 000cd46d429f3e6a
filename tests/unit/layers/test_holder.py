"""Paths in a sandbox are resolved inside its root, whatever links an image has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.layers.holder import _make_points, inside

NAMES = ("a", "b", "c")
LINKS = st.text(alphabet="abc./", min_size=1, max_size=12)


@given(links=st.dictionaries(st.sampled_from(NAMES), LINKS, max_size=3), path=LINKS)
def test_no_link_leads_out_of_the_root(
    links: dict[str, str], path: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("r") / "root"
    (root / "d").mkdir(parents=True)
    for name, target in links.items():
        (root / name).symlink_to(target)
        (root / "d" / name).symlink_to(target)
    try:
        found = inside(str(root), f"/{path}")
    except OSError:  # links in a circle
        return
    steps = found.strip("/").split("/")
    assert ".." not in steps
    for end in range(1, len(steps) + 1):
        assert not os.path.islink(os.path.join(root, *steps[:end])) or not steps[0]


def test_links_of_an_image_are_followed_in_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "out").symlink_to("../../../home")
    root = str(tmp_path)
    assert inside(root, "/var/run/x/../y") == "/run/y"
    assert inside(root, "/out/user") == "/home/user"
    assert inside(root, "/") == "/"


def test_mount_points_are_made_where_links_lead_inside_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "there").mkdir(parents=True)
    (root / "link").symlink_to("../../there")
    (root / "there/file").write_text("kept")
    _make_points(str(root), {"/link/a/b": 0o1777, "/link/c": None, "/there/file": None})
    assert (root / "there/a/b").stat().st_mode & 0o7777 == 0o1777
    assert (root / "there/c").read_text() == ""
    assert (root / "there/file").read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["root"]
