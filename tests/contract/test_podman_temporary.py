"""A directory of temporary files that Podman cannot use is named; nobody is advised to remove
images.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hyperruntime.errors import StorageFullError
from hyperruntime.host.engine_program import start_refusal
from hyperruntime.host.process import run_process
from hyperruntime.spec import ContainerSpec

pytestmark = pytest.mark.engine

RUN = (sys.executable, "-m", "hyperruntime.cli", "--runtime", "podman", "exec", "--image")
FULL = (
    "Error: checking platform of image x: inspecting image: write {}/3228811877: no space left "
    "on device"
)


def test_a_temporary_directory_that_does_not_exist_is_named(
    tmp_path: Path, base_image: str
) -> None:
    missing = str(tmp_path / "none")
    done = run_process(
        [*RUN, base_image, "--", "true"], env={**os.environ, "TMPDIR": missing}, timeout_s=120
    )
    assert (done.exit_code, done.stdout) == (2, b"")
    assert (
        f"TMPDIR={missing!r} is not a directory; create it, or set TMPDIR to another"
        in done.error_text
    )


def test_a_full_temporary_directory_is_not_taken_for_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    spec = ContainerSpec(image="x")
    refusal = start_refusal(FULL.format(tmp_path), spec, None, "the storage is full")
    assert isinstance(refusal, StorageFullError)
    assert str(tmp_path) in str(refusal)
    assert "set TMPDIR to a directory on another disk" in str(refusal)
    assert (
        str(start_refusal(FULL.format("/storage"), spec, None, "the storage is full"))
        == "the storage is full"
    )
