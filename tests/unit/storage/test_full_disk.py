"""A full disk is a failure of the work, not wrong usage."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperruntime.errors import StorageError, StorageFullError
from hyperruntime.storage.atomic import storage_errors


def test_a_full_disk_exits_with_1_and_another_failed_write_with_2() -> None:
    with (
        pytest.raises(StorageFullError, match="no space is left") as full,
        storage_errors("/dev/full"),
    ):
        Path("/dev/full").write_bytes(b"x")
    with pytest.raises(StorageError) as missing, storage_errors("/dev/null/x"):
        Path("/dev/null/x").write_bytes(b"x")
    assert (full.value.exit_code, missing.value.exit_code) == (1, 2)
