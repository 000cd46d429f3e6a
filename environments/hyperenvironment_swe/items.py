"""Items in the form of SWE-bench and SWE-smith: each is parsed from a row of a data set.

Rows are read from files: JSON, JSON lines, Parquet, directories as the Hugging Face hub has them,
or this package.

Source: the data sets ``princeton-nlp/SWE-bench`` and ``SWE-bench/SWE-smith``. A row of the first
has ``base_commit``; its ``patch`` is the solution. A row of the second has ``image_name`` and no
commit; its ``patch`` is the bug, in the default branch of ``repo``.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
from filelock import FileLock

from hyperruntime.datasets.json_lines import json_lines
from hyperruntime.datasets.left_out import FAIL, LeftOut
from hyperruntime.errors import ExtraMissingError, SpecError, StorageError
from hyperruntime.git.store import RepositoryStore
from hyperruntime.json_values import parse_json
from hyperruntime.storage.text_file import read_utf8

_ID = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_IDS = ("instance_id", "id", "problem_id")
_IMAGES = ("image", "docker_image", "image_name")
_RUNNERS = ("pytest", "unittest")
_TRAIN = "train.jsonl"
# The name of a data file: its split, and which part of it, as ``datasets`` writes them.
_PART = re.compile(r"(.+?)(?:-\d{5}-of-\d{5})?(?:-[0-9a-f]{16})?\.parquet")
_POINTER = b"version https://git-lfs"
_BATCH_ROWS = 256


@attrs.frozen(kw_only=True)
class SweItem:
    """One problem; the solution of a row is not stored.

    Attributes:
        id: id of the item.
        repo: ``owner/name``, a URL or an absolute path.
        base_commit: full name of the base commit; "" means that of the default branch.
        bug_patch: diff from this commit to the state in which the agent begins, or "".
        problem_statement: the problem for the prompt.
        text: more text for the prompt.
        pass_to_pass: ids of tests that pass before and after the repair.
        fail_to_pass: ids of tests that pass only after the repair.
        test_patch: diff that adds the hidden tests, or "".
        install: ``/bin/sh`` program that prepares the repository for its tests; None means the
            environment's.
        python: the Python that runs the tests, as a path or a name; None means the environment's.
        image: image of the container; None means the environment's, or else the run's.
        env: environment variables of the container, of the installation and of the tests.
        protected: patterns of paths where the agent's changes do not count.
        runner: ``pytest`` or ``unittest``.
        repo_dir: directory of the repository in the container: relative to the workspace, or
            absolute.
    """

    id: str
    repo: str
    base_commit: str
    problem_statement: str
    bug_patch: str = ""
    text: str = ""
    pass_to_pass: tuple[str, ...] = ()
    fail_to_pass: tuple[str, ...] = ()
    test_patch: str = ""
    install: str | None = None
    python: str | None = None
    image: str | None = None
    env: Mapping[str, str] = attrs.field(factory=dict)
    protected: tuple[str, ...] = ()
    runner: str = "pytest"
    repo_dir: str


def is_python(row: Mapping[str, Any]) -> bool:
    """Return whether a row has tests in PASS_TO_PASS, all of them in Python files."""
    tests = _test_ids(row, "PASS_TO_PASS", "")
    return bool(tests) and all(".py::" in name for name in tests)


def row_id(row: Mapping[str, Any]) -> str:
    """Return the id of a row, which may be invalid, or ""."""
    return next((str(row[name]).replace("/", "__") for name in _IDS if row.get(name)), "")


def parse_row(row: Mapping[str, Any], repo_dir: str | None = None) -> SweItem:
    """Return the item of a row.

    Args:
        row: the row.
        repo_dir: directory of the repository if the row names none; None means the name of the
            repository.

    Raises:
        SpecError: a field is missing or invalid; the message names the field.
    """
    item_id = row_id(row)
    if not _ID.fullmatch(item_id):
        has = "none" if not row else ", ".join(map(str, list(row)[:8]))
        raise SpecError(
            "instance_id",
            item_id,
            f"letters, digits, - _ . (or as id, or problem_id); the row has the fields: {has}",
        )
    where = f"of item {item_id}"
    repo = _text(row, "repo", where)
    runner = _text(row, "runner", where, "pytest")
    if not repo or runner not in _RUNNERS:
        raise SpecError(
            f"repo and runner {where}", (repo, runner), f"a repository, and {' or '.join(_RUNNERS)}"
        )
    commit = _text(row, "base_commit", where, "").lower()
    bug = "" if commit else _text(row, "patch", where, "")
    if not (commit or (bug and row.get("image_name"))):
        allowed = (
            "a commit; only a row of SWE-smith has none, but image_name and, as patch, the bug"
        )
        raise SpecError(f"base_commit {where}", row.get("base_commit"), allowed)
    return SweItem(
        id=item_id,
        repo=repo,
        base_commit=commit,
        bug_patch=bug,
        problem_statement=_text(row, "problem_statement", where),
        text=_text(row, "text", where, ""),
        pass_to_pass=_test_ids(row, "PASS_TO_PASS", where),
        fail_to_pass=_test_ids(row, "FAIL_TO_PASS", where),
        test_patch=_text(row, "test_patch", where, ""),
        install=_optional(row, "install", where),
        python=_optional(row, "python", where),
        image=next(filter(None, (_optional(row, name, where) for name in _IMAGES)), None),
        env=_environment(row.get("env"), where),
        protected=_strings(row.get("protected"), f"protected {where}"),
        runner=runner,
        repo_dir=check_repo_dir(
            _text(row, "repo_dir", where, "") or repo_dir or _directory_of(repo), where
        ),
    )


def _text(row: Mapping[str, Any], name: str, where: str, default: str | None = None) -> str:
    value = row.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or "\0" in value:
        raise SpecError(f"{name} {where}", value, "text")
    return value


def _optional(row: Mapping[str, Any], name: str, where: str) -> str | None:
    return None if row.get(name) is None else _text(row, name, where)


def _test_ids(row: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    """Return sorted unique test ids from a list or from its JSON text."""
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            raise SpecError(
                f"{name} {where}", value, "a list of test ids, or its JSON text"
            ) from None
    ids = _strings(value, f"{name} {where}")
    for test in ids:
        path, colons, _ = test.partition("::")
        if (colons and (path.startswith("/") or ".." in path.split("/"))) or not test.isprintable():
            raise SpecError(
                f"{name} {where}", test, "path/of/file.py::test, relative to the repository"
            )
    return tuple(sorted(set(ids)))


def _strings(value: Any, field: str) -> tuple[str, ...]:  # noqa: ANN401 - of a row
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(
        isinstance(one, str) and one for one in value
    ):
        raise SpecError(field, value, "a list of non-empty texts")
    return tuple(value)


def _environment(value: Any, where: str) -> Mapping[str, str]:  # noqa: ANN401 - of a row
    given = value or {}
    if not isinstance(given, dict) or not all(
        isinstance(x, str) for pair in given.items() for x in pair
    ):
        raise SpecError(f"env {where}", value, "an object whose values are text")
    return dict(given)


def check_repo_dir(name: str, where: str = "") -> str:
    """Return a directory of a repository.

    Args:
        name: the directory.
        where: ends the name of the field in a message.

    Raises:
        SpecError: it is neither one name nor an absolute path.
    """
    parts = name.removeprefix("/").split("/")
    if not all(_NAME.fullmatch(part) for part in parts) or (
        len(parts) > 1 and not name.startswith("/")
    ):
        raise SpecError(
            f"repo_dir {where}".strip(),
            name,
            "one name, or an absolute path; letters, digits, - _ .",
        )
    return name


def _directory_of(repo: str) -> str:
    last_part = repo.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return re.sub(r"[^A-Za-z0-9_.-]", "_", last_part).lstrip(".-")


def image_of(item: SweItem, template: str) -> str:
    """Return the image that a template gives an item.

    Args:
        item: the problem.
        template: text with ``{id}``, ``{id_1776}`` (``_1776_`` for ``__``, as SWE-bench's images)
            or ``{image_name}``.

    Raises:
        SpecError: the template has another placeholder, or needs an image that the row does not
            name.
    """
    name = item.id.lower()
    values = {"id": name, "id_1776": name.replace("__", "_1776_")}
    if item.image is not None:
        values["image_name"] = item.image
    try:
        return template.format_map(values)
    except (KeyError, ValueError, IndexError, AttributeError):
        allowed = f"text with {' or '.join(f'{{{name}}}' for name in values)} for item {item.id}"
        raise SpecError("option image_template", template, allowed) from None


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
