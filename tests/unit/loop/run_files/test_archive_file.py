"""``archive.jsonl``, which tools around HyperAgents read: it is small, and it is complete after a
kill.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from hyperruntime.loop.run_files.archive import ArchiveFile
from hyperruntime.loop.run_files.parent_rules import GenId


def ids(count: int) -> list[GenId]:
    return ["initial", *range(1, count)][:count]


def original_reader(path: Path) -> list[list[GenId]]:
    """Return the archive list of each entry; like the original reader, split the text before each
    brace.
    """
    texts = path.read_text().split("\n{")
    entries = [json.loads(text if number == 0 else "{" + text) for number, text in enumerate(texts)]
    assert all(entry["current_genid"] == entry["archive"][-1] for entry in entries)
    return [entry["archive"] for entry in entries]


def grow(path: Path, count: int) -> ArchiveFile:
    file = ArchiveFile(path)
    for number in range(1, count + 1):
        file.add(ids(number))
    return file


def test_a_small_archive_has_a_line_for_each_generation(tmp_path: Path) -> None:
    grow(tmp_path / "a", 256)
    assert original_reader(tmp_path / "a") == [ids(number) for number in range(1, 257)]


def test_a_large_archive_has_few_bytes_per_generation_and_its_last_line_lists_all(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    grow(path, 2000).flush(ids(2000))
    listed = original_reader(path)
    assert listed[-1] == ids(2000)
    assert path.stat().st_size / 2000 < 2000
    sizes = [len(entry) for entry in listed]
    assert sizes == sorted(set(sizes))
    assert all(later - earlier <= later / 256 + 1 for earlier, later in pairwise(sizes[:-1]))


@pytest.mark.parametrize("kept", [0, 1, 2, 5])
@pytest.mark.parametrize("torn", [b"", b'{"current_genid": 9, "archive": ["initial", 1', b"\0\0\0"])
def test_repair_cuts_off_a_truncated_line_and_lists_the_missing_generations(
    tmp_path: Path, kept: int, torn: bytes
) -> None:
    path = tmp_path / "a"
    grow(path, kept)
    with path.open("ab") as file:
        file.write(torn)
    again = ArchiveFile(path)
    again.repair(ids(5))
    assert original_reader(path)[-1] == ids(5)
    before = path.stat().st_size
    again.flush(ids(5))
    assert path.stat().st_size == before
    again.add(ids(6))
    assert original_reader(path)[-1] == ids(6)


@pytest.mark.parametrize(
    "line", [b"{}", b"null", b'{"archive": 3}', b'{"archive": [7, 8]}', b"x" * 200_000]
)
def test_a_file_with_another_format_is_rewritten(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(line + b"\n")
    ArchiveFile(path).repair(ids(3))
    assert original_reader(path) == [ids(3)]


def test_a_long_last_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = ArchiveFile(path)
    file.add(ids(1))
    file.flush(ids(30_000))
    size = path.stat().st_size
    ArchiveFile(path).repair(ids(30_000))
    assert path.stat().st_size == size


def test_an_archive_without_generations_creates_no_file(tmp_path: Path) -> None:
    ArchiveFile(tmp_path / "a").repair([])
    ArchiveFile(tmp_path / "a").flush([])
    assert not (tmp_path / "a").exists()
