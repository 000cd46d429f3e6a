"""Fixtures for tests of GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fake_gpus import Describe, fake_spec


@pytest.fixture
def describe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Describe:
    """Return a function that writes a CDI spec for this test only, and returns the path of the
    driver library.
    """
    directory, library = tmp_path / "cdi", tmp_path / "lib fake.so"
    directory.mkdir()
    library.write_text("fake driver 1.0\n")
    monkeypatch.setenv("HYPERRUNTIME_CDI_DIRS", str(directory))

    def write(kind: str = "nvidia.com/gpu", **change: Any) -> Path:
        (directory / "fake.json").write_text(json.dumps(fake_spec(kind, library, **change)))
        return library

    return write
