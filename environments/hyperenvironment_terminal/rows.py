"""Read tasks from JSON lines, the form in which Terminal-Bench 2 is published as a data set.

A row is written to a task directory in the cache, named by the digest of the row, and then read like any other task.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import attrs

from hyperenvironment_terminal.directory import INSTRUCTION, SETTINGS, read_task
from hyperenvironment_terminal.task import TEST_SCRIPT, Task
from hyperruntime.errors import SpecError, TransferError
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.transfer.extract import ExtractLimits, extract_tree

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
_SETTING_KINDS = (str, int, float, bool)


def read_rows(path: Path) -> tuple[Task, ...]:
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
            try:
                values = json.loads(line)
            except ValueError:
                values = None
            if not isinstance(values, dict):
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
        partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
        partial.mkdir(parents=True)
        try:
            self._fill(partial)
            try:
                os.rename(partial, folder)
            except OSError:
                if not folder.is_dir():
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)

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
            if not isinstance(value, _SETTING_KINDS):
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
