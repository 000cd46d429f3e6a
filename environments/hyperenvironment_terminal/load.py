"""Find tasks in a task directory, a directory of task directories, a file of rows, or this package.

Rows are JSON lines, the form in which Terminal-Bench 2 is published as a data set. A row is written
to a task directory in the cache, named by the digest of the row, and then read like any other task.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import attrs

from hyperenvironment_terminal.task import (
    INSTRUCTION,
    SETTINGS,
    TEST_SCRIPT,
    Task,
    is_task,
    read_task,
    task_id,
)
from hyperruntime.datasets.json_lines import json_lines
from hyperruntime.datasets.left_out import FAIL, LeftOut
from hyperruntime.errors import SpecError, TransferError
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.transfer.extract import ExtractLimits, extract_tree

BUILTIN = "builtin"
_OLD = "task.yaml"
_LEVELS = 3
_NAMES = ("task_name", "task_id", "instance_id", "id", "name")
_LIMITS = ExtractLimits(max_bytes=4 * 1024**3, max_members=100_000)
_SETTINGS: Mapping[str, tuple[str, str]] = {
    "agent_timeout_sec": ("agent", "timeout_sec"),
    "verifier_timeout_sec": ("verifier", "timeout_sec"),
    "docker_image": ("environment", "docker_image"),
    "workdir": ("environment", "workdir"),
    "cpus": ("environment", "cpus"),
    "memory_mb": ("environment", "memory_mb"),
    "storage_mb": ("environment", "storage_mb"),
    "gpus": ("environment", "gpus"),
    "allow_internet": ("environment", "allow_internet"),
}


def load_tasks(source: str, left: LeftOut | None = None) -> tuple[Task, ...]:
    """Return the tasks of a source, sorted by name; rows keep their order.

    Args:
        source: a task directory, a directory of them, a ``.jsonl`` file, or ``builtin``.
        left: takes the tasks that are invalid or not supported, or repeat a name; None: they raise
            an error.

    Raises:
        SpecError: the source does not exist or has no tasks.
    """
    left = left or LeftOut(FAIL)
    path = Path(__file__).with_name("tasks") if source == BUILTIN else Path(source)
    if path.is_file():
        reads = _rows(path, left)
    elif path.is_dir():
        reads = (
            (task_id(folder.resolve().name), partial(read_task, folder))
            for folder in _folders(path, _LEVELS)
        )
    else:
        raise SpecError(
            "tasks", source, f"a task directory, a directory of them, a .jsonl file, or {BUILTIN!r}"
        )
    tasks = _read_all(source, reads, left)
    left.check_any(len(tasks), "tasks", source)
    if not tasks:
        old = (
            " (task.yaml of Terminal-Bench 1: convert those first)" if any(path.rglob(_OLD)) else ""
        )
        raise SpecError("tasks", source, f"directories with instruction.md{old}")
    return tasks


def _read_all(
    source: str, reads: Iterable[tuple[str, Callable[[], Task]]], left: LeftOut
) -> tuple[Task, ...]:
    tasks = dict[str, Task]()
    for name, read in reads:
        with left.reading(name):
            if name in tasks:
                raise SpecError("tasks", source, f"tasks with unique names; {name!r} occurs twice")
            tasks[name] = read()
    return tuple(tasks.values())


def _folders(path: Path, levels: int) -> list[Path]:
    if is_task(path):
        return [path]
    if not levels:
        return []
    inner = sorted(
        folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith(".")
    )
    return [
        task for folder in inner if not folder.is_symlink() for task in _folders(folder, levels - 1)
    ]


def _rows(path: Path, left: LeftOut) -> Iterator[tuple[str, Callable[[], Task]]]:
    """Yield the id and the reader of each task in a file of JSON lines.

    A row has ``instruction``; ``docker_image``, or ``environment_tar`` with a Dockerfile;
    ``tests_tar`` or ``test_sh`` or both. Optional are ``solution_sh`` or ``solution_tar``, and
    settings such as ``agent_timeout_sec``, or a whole ``task_toml``. Archives are tar files in
    base64, optionally gzipped.

    Args:
        path: the file.
        left: takes a line that is not a JSON object; a reader names its line if the row is invalid.
    """
    for line in json_lines(path, left):
        row = _Row(path=path, number=line.number, values=line.value)
        yield task_id(row.name), row.task


@attrs.frozen(kw_only=True)
class _Row:
    """One row of a file."""

    path: Path
    number: int
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        return next(
            (str(self.values[key]) for key in _NAMES if self.values.get(key)), f"row-{self.number}"
        )

    def task(self) -> Task:
        content = {key: value for key, value in self.values.items() if value is not None}
        digest = hashlib.sha256(
            json.dumps(content, sort_keys=True, default=str).encode()
        ).hexdigest()[:24]
        folder = cache_directory() / "terminal-tasks" / digest
        if not folder.is_dir():
            self._make(folder)
        return read_task(folder, name=self.name)

    def _make(self, folder: Path) -> None:
        """Create the directory atomically; if two processes do so at the same time, the first
        wins.
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".", dir=folder.parent, ignore_cleanup_errors=True
        ) as partial:
            made = Path(partial, folder.name)
            made.mkdir()
            self._fill(made)
            try:
                os.rename(made, folder)
            except OSError:
                if not folder.is_dir():
                    raise

    def _fill(self, folder: Path) -> None:
        (folder / INSTRUCTION).write_text(
            self._text("instruction") or self._refuse("instruction", "text")
        )
        (folder / SETTINGS).write_text(self._text("task_toml") or self._settings())
        for key, name in (
            ("environment_tar", "environment"),
            ("tests_tar", "tests"),
            ("solution_tar", "solution"),
        ):
            if self.values.get(key):
                self._unpack(key, folder / name)
        for key, file in (
            ("test_sh", f"tests/{TEST_SCRIPT}"),
            ("solution_sh", "solution/solve.sh"),
        ):
            if text := self._text(key):
                (folder / file).parent.mkdir(exist_ok=True)
                (folder / file).write_text(text)

    def _settings(self) -> str:
        tables: dict[str, list[str]] = {}
        for key, (table, name) in _SETTINGS.items():
            value = self.values.get(key)
            if value is None:
                continue
            if not isinstance(value, str | int | float):
                self._refuse(key, "text, a number or a boolean")
            tables.setdefault(table, []).append(f"{name} = {json.dumps(value)}")
        return "".join(f"[{table}]\n" + "\n".join(lines) + "\n" for table, lines in tables.items())

    def _unpack(self, key: str, target: Path) -> None:
        """Unpack an archive; if it only has a directory with the target's name, use the content of
        that directory.
        """
        try:
            packed = base64.b64decode(self._text(key), validate=True)
            data = gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed
            report = extract_tree(io.BytesIO(data), target, limits=_LIMITS, rename_root=False)
        except (binascii.Error, OSError, EOFError, TransferError) as error:
            self._refuse(key, f"a tar archive in base64 ({error})")
        if report.refused:
            self._refuse(key, f"an archive of plain files ({report.refused[0]})")
        entries = list(target.iterdir())
        if len(entries) == 1 and entries[0].name == target.name and entries[0].is_dir():
            inner = target.with_name(f".{target.name}")
            entries[0].rename(inner)
            target.rmdir()
            inner.rename(target)

    def _text(self, key: str) -> str:
        value = self.values.get(key) or ""
        good = isinstance(value, str) and not any(
            "\ud800" <= letter <= "\udfff" for letter in value
        )
        return value if good else self._refuse(key, "text")

    def _refuse(self, key: str, allowed: str) -> NoReturn:
        raise SpecError(f"{self.path}:{self.number}: {key}", self.values.get(key), allowed)
