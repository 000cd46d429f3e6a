"""Read rows from files: JSON, JSON lines, Parquet, directories as the Hugging Face hub has them, or
this package.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import FileLock

from hyperruntime.datasets.json_lines import json_lines
from hyperruntime.datasets.left_out import FAIL, LeftOut
from hyperruntime.errors import ExtraMissingError, SpecError, StorageError
from hyperruntime.git.store import RepositoryStore
from hyperruntime.json_values import parse_json
from hyperruntime.storage.text_file import read_utf8

_TRAIN = "train.jsonl"
# The name of a data file: its split, and which part of it, as ``datasets`` writes them.
_PART = re.compile(r"(.+?)(?:-\d{5}-of-\d{5})?(?:-[0-9a-f]{16})?\.parquet")
_POINTER = b"version https://git-lfs"
_BATCH_ROWS = 256


def load_rows(
    path: str, split: str | None = None, left: LeftOut | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file or a directory.

    Args:
        path: a ``.jsonl``, ``.json`` or ``.parquet`` file; or a directory with ``train.jsonl`` or
            Parquet files, such as a snapshot of a data set (``data/test-00000-of-00001.parquet``).
        split: the split of a directory of Parquet files; None means the only one.
        left: takes the rows that are not objects; None: they raise an error.

    Raises:
        SpecError: the path does not exist, cannot be read, has no rows, or has several splits.
        ExtraMissingError: pyarrow is not installed, which Parquet files need.

    Source: the guide of ``datasets``, "Structure your repository", for the names of data files.
    """
    files = _files(path, split)
    left = left or LeftOut(FAIL)
    count = 0
    try:
        for file in files:
            for row in _rows(file, left):
                count += 1
                if isinstance(row, dict):
                    yield row
                else:
                    with left.reading(f"row {count}"):
                        why = row if isinstance(row, ValueError) else f"row {count} is not"
                        raise SpecError("items", path, f"rows that are JSON objects: {why}")
    except (ValueError, OSError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError("items", path, f"rows that are JSON objects: {error}") from None
    if not count and not left.reasons:
        raise SpecError("items", path, "at least one row, each a JSON object")


def builtin_rows(directory: str) -> list[dict[str, Any]]:
    """Return the shipped rows, and create their repositories in ``directory``; the same files give
    the same commits.

    Raises:
        RepositoryError: git failed.
        StorageError: the directory cannot be created.
    """
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        why = f"{error.strerror or error}; use another one with --option cache_dir=DIRECTORY"
        raise StorageError(
            f"the repository cache {directory!r} cannot be created: {why}"
        ) from error
    rows = []
    for task in sorted(Path(__file__).with_name("tasks").iterdir()):
        if not (task / "task.json").is_file():
            continue
        store = RepositoryStore(os.path.join(directory, f"{task.name}.git"))
        with FileLock(store.path + ".lock"):
            commit = store.from_directory(task / "repository")
        row = json.loads((task / "task.json").read_text("utf-8"))
        rows.append({"instance_id": task.name, "repo": store.path, "base_commit": commit, **row})
    return rows


def _files(path: str, split: str | None) -> list[Path]:
    place = Path(path)
    if place.is_file():
        return [place]
    if split is None and (place / _TRAIN).is_file():
        return [place / _TRAIN]
    splits: dict[str, list[Path]] = {}
    for file in sorted((*place.glob("*.parquet"), *place.glob("*/*.parquet"))):
        name = _PART.fullmatch(file.name)
        splits.setdefault(name[1] if name is not None else file.stem, []).append(file)
    if not splits:
        forms = (
            "a file of rows (.jsonl, .json, .parquet), a directory with train.jsonl or "
            "data/*.parquet, or 'builtin'"
        )
        raise SpecError("items", path, forms)
    if split is None and len(splits) > 1:
        raise SpecError(
            "items",
            path,
            f"one split; choose with --option split={' or split='.join(sorted(splits))}",
        )
    if split is not None and split not in splits:
        raise SpecError("split", split, f"a split of {path}: {', '.join(sorted(splits))}")
    return splits[split] if split is not None else next(iter(splits.values()))


def _rows(file: Path, left: LeftOut) -> Iterator[Any]:
    """Yield the rows of a file; a row that cannot be read is yielded as the error."""
    if file.suffix == ".parquet":
        yield from _parquet_rows(file)
    elif _is_array(file):
        yield from parse_json(read_utf8(file, "items"))
    else:
        yield from (line.value for line in json_lines(file, left))


def _is_array(file: Path) -> bool:
    """Return whether a file begins as JSON, not as JSON lines."""
    with file.open("rb") as opened:
        while begin := opened.read(4096):
            if text := begin.removeprefix(codecs.BOM_UTF8).lstrip():
                return text.startswith(b"[")
    return False


def _parquet_rows(file: Path) -> Iterator[dict[str, Any] | ValueError]:
    """Yield the rows of a file, a batch at a time, because files of data sets are large.

    A row whose text is not UTF-8 is yielded as the error.
    """
    if find_spec("pyarrow") is None:
        raise ExtraMissingError("Parquet files", "pyarrow", "swe")
    with file.open("rb") as opened:
        if opened.read(len(_POINTER)) == _POINTER:
            raise SpecError(
                "items",
                str(file),
                "a Parquet file; this is a pointer of Git LFS, so run `git lfs pull`",
            )
    import pyarrow.parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]

    for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=_BATCH_ROWS):
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError:
            yield from (_parquet_row(batch.slice(place, 1)) for place in range(batch.num_rows))


def _parquet_row(batch: Any) -> dict[str, Any] | ValueError:  # noqa: ANN401 - of pyarrow
    try:
        (row,) = batch.to_pylist()
    except UnicodeDecodeError as error:
        return error
    return dict(row)
