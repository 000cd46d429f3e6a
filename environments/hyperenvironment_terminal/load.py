"""Find tasks in a task directory, a directory of task directories, a file of rows, or this package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from hyperenvironment_terminal.directory import is_task, read_task
from hyperenvironment_terminal.rows import read_rows
from hyperenvironment_terminal.task import Task
from hyperruntime.errors import SpecError

BUILTIN = "builtin"
_OLD = "task.yaml"
_LEVELS = 3


def load_tasks(source: str) -> tuple[Task, ...]:
    """Return the tasks of a source, sorted by name; rows keep their order.

    Raises:
        SpecError: the source does not exist or has no tasks, a task is invalid, or two tasks have the same name.
    """
    path = Path(str(resources.files("hyperenvironment_terminal") / "tasks")) if source == BUILTIN else Path(source)
    if path.is_file():
        tasks = read_rows(path)
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
