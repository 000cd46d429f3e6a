"""``generate_loop.log``: the options of a run, logged at its start and at each resume."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import attrs

from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.storage.atomic import storage_errors

FILE = "generate_loop.log"


def log_args(layout: Layout, options: GenerateOptions, root_commit: str, notes: Iterable[str] = ()) -> None:
    """Append one line with all options and the root commit, and one line per note.

    Args:
        layout: the paths of the run.
        options: the options of the run.
        root_commit: commit of the initial agent.
        notes: further lines; white space in them is collapsed.

    Raises:
        StorageError: the log cannot be written.
    """
    args = {**attrs.asdict(options, recurse=False), "root_commit": root_commit}
    text = "Args: " + ", ".join(f"{name}={value}" for name, value in args.items())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    lines = "".join(f"{now} {' '.join(line.split())}\n" for line in (text, *notes))
    path = layout.root / FILE
    with storage_errors(path), open(path, "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(lines)
