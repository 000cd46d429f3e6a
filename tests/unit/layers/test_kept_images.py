"""Named snapshots of engines that keep files as images: labels of others, and the lock of names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from filelock import FileLock, Timeout

from hyperruntime.errors import EngineError
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.layers.snapshots.kept_images import FACTS, EngineImages, ImageSnapshots, facts

IDENTIFIER = "sha256:" + "ab" * 32


class Tagged:
    """A fake engine, in which each name is that of one image with a label."""

    def __init__(self, label: object, users: Sequence[str] = ()) -> None:
        self._label = label
        self._users = users
        self.removed: list[str] = []

    def names(self, repository: str) -> list[str]:
        return [f"{repository}:one"]

    def inspect(self, _: str) -> Mapping[str, Any]:
        return {"Id": IDENTIFIER, "Config": {"Labels": {FACTS: self._label}}}

    def users(self, _: str) -> Sequence[str]:
        return self._users

    def remove(self, names: Sequence[str]) -> None:
        with pytest.raises(Timeout):
            FileLock(cache_directory() / "snapshots.lock", timeout=0).acquire()
        self.removed += names


def snapshots(engine: Tagged) -> ImageSnapshots:
    return ImageSnapshots("podman", cast("EngineImages", engine))


def label(**changed: object) -> str:
    (known,) = facts("a:1", ["/put"], {"Id": IDENTIFIER, "Config": {"Labels": None}}).values()
    return json.dumps({**json.loads(bytes.fromhex(known)), **changed}).encode().hex()


def test_the_label_of_a_snapshot_has_no_character_that_an_engine_reads_as_another() -> None:
    assert label().isalnum()
    (found,) = snapshots(Tagged(label())).list()
    assert (found.name, found.image, found.layers) == ("one", "a:1", (IDENTIFIER,))
    assert found.repositories == ("/put",)


@pytest.mark.parametrize(
    "wrong",
    [
        "{}",
        "zz",
        '{"image": "a:1"}',
        b"[1]".hex(),
        b"{}".hex(),
        b"\xff".hex(),
        (b"[" * 100_000).hex(),
        7,
        None,
        label(image=1),
        label(base="localhost/mine:1"),
        label(base=None),
        label(created="now"),
        label(created=float("nan")),
        label(created=1e300),
        label(repositories="/put"),
        label(repositories=[1]),
    ],
)
def test_a_label_that_somebody_else_wrote_makes_no_snapshot(wrong: object) -> None:
    assert snapshots(Tagged(wrong)).list() == ()


def test_a_name_is_removed_under_the_lock_of_names_unless_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    engine = Tagged(label())
    snapshots(engine).remove("one")
    assert [name.rpartition(":")[2] for name in engine.removed] == ["one"]
    used = Tagged(label(), users=["c"])
    with pytest.raises(EngineError, match="snapshot 'one' is used by the container c"):
        snapshots(used).remove("one")
    assert used.removed == []
