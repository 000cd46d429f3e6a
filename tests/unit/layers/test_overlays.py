"""What is said about file systems that overlays cannot use."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hyperruntime.layers.overlays import attribute_findings


def test_directories_without_attributes_are_named_with_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "not yet" / "images"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("APPTAINER_TMPDIR", raising=False)
    monkeypatch.setenv("HYPERRUNTIME_IMAGES", str(store))
    assert list(attribute_findings()) == []

    def refuse(file: int, name: str, value: bytes) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    scratch, images = attribute_findings()
    none = "can have no attributes (user.*)"
    assert scratch.detail == f"files in {tmp_path} {none}: overlays only partly work there"
    assert images.detail == f"files in {store} {none}: images lose those of their files"
    assert (scratch.ok, images.ok) == (None, None)
    assert "HYPERRUNTIME_SCRATCH" in scratch.next_step
    assert "HYPERRUNTIME_IMAGES" in images.next_step
    assert os.listdir(tmp_path) == []
