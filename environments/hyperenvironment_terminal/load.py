"""Find tasks in a task directory, a directory of task directories, a file of rows, or this package.

Rows are JSON lines, the form in which Terminal-Bench 2 is published as a data set. A row is written to a task directory
in the cache, named by the digest of the row, and then read like any other task.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import attrs

from hyperenvironment_terminal.task import INSTRUCTION, SETTINGS, TEST_SCRIPT, Task, is_task, read_task
from hyperruntime.errors import SpecError, TransferError
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.json_values import json_object
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


def load_tasks(source: str) -> tuple[Task, ...]:
    """Return the tasks of a source, sorted by name; rows keep their order.

    Raises:
        SpecError: the source does not exist or has no tasks, a task is invalid, or two tasks have the same name.
    """
    path = Path(__file__).with_name("tasks") if source == BUILTIN else Path(source)
    if path.is_file():
        tasks = _read_rows(path)
    elif path.is_dir():
        tasks = tuple(read_task(folder) for folder in _folders(path, _LEVELS))
    else:
        raise SpecError("tasks", source, f"a task directory, a directory of them, a .jsonl file, or {BUILTIN!r}")
    if not tasks:
        old = " (task.yaml of Terminal-Bench 1: convert those first)" if any(path.rglob(_OLD)) else ""
        raise SpecError("tasks", source, f"directories with instruction.md{old}")
    names = [task.id for task in tasks]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise SpecError("tasks", source, f"tasks with unique names; {double!r} occurs twice")
    return tasks


def _folders(path: Path, levels: int) -> list[Path]:
    if is_task(path):
        return [path]
    if not levels:
        return []
    inner = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    return [task for folder in inner if not folder.is_symlink() for task in _folders(folder, levels - 1)]


def _read_rows(path: Path) -> tuple[Task, ...]:
    """Return the tasks of a file of JSON lines.

    A row has ``instruction``; ``docker_image``, or ``environment_tar`` with a Dockerfile; ``tests_tar`` or ``test_sh``
    or both. Optional are ``solution_sh`` or ``solution_tar``, and settings such as ``agent_timeout_sec``, or a whole
    ``task_toml``. Archives are tar files in base64, optionally gzipped.

    Raises:
        SpecError: a row is invalid; the message names the line.
    """
    tasks = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            values = json_object(line)
            if values is None:
                raise SpecError(f"{path}:{number}", line.strip(), "a JSON object")
            tasks.append(_Row(path=path, number=number, values=values).task())
    return tuple(tasks)


@attrs.frozen(kw_only=True)
class _Row:
    """One row of a file."""

    path: Path
    number: int
    values: Mapping[str, Any]

    def task(self) -> Task:
        name = next((str(self.values[key]) for key in _NAMES if self.values.get(key)), f"row-{self.number}")
        content = {key: value for key, value in self.values.items() if value is not None}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:24]
        folder = cache_directory() / "terminal-tasks" / digest
        if not folder.is_dir():
            self._make(folder)
        return read_task(folder, name=name)

    def _make(self, folder: Path) -> None:
        """Create the directory atomically; if two processes do so at the same time, the first wins."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent, ignore_cleanup_errors=True) as partial:
            made = Path(partial, folder.name)
            made.mkdir()
            self._fill(made)
            try:
                os.rename(made, folder)
            except OSError:
                if not folder.is_dir():
                    raise

    def _fill(self, folder: Path) -> None:
        (folder / INSTRUCTION).write_text(self._text("instruction") or self._refuse("instruction", "text"))
        (folder / SETTINGS).write_text(self._text("task_toml") or self._settings())
        for key, name in (("environment_tar", "environment"), ("tests_tar", "tests"), ("solution_tar", "solution")):
            if self.values.get(key):
                self._unpack(key, folder / name)
        for key, file in (("test_sh", f"tests/{TEST_SCRIPT}"), ("solution_sh", "solution/solve.sh")):
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
        """Unpack an archive; if it only has a directory with the target's name, use the content of that directory."""
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
        return value if isinstance(value, str) else self._refuse(key, "text")

    def _refuse(self, key: str, allowed: str) -> NoReturn:
        raise SpecError(f"{self.path}:{self.number}: {key}", self.values.get(key), allowed)
