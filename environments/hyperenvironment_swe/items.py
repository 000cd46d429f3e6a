"""Read items in the form of SWE-bench and SWE-smith, from a local file or from this package."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from filelock import FileLock

from hyperruntime.errors import SpecError, StorageError
from hyperruntime.git.store import RepositoryStore

_ID = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_IDS = ("instance_id", "id", "problem_id")
_RUNNERS = ("pytest", "unittest")


@attrs.frozen(kw_only=True)
class SweItem:
    """One problem; the solution of a row (``patch``) is not stored.

    Attributes:
        id: id of the item.
        repo: ``owner/name``, a URL or an absolute path.
        base_commit: full name of the base commit.
        problem_statement: the problem for the prompt.
        text: more text for the prompt.
        pass_to_pass: ids of tests that pass before and after the repair.
        fail_to_pass: ids of tests that pass only after the repair.
        test_patch: diff that adds the hidden tests, or "".
        install: ``/bin/sh`` program that prepares the repository for its tests; None means the environment's.
        python: the Python that runs the tests, as a path or a name; None means the environment's.
        image: image of the container; None means the environment's, or else the run's.
        env: environment variables of the container, of the installation and of the tests.
        protected: patterns of paths where the agent's changes do not count.
        runner: ``pytest`` or ``unittest``.
        repo_dir: directory of the repository in the container: relative to the workspace, or absolute.
    """

    id: str
    repo: str
    base_commit: str
    problem_statement: str
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


def load_rows(path: str) -> list[dict[str, Any]]:
    """Return the rows of a ``.jsonl``, ``.json`` or ``.parquet`` file, or of ``train.jsonl`` in a directory.

    Raises:
        SpecError: the file does not exist, cannot be read, or has no rows.
    """
    where = os.path.join(path, "train.jsonl") if os.path.isdir(path) else path
    if not os.path.isfile(where):
        raise SpecError("items", path, "a file of rows (.jsonl, .json, .parquet), or 'builtin'")
    try:
        rows = _parquet_rows(where) if where.endswith(".parquet") else list(_json_rows(Path(where).read_text("utf-8")))
    except (ValueError, OSError) as error:
        raise SpecError("items", path, f"rows that are JSON objects: {error}") from None
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise SpecError("items", path, "at least one row, each a JSON object")
    return rows


def builtin_rows(directory: str) -> list[dict[str, Any]]:
    """Return the shipped rows, and create their repositories in ``directory``; the same files give the same commits.

    Raises:
        RepositoryError: git failed.
        StorageError: the directory cannot be created.
    """
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        why = f"{error.strerror or error}; use another one with --option cache_dir=DIRECTORY"
        raise StorageError(f"the repository cache {directory!r} cannot be created: {why}") from error
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


def is_python(row: Mapping[str, Any]) -> bool:
    """Return whether a row has tests in PASS_TO_PASS, all of them in Python files."""
    tests = _test_ids(row, "PASS_TO_PASS", "")
    return bool(tests) and all(".py::" in name for name in tests)


def parse_row(row: Mapping[str, Any]) -> SweItem:
    """Return the item of a row.

    Raises:
        SpecError: a field is missing or invalid; the message names the field.
    """
    item_id = next((str(row[name]).replace("/", "__") for name in _IDS if row.get(name)), "")
    if not _ID.fullmatch(item_id):
        has = "none" if not row else ", ".join(map(str, list(row)[:8]))
        raise SpecError(
            "instance_id", item_id, f"letters, digits, - _ . (or as id, or problem_id); the row has the fields: {has}"
        )
    where = f"of item {item_id}"
    repo = _text(row, "repo", where)
    runner = _text(row, "runner", where, "pytest")
    if not repo or runner not in _RUNNERS:
        raise SpecError(f"repo and runner {where}", (repo, runner), f"a repository, and {' or '.join(_RUNNERS)}")
    return SweItem(
        id=item_id,
        repo=repo,
        base_commit=_text(row, "base_commit", where).lower(),
        problem_statement=_text(row, "problem_statement", where),
        text=_text(row, "text", where, ""),
        pass_to_pass=_test_ids(row, "PASS_TO_PASS", where),
        fail_to_pass=_test_ids(row, "FAIL_TO_PASS", where),
        test_patch=_text(row, "test_patch", where, ""),
        install=_optional(row, "install", where),
        python=_optional(row, "python", where),
        image=_optional(row, "image", where) or _optional(row, "docker_image", where),
        env=_environment(row.get("env"), where),
        protected=_strings(row.get("protected"), f"protected {where}"),
        runner=runner,
        repo_dir=_repo_dir(_text(row, "repo_dir", where, ""), repo, where),
    )


def _parquet_rows(path: str) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise SpecError("items", path, "a .jsonl file, or install pyarrow to read .parquet") from None
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def _json_rows(text: str) -> Iterator[Any]:
    if text.lstrip().startswith("["):
        yield from json.loads(text)
        return
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: text may contain U+2028
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON ({error})") from None


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
            value = json.loads(value)
        except ValueError:
            raise SpecError(f"{name} {where}", value, "a list of test ids, or its JSON text") from None
    ids = _strings(value, f"{name} {where}")
    for test in ids:
        if test.startswith("/") or ".." in test.partition("::")[0].split("/") or not test.isprintable():
            raise SpecError(f"{name} {where}", test, "path/of/file.py::test, relative to the repository")
    return tuple(sorted(set(ids)))


def _strings(value: Any, field: str) -> tuple[str, ...]:  # noqa: ANN401 - of a row
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) and one for one in value):
        raise SpecError(field, value, "a list of non-empty texts")
    return tuple(value)


def _environment(value: Any, where: str) -> Mapping[str, str]:  # noqa: ANN401 - of a row
    given = value or {}
    if not isinstance(given, dict) or not all(isinstance(x, str) for pair in given.items() for x in pair):
        raise SpecError(f"env {where}", value, "an object whose values are text")
    return dict(given)


def _repo_dir(given: str, repo: str, where: str) -> str:
    last_part = repo.rstrip("/").rpartition("/")[2].removesuffix(".git")
    name = given or re.sub(r"[^A-Za-z0-9_.-]", "_", last_part).lstrip(".-")
    parts = name.removeprefix("/").split("/")
    if not all(_NAME.fullmatch(part) for part in parts) or (len(parts) > 1 and not name.startswith("/")):
        raise SpecError(f"repo_dir {where}", name, "one name, or an absolute path; letters, digits, - _ .")
    return name
