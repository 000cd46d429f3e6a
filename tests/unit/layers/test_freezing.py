"""The layers of snapshots: what failed programs mean."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hyperruntime.layers.snapshots.freezing import copy_files


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_becomes_full_during_a_copy_is_known_as_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The loop ends a run then, and blames no agent."""
    said = f"cp: error writing '/x': {os.strerror(number)}"
    program = tmp_path / "unshare"
    program.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(OSError, match="error writing") as failed:
        copy_files("/a", "/b", users=False)
    assert str(failed.value) == said
    assert failed.value.errno == (None if number == errno.EIO else number)
