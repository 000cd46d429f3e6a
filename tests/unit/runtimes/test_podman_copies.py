"""Copies of the user's images in this library's own store: a failure is not for ever, and no wait
is.
"""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest
from structlog.testing import capture_logs

from hyperruntime.errors import EngineError
from hyperruntime.host import engine_limits
from hyperruntime_podman import copies, edge
from hyperruntime_podman.copies import ImageCopies, locked, remove_orphans
from hyperruntime_podman.own_store import Store

# The user's store has one image; a pull writes to the other store, unless the disk is full.
_PODMAN = """#!/bin/sh
echo "$*" >> "{folder}/calls"
case "$*" in
--root*pull*) [ ! -e "{folder}/full" ] || exit 125; : > "{folder}/copied" ;;
--root*inspect*)
    [ -e "{folder}/copied" ] || {{ echo "Error: 1234: image not known" >&2; exit 125; }}
    echo '[{{"Id": "1234"}}]' ;;
*inspect*) echo '[{{"Id": "1234", "RepoTags": ["localhost/a:1"]}}]' ;;
esac
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store of an ordinary user; the limit of a wait is short."""
    store = Store(driver="vfs", root=str(tmp_path / "store"), run_root=str(tmp_path))
    images = tmp_path / "store" / "vfs-images"
    images.mkdir(parents=True)
    (images / "images.json").touch()
    (tmp_path / "store" / "hyperruntime" / "overlay-containers").mkdir(parents=True)
    program = tmp_path / "podman"
    program.write_text(_PODMAN.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(edge, "run_files", dict)
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr(copies, "user_store", lambda: store)
    short = attrs.evolve(engine_limits.LIMITS["copy"], base_s=0.1, most_s=0.1)
    monkeypatch.setattr(engine_limits, "LIMITS", {**engine_limits.LIMITS, "copy": short})
    return store


def test_a_copy_that_failed_is_tried_again_and_one_that_was_made_is_remembered(
    tmp_path: Path, store: Store
) -> None:
    found = ImageCopies()
    (tmp_path / "full").touch()
    assert found.find("localhost/a:1") == ""
    (tmp_path / "full").unlink()
    assert found.find("localhost/a:1") == "1234"
    asked = (tmp_path / "calls").read_text()
    assert found.find("localhost/a:1") == "1234"
    assert (tmp_path / "calls").read_text() == asked


def test_a_start_waits_for_a_copy_of_another_process_for_a_limited_time(
    tmp_path: Path, store: Store
) -> None:
    found = ImageCopies()
    with locked(store), capture_logs() as logs:
        assert found.find("localhost/a:1") == "", "the container runs in the user's store"
        remove_orphans()
    assert [line["why"].split(";")[0] for line in logs] == [
        "another process has not finished its copy of an image within 0 s"
    ] * 2
    assert "--root" in (tmp_path / "calls").read_text()
    assert "rmi" not in (tmp_path / "calls").read_text()
    assert found.find("localhost/a:1") == "1234"


@pytest.mark.parametrize(
    ("said", "is_unknown"),
    [
        ("inspecting object: a: image not known", True),
        ("inspecting object: no such image: a", True),
        ("inspecting object: invalid reference format", True),
        ("the store is locked", False),
        ("", False),
    ],
)
def test_only_an_image_that_podman_does_not_know_is_missing(
    tmp_path: Path, store: Store, said: str, is_unknown: bool
) -> None:
    (tmp_path / "podman").write_text(f'#!/bin/sh\necho "Error: {said}" >&2; exit 125\n')
    if is_unknown:
        assert edge.inspect_image("a") is None
    else:
        with pytest.raises(EngineError, match="image a cannot be inspected: "):
            edge.inspect_image("a")
