"""One choice of a directory for temporary files, which is never on a network file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hyperruntime.cli.machine.storage_findings import storage_findings
from hyperruntime.host import temporary
from hyperruntime.host.inherited import program_environment
from hyperruntime.host.owner import make_short_directory, owned_directory
from hyperruntime.host.temporary import scratch_directory, temporary_directory


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return a directory of each kind of file system, of which the list of mounts tells, by
    kind.
    """
    for name in temporary.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    found = {kind: str(tmp_path / kind) for kind in ("ext4", "lustre", "nfs4", "tmpfs")}
    for path in found.values():
        os.mkdir(path)
    of = {path: kind for kind, path in found.items()}
    for module in ("host.temporary", "cli.machine.storage_findings"):
        monkeypatch.setattr(
            f"hyperruntime.{module}.file_system", lambda path: of.get(str(path), "ext4")
        )
    return found


def test_one_variable_names_the_directory_of_all_temporary_files(
    places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("TMPDIR", "APPTAINER_TMPDIR"):
        monkeypatch.setenv(name, str(other))
    monkeypatch.setenv("HYPERRUNTIME_SCRATCH", places["ext4"])
    assert scratch_directory() == temporary_directory() == places["ext4"]
    assert program_environment(os.environ)["TMPDIR"] == places["ext4"]
    with owned_directory() as owned:
        assert os.path.dirname(owned) == places["ext4"]
    assert list(storage_findings()) == []


def test_a_network_file_system_holds_no_temporary_files_and_no_sockets_and_this_is_said_once(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPERRUNTIME_SCRATCH", places["lustre"])
    monkeypatch.setenv("TMPDIR", places["nfs4"])
    monkeypatch.setenv("SCRATCH", places["lustre"])
    monkeypatch.setenv("XDG_RUNTIME_DIR", places["nfs4"])
    with capture_logs() as logs:
        for _ in range(2):
            assert scratch_directory() == temporary_directory() == "/tmp"
    assert [(fact["variable"], fact["used"]) for fact in logs] == [
        ("HYPERRUNTIME_SCRATCH", "/tmp"),
        ("TMPDIR", "/tmp"),
    ]
    short = make_short_directory(None)
    os.unlink(f"{short}/owner.json")
    os.rmdir(short)
    assert os.path.dirname(short) == "/tmp"
    found = {finding.subject: finding for finding in storage_findings()}
    assert [(name, one.ok) for name, one in found.items()] == [
        ("HYPERRUNTIME_SCRATCH", False),
        ("TMPDIR", None),
        ("SCRATCH", None),
    ]
    assert "on lustre, a network file system" in found["SCRATCH"].detail
    assert "temporary files go to /tmp" in found["TMPDIR"].detail


def test_temporary_files_in_memory_are_reported_with_the_memory_that_they_count_to(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", places["tmpfs"])
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "2")
    (found,) = storage_findings()
    assert "is memory (tmpfs)" in found.detail
    assert "the 2.0 MiB of this job" in found.detail
    assert "HYPERRUNTIME_SCRATCH" in found.next_step


def test_an_image_store_without_room_for_the_files_of_an_image_is_reported(
    places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        known = look(path)
        return os.statvfs_result((*known[:5], 100_000, 900, 900, *known[8:]))

    monkeypatch.setenv("HYPERRUNTIME_IMAGES", str(tmp_path / "images"))
    monkeypatch.setattr(os, "statvfs", statvfs)
    (found,) = storage_findings()
    assert "900 files more" in found.detail
    assert "HYPERRUNTIME_IMAGE_FORMAT=squashfs" in found.next_step
