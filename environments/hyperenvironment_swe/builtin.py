"""The tasks of this package, as rows; their repositories are created on first use."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

from filelock import FileLock

from hyperruntime.errors import StorageError
from hyperruntime.git.store import RepositoryStore

_ROOT = "refs/hyperruntime/root"


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
    for task in sorted(Path(str(resources.files("hyperenvironment_swe").joinpath("tasks"))).iterdir()):
        if not (task / "task.json").is_file():
            continue
        store = RepositoryStore(os.path.join(directory, f"{task.name}.git"))
        with FileLock(store.path + ".lock"):
            commit = store.from_directory(task / "repository")
        row = json.loads((task / "task.json").read_text("utf-8"))
        rows.append({"instance_id": task.name, "repo": store.path, "base_commit": commit, **row})
    return rows
